"""Train one model from ten clients with ten labels each, save it, and use it on new rows.

python examples/train_and_predict.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import grapevine as gv

out = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) / "run"
split = gv.data.load("digits").split(clients=10, partition="dirichlet:0.5", labels="clients:100", seed=0)
method = gv.methods.NetworkLabels(epochs=3)  # `grapevine methods network` lists its fields

run = gv.train(method, split, rounds=6, model="mlp", out=out)
for line in run.history:
    print(f"round {line['round']}: accuracy {line['accuracy']:.1%}")

model = gv.load(str(out))  # in another program, on another day
rows, truth = split.dataset.x_test[:10], split.dataset.y_test[:10]
print("says", model.predict(rows))
print("true", [split.dataset.classes[c] for c in truth.tolist()])
