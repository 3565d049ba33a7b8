"""Time and memory of drawing all figures, from the published points and from tables of raw curves.

Run as ``python benchmarks/figures.py [DATA]``, where DATA holds tables, at full scale for the stated bars.
Both times include the start of Python and all imports, and PNG and PDF files of every figure.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from measure import Cost, report, run_process

SECONDS_FROM_POINTS = 30.0
SECONDS_FROM_CURVES = 60.0
MEGABYTES_FROM_CURVES = 1500.0


def drawn(out: Path, *arguments: str) -> Cost:
    """Draw figures by the command, in one process."""
    start = "from batchscience.cli import app; app()"
    command = [sys.executable, "-c", start, "figures", "--out", str(out), *arguments]
    return run_process(command)


def main() -> None:
    """Measure and report against the bars."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        cost = drawn(out, "--source", "published")
        report(
            "all figures from the published points, seconds", cost.seconds, SECONDS_FROM_POINTS, at_most=True
        )
        if len(sys.argv) < 2:
            return
        cost = drawn(out, "--source", "archive", "--data", sys.argv[1])
        report("all figures from raw curves, seconds", cost.seconds, SECONDS_FROM_CURVES, at_most=True)
        report("all figures from raw curves, MB", cost.peak_mb, MEGABYTES_FROM_CURVES, at_most=True)


if __name__ == "__main__":
    main()
