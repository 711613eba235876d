"""Compare two methods with their bounds on the same splits, over two seeds, and print the table.

python examples/compare_methods.py [FOLDER]
"""

import sys
import tempfile
from pathlib import Path

import grapevine as gv


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()) / "comparison"
    made = gv.compare(["network", gv.methods.FedProx(mu=0.1)], "digits", out, clients=5, labels="clients:50", rounds=3, seeds=2,
                      model="mlp")  # fmt: skip
    for row in made.table:
        print(f"{row['method']:<16} {row['accuracy']:.1%} ± {row['accuracy_std']:.1%}  {row['bound'] or ''}")
    print(f"The page: {out / 'report.html'}")


if __name__ == "__main__":  # the runs are processes of their own
    main()
