"""P4: ProtoFSSL's cost per client is about half of FedMatch's bytes and less compute than the others' (ProtoFSSL, table 2)."""

from common import FEW, arguments, spread, verdict, write
from cost_account import LABELLED, PAPER, UNLABELLED, measure

CLAIM = "A round of ProtoFSSL costs a client about half of FedMatch's bytes, and 1.7 to 3.4 times less compute than the others."
OTHERS = ("fixmatch", "mixmatch", "fedrgd", "fedmatch")
TIMES = 1.7


def main() -> None:
    quick = arguments(CLAIM).quick
    model, size, seeds = ("cnn", (20, 30), range(1)) if quick else ("resnet9", (LABELLED, UNLABELLED), range(FEW))
    # Which entries changed, and so FedMatch's bytes, depends on values: only there the convolutions are real.
    runs = {name: [measure(name, model, size, name == "fedmatch", seed) for seed in seeds] for name in ("protofssl", *OTHERS)}
    forward = {name: [run["forward_gflop"] for run in each] for name, each in runs.items()}
    whole = {name: [run["forward_gflop"] + run["backward_gflop"] for run in each] for name, each in runs.items()}
    traffic = {name: [round(run["up_mb"] + run["down_mb"], 3) for run in each] for name, each in runs.items()}

    def ratios(of: dict[str, list[float]], name: str) -> list[float]:
        return [round(b / a, 2) for a, b in zip(of["protofssl"], of[name])]

    share = spread([round(100 * a / b, 1) for a, b in zip(traffic["protofssl"], traffic["fedmatch"])])
    numbers = {
        "forward GFLOP": {name: spread(values) for name, values in forward.items()},
        "forward and backward GFLOP": {name: spread(values) for name, values in whole.items()},
        "MB up and down": {name: spread(values) for name, values in traffic.items()},
        "times ProtoFSSL's, forward": {name: spread(ratios(forward, name)) for name in OTHERS},
        "times ProtoFSSL's, forward and backward": {name: spread(ratios(whole, name)) for name in OTHERS},
        "ProtoFSSL's bytes in per cent of FedMatch's": share,
    }
    counts = {way: numbers[f"times ProtoFSSL's, {way}"] for way in ("forward", "forward and backward")}
    outcomes = ["yes" if 45 <= share["mean"] < 55 else "no"]
    outcomes += ["yes" if one["mean"] >= TIMES else "no" for each in counts.values() for one in each.values()]
    told = [
        f"{way}: " + ", ".join(f"{name} {one['mean']:.1f} times" for name, one in each.items()) for way, each in counts.items()
    ]
    why = f"Bytes: {share['mean']:.0f} % of FedMatch's (the paper: 45 %). FedMatch here sends only entries that changed, and of "
    why += f"a helper only psi; the paper counts all of it. Compute against ProtoFSSL's, {'; '.join(told)}. The paper counts "
    why += (
        "forward passes alone, and MixMatch's as FixMatch's; ours passes each unlabelled row twice to guess and twice to learn. "
    )
    why += f"About half: 45 to 55 %; less compute: at least {TIMES:g} times."
    setting = (
        "a client's round with ResNet-9, 50 labelled and 490 unlabelled rows of 3x32x32, one epoch, two helpers; bytes of the "
    )
    setting += "messages and operations of layers, counted by cost_account.py"
    paper = {name: dict(zip(("GFLOP", "MB"), values)) for name, values in PAPER.items()}
    write(__file__, claim=CLAIM, setting=setting, numbers=numbers, paper_numbers=paper, verdict=verdict(outcomes), why=why,
          seeds=len(seeds), quick=quick)  # fmt: skip


if __name__ == "__main__":
    main()
