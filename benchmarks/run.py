"""Every benchmark in turn, at the scale that needs no preparation; run on an idle machine.

Usage: python benchmarks/run.py [NAME]…
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_ALONE = {"run", "measure", "coverage"}
"""Helpers, and the coverage study, which takes half an hour and measures no time."""


def main() -> None:
    names = sys.argv[1:] or sorted({path.stem for path in HERE.glob("*.py")} - NOT_ALONE)
    failed = []
    for name in names:
        print(f"== {name}", flush=True)
        if subprocess.run([sys.executable, HERE / f"{name}.py"], check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"did not run to the end: {', '.join(failed)}")


if __name__ == "__main__":
    main()
