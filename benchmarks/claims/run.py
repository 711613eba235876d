"""All claims, or those that are named, one after the other: `python benchmarks/claims/run.py [x5 p1 …] [--page]`.

What has run already is not repeated: runs are kept in `.runs/` beside this file. A claim that fails does not stop the others.
`--page` only makes docs/claims.md and the numbers on other pages anew from the JSON that is there.
`--missing` leaves out claims whose JSON is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import page

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("claims", nargs="*", metavar="CLAIM", help="x1, p3, … [all]")
    parser.add_argument("--page", action="store_true", help="only make the pages anew")
    parser.add_argument("--missing", action="store_true", help="only claims without a result")
    flags = parser.parse_args()
    known = [identity.lower() for identity in page.CLAIMS if (HERE / f"{identity.lower()}.py").exists()]
    unknown = [name for name in flags.claims if name.lower() not in known]
    if unknown:
        parser.error(f"there is no claim {unknown[0]}: take {', '.join(known)}.")
    wanted = [] if flags.page else [name.lower() for name in flags.claims] or known
    if flags.missing:
        wanted = [name for name in wanted if not (HERE / f"{name.upper()}.json").exists()]
    failed = []
    for name in wanted:
        print(f"=== {name.upper()}", flush=True)
        failed += [name] * (subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode != 0)
    page.everything()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; run them again, what was done is kept.")


if __name__ == "__main__":
    main()
