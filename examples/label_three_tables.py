"""Three parties hold tables, twenty labels each; afterwards each has a label and a confidence for every row of its own.

python examples/label_three_tables.py
"""

import numpy as np

import grapevine as gv

digits = gv.data.load("digits")
X, y = digits.x[:600].flatten(1).numpy().astype(float), digits.y[:600].numpy()

# Dealt out to three parties; −1 is a row without a label.
parts = np.array_split(np.random.default_rng(0).permutation(len(X)), 3)
parties = [(X[rows], np.where(np.arange(len(rows)) < 20, y[rows], -1)) for rows in parts]

# psm is the cheapest protocol; the default, mlwe, also withstands a party that colludes with the server.
result = gv.label(parties, truth=[y[rows] for rows in parts], secure="psm", bits=1024, names=["north", "south", "east"])

print(f"right among the new labels: {result.accuracy:.1%}, each party alone: {result.alone_accuracy:.1%}")
