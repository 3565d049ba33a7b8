"""Ingest of a simulated archive against decompressing it, and against unpacking it and reading each CSV.

Usage: python benchmarks/ingest.py [--scale 0.1] [--archive FILE] [--repeats 3] [--today]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from pathlib import Path

from measure import ratio, report, run_process, run_python, size_of, timed

INGEST = """
import sys
from batchscience.ingest import ingest
report = ingest(sys.argv[1], sys.argv[2])
assert not report.problems, report.problems[:3]
"""

INGEST_WITH_THE_STANDARD_LIBRARY = (
    # Neither the package nor the program that would be taken before it.
    "import os, sys; os.environ['PATH'] = ''; sys.modules['indexed_bzip2'] = None" + INGEST
)

TODAY = """
import subprocess, sys
from pathlib import Path
import pandas as pd
archive, folder = sys.argv[1:]
subprocess.run(["tar", "-xjf", archive, "-C", folder], check=True)
frames = {}
for path in Path(folder).rglob("measurements.csv"):
    *workload, batch_size, trial, _ = path.relative_to(folder).parts[1:]
    frame = pd.read_csv(path)
    frame["batch_size"], frame["trial"] = int(batch_size), int(trial)
    frames.setdefault("/".join(workload), []).append(frame)
for workload, parts in frames.items():
    frames[workload] = pd.concat(parts, ignore_index=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--archive", type=Path, help="use this archive instead of simulating one")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--today", action="store_true", help="also unpack it and read each CSV with pandas")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        measure(options, Path(scratch))


def measure(options: argparse.Namespace, scratch: Path) -> None:
    archive = options.archive or scratch / "simulated.tar.bz2"
    if not archive.exists():
        from batchscience.simulate import simulate

        simulate(archive, scale=options.scale, seed=0)
    print(f"archive of {archive.stat().st_size / 1e6:.1f} MB", flush=True)
    peak = 0.0

    def ingest(code: str = INGEST) -> float:
        nonlocal peak
        shutil.rmtree(scratch / "store", ignore_errors=True)
        cost = run_python(code, archive, scratch / "store")
        peak = max(peak, cost.peak_mb)
        return cost.seconds

    parallel = shutil.which("lbzip2")
    if parallel:
        decompress = [parallel, "-dc", "-n2", str(archive)]
        ours, peer, times = ratio(ingest, lambda: run_process(decompress).seconds, repeats=options.repeats)
        print(f"ingest {ours:.2f} s, lbzip2 -dc -n2 {peer:.2f} s")
        report("ingest / lbzip2 -dc -n2", times, 1.7 if options.scale < 1 else 1.5, at_most=True)
    else:
        ingest()
        print("lbzip2 is not installed: no comparison with it")
    report("peak memory of the ingest, MB", peak, 600, at_most=True)
    report(
        "Parquet / archive, bytes", size_of(scratch / "store") / archive.stat().st_size, 0.95, at_most=True
    )

    ours, peer, times = ratio(
        lambda: ingest(INGEST_WITH_THE_STANDARD_LIBRARY),
        lambda: run_process(["bzip2", "-dc", str(archive)]).seconds,
        repeats=options.repeats,
    )
    print(f"ingest with the standard library {ours:.2f} s, bzip2 -dc {peer:.2f} s")
    report("ingest with the standard library's bzip2 / bzip2 -dc", times, 1.3, at_most=True)

    if options.today:
        (scratch / "unpacked").mkdir()
        today = timed(lambda: run_python(TODAY, archive, scratch / "unpacked"))
        ours = ingest()
        print(f"tar -xjf and pandas per CSV {today:.2f} s, ingest {ours:.2f} s")
        report("tar -xjf and pandas per CSV / ingest", today / ours, 4.5, at_most=False)


if __name__ == "__main__":
    subprocess.run(["sync"], check=False)
    main()
