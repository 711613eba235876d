"""The attackers are those whose figures `benchmarks/attacks.py` gives."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
