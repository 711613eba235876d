"""The one training loop, by hand; averages and what they refuse."""

import math
import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F

from grapevine.core.errors import Mistake
from grapevine.core.network import Network
from grapevine.core.rows import Rows
from grapevine.learn import training
from grapevine.learn.layers import Dropout
from grapevine.learn.networks import build
from grapevine.learn.training import average, clip, fit, fit_finite, outputs, passes, pull, push, train


def line(w=2.0):
    """y = w x."""
    model = Network(torch.nn.Identity(), torch.nn.Linear(1, 1, bias=False))
    torch.nn.init.constant_(model.head.weight, w)
    return model


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr)


def test_every_batch_is_a_step_down_its_gradient():
    model = line()
    loss = lambda x: (model(x) ** 2).sum()  # noqa: E731
    # Of w² x² the gradient is 2 w x²: 2 → 2 − 0.1·4 = 1.6 for x = 1, → 1.6 − 0.1·2·1.6·4 = 0.32 for x = 2.
    assert train(model, [torch.tensor([[1.0]]), torch.tensor([[2.0]])], loss, sgd(model), torch.Generator()) == 2
    assert model.head.weight.item() == pytest.approx(0.32)


def test_a_batch_without_a_loss_is_no_step_and_hooks_come_before_and_after_steps():
    model, seen = line(), []
    adjust = lambda m: seen.append(("gradient", m.head.weight.grad.item(), m.head.weight.item()))  # noqa: E731
    after = lambda: seen.append(("after", round(model.head.weight.item(), 6)))  # noqa: E731
    loss = lambda x: None if x is None else (model(x) ** 2).sum()  # noqa: E731
    assert train(model, [None, torch.tensor([[1.0]]), None], loss, sgd(model), torch.Generator(), adjust, after) == 1
    assert seen == [("gradient", 4.0, 2.0), ("after", 1.6)]


def test_batches_are_drawn_after_the_step_before_them():
    """Otherwise the same seed would give other views."""
    model, order = line(), []

    def batches():
        for i in range(2):
            order.append(f"batch {i}")
            yield torch.tensor([[1.0]])

    def loss(x):
        order.append("loss")
        return model(x).sum()

    train(model, batches(), loss, sgd(model), torch.Generator())
    assert order == ["batch 0", "loss", "batch 1", "loss"]


def test_dropout_draws_from_the_loops_generator():
    def trained(seed):
        model = Network(Dropout(0.5), torch.nn.Linear(8, 1, bias=False))
        torch.nn.init.ones_(model.head.weight)
        rng = torch.Generator().manual_seed(seed)
        train(model.eval(), [torch.ones(1, 8)], lambda x: model(x).sum(), sgd(model), rng)
        assert model.training
        return model.head.weight.tolist()

    assert trained(1) == trained(1) != trained(2)


def test_adjustments_by_hand():
    model = line(3.0)

    def adjusted(adjust):
        model.head.weight.grad = torch.tensor([[4.0]])
        adjust(model)
        return model.head.weight.grad.item()

    assert adjusted(pull({"head.weight": torch.tensor([[1.0]])}, 0.5)) == 4 + 0.5 * (3 - 1)
    assert adjusted(push({"head.weight": torch.tensor([[-1.5]])})) == 2.5
    assert adjusted(clip(1.0)) == pytest.approx(1.0, rel=1e-5) and adjusted(clip(10.0)) == 4.0


def test_passes_are_shuffled_anew():
    found = list(passes(7, 3, 2, torch.Generator().manual_seed(0)))
    assert [len(at) for at in found] == [3, 3, 1] * 2
    first, second = (torch.cat(found[i : i + 3]).tolist() for i in (0, 3))
    assert sorted(first) == sorted(second) == list(range(7)) and first != second
    assert list(passes(0, 3, 2, torch.Generator())) == []


def rows(n, width=3):
    return Rows(torch.arange(n * width).reshape(n, width).float(), torch.arange(n), torch.arange(n) % 2)


def test_outputs_are_in_order_whatever_the_batches():
    data = rows(1001)
    assert torch.equal(outputs(lambda x: x * 2, data, 3), data.x * 2)
    assert torch.equal(outputs(lambda x: x[:, :1], data, 1, view=lambda at: data.inputs(at) + 1), data.x[:, :1] + 1)
    assert outputs(lambda x: x, rows(0), 5).shape == (0, 5)


def test_fit_takes_momentum_and_weight_decay():
    model, data = Network(torch.nn.Identity(), torch.nn.Linear(3, 2)), rows(4)
    w = model.head.weight.detach().clone()
    g = torch.autograd.grad(torch.nn.functional.cross_entropy(model(data.inputs()), data.y), model.head.weight)[0]
    assert fit(model, data, 0.1, 1, torch.Generator(), batch=4, momentum=0.9, weight_decay=0.5) == 1
    torch.testing.assert_close(model.head.weight.detach(), w - 0.1 * (g + 0.5 * w))


def test_rmsprop_divides_by_the_root_of_its_running_mean_of_squares():
    """Two steps by the formula: v ← 0.9 v + 0.1 g², w ← w − η g / (√v + 1e-7). The first is √10 η long, whatever the gradient."""
    model, data = Network(torch.nn.Identity(), torch.nn.Linear(3, 2)), rows(4)
    w = model.head.weight.detach().clone()
    b, v = model.head.bias.detach().clone(), [torch.zeros(2, 3), torch.zeros(2)]
    for _ in range(2):
        p = torch.softmax(data.inputs() @ w.T + b, 1) - torch.nn.functional.one_hot(data.y, 2)
        g = [p.T @ data.inputs() / 4, p.mean(0)]
        v = [0.9 * v_ + 0.1 * g_**2 for v_, g_ in zip(v, g)]
        w, b = (old - 0.01 * g_ / (v_.sqrt() + 1e-7) for old, g_, v_ in zip((w, b), g, v))
    assert fit(model, data, 0.01, 2, torch.Generator(), batch=4, optimiser="rmsprop") == 2
    torch.testing.assert_close(model.head.weight.detach(), w)
    torch.testing.assert_close(model.head.bias.detach(), b)


def test_a_server_whose_model_diverged_says_so():
    model = Network(torch.nn.Identity(), torch.nn.Linear(3, 2))
    with pytest.raises(Mistake, match="the server's model diverged with a learning rate of 1e\\+38: use a smaller one"):
        fit_finite(model, rows(50), 1e38, 5, torch.Generator(), 5)


# ---------------------------------------------------------------- averages


def test_average_by_hand():
    replies = {
        1: dict(w=dict(a=torch.tensor([1.0, 2.0]), k=torch.tensor(4)), n=1),
        0: dict(w=dict(a=torch.tensor([4.0, 8.0]), k=torch.tensor(7)), n=2),
    }
    mean = average(replies, "w")
    assert mean["a"].tolist() == [3.0, 6.0] and mean["k"].item() == 6 and mean["k"].dtype == torch.int64
    assert average(replies, "w", by=None)["a"].tolist() == [2.5, 5.0]
    nobody = {0: dict(w=replies[0]["w"], n=0)}
    assert average(nobody, "w", otherwise=replies[1]["w"]) is replies[1]["w"]
    with pytest.raises(Mistake, match="no client"):
        average({}, "w")


def test_average_refuses_what_is_not_finite_or_not_alike():
    good = dict(w=dict(a=torch.ones(2)), n=1)
    with pytest.raises(Mistake, match="client 3 sent 'a' with values that are not finite"):
        average({0: good, 3: dict(w=dict(a=torch.tensor([1.0, float("nan")])), n=1)}, "w")
    with pytest.raises(Mistake, match="client 3 sent weights of a different shape from client 0's"):
        average({0: good, 3: dict(w=dict(a=torch.ones(3)), n=1)}, "w")


@pytest.mark.parametrize("n", [-1, math.nan, math.inf, 2**62])
def test_average_refuses_weights_that_are_no_counts(n):
    replies = {0: dict(w=dict(a=torch.ones(2)), n=1), 3: dict(w=dict(a=torch.ones(2)), n=n)}
    with pytest.raises(Mistake, match="client 3 has a weight of .* in an average: n must be 0 to 1099511627776"):
        average(replies, "w")


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("decay", [0.0, 1e-3])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_our_own_descent_is_that_of_torch_to_the_bit(momentum, decay, nesterov):
    if nesterov and not momentum:
        return
    own, other = (build("mlp", (5,), 3, seed=1) for _ in range(2))
    words = dict(momentum=momentum, weight_decay=decay, nesterov=nesterov)
    ours, theirs = training.descent(own.parameters(), 0.1, **words), torch.optim.SGD(other.parameters(), 0.1, **words)
    assert isinstance(ours, training.SGD)
    rng = torch.Generator().manual_seed(2)
    for i in range(12):
        x, y = torch.randn(8, 5, generator=rng), torch.randint(3, (8,), generator=rng)
        for model, optimiser in ((own, ours), (other, theirs)):
            optimiser.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if i % 3 == 0:
                next(model.parameters()).grad = None  # no gradient, no step
            optimiser.step()
        if i == 5:  # a client that continues in another process
            ours, held = training.descent(own.parameters(), 0.1, **words), training.kept(ours, own)
            assert same(held, training.kept(theirs, other))
            training.resume(ours, own, held)
    assert same(own.state(), other.state())


def same(a: dict, b: dict) -> bool:
    pairs = [(a[name], b[name]) for name in a]
    return a.keys() == b.keys() and all(same(x, y) if isinstance(x, dict) else torch.equal(x, y) for x, y in pairs)


def test_a_step_of_training_does_not_load_the_compiler_of_torch():
    code = "import sys, torch; from grapevine.learn import networks, training; from grapevine.core.rows import Rows; "
    code += "model, at = networks.build('mlp', (3,), 2), torch.arange(4); rows = Rows(torch.ones(4, 3), at, at % 2); "
    code += "training.fit(model, rows, 0.1, 1, torch.Generator(), momentum=0.9); print('torch._dynamo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n", done.stderr
