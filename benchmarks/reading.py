"""Reading from the tables against reading the CSV files: one workload, and steps to result of them all.

Usage: python benchmarks/reading.py [--scale 0.1] [--raw FOLDER] [--store FOLDER] [--workload NAME]
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import pandas as pd
from measure import report, timed

from batchscience import Store, load_workload, steps_to_goal, steps_to_result
from batchscience.ingest import ingest
from batchscience.paper import WORKLOADS, goal_of
from batchscience.simulate import simulate


def loop_over_csvs(raw: Path, workload: str) -> pd.DataFrame:
    """The COMPLETE trials of a workload, one CSV after another, as one writes it without this package."""
    import json

    parts = []
    for path in (raw / "batch_science" / workload).glob("*/*/measurements.csv"):
        if json.loads((path.parent / "metadata.json").read_text())["status"] != "COMPLETE":
            continue
        frame = pd.read_csv(path)
        frame["batch_size"], frame["trial"] = int(path.parts[-3]), int(path.parts[-2])
        parts.append(frame)
    return pd.concat(parts, ignore_index=True).set_index(["batch_size", "trial", "step"]).sort_index()


def loop_over_groups(frame: pd.DataFrame, metric: str, threshold: float, maximize: bool) -> dict[int, float]:
    """Steps to result by batch size, group by group with sorting."""
    best: dict[int, float] = {}
    for (batch_size, _), group in frame.reset_index().groupby(["batch_size", "trial"]):
        group = group.sort_values("step")
        met = group[group[metric] > threshold] if maximize else group[group[metric] < threshold]
        if len(met):
            best[batch_size] = min(best.get(batch_size, float("inf")), met["step"].iloc[0])
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=0.1)
    parser.add_argument("--raw", type=Path, help="unpacked archive; simulated when missing")
    parser.add_argument("--store", type=Path, help="its tables; ingested when missing")
    parser.add_argument("--workload", default="mnist/simple_cnn_base/nesterov_momentum")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    with tempfile.TemporaryDirectory() as scratch:
        raw = options.raw or Path(scratch) / "raw"
        if not raw.exists():
            simulate(raw, scale=options.scale, seed=0)
        store = options.store or Path(scratch) / "store"
        if not store.exists():
            ingest(raw, store)
        one_workload(raw, store, options.workload)
        all_workloads(raw, store)


def one_workload(raw: Path, store: Path, workload: str) -> None:
    load_workload(workload, data=store)  # imports and file cache
    ours = min(timed(lambda: load_workload(workload, data=store)) for _ in range(5))
    peer = min(timed(lambda: loop_over_csvs(raw, workload)) for _ in range(2))
    print(f"{workload}: load_workload {ours:.3f} s, loop over its CSVs {peer:.2f} s")
    report("loop over the CSVs of a workload / load_workload", peer / ours, 20, at_most=False)


def all_workloads(raw: Path, store: Path) -> None:
    goals = {w.name: goal for w in WORKLOADS if (goal := goal_of(w.name)) is not None}
    metrics = {w.name: Store(store).metrics(w.name) for w in WORKLOADS}
    for workload in metrics.keys() - goals.keys():
        # No figure shows a goal for it: one that most trials reach.
        from batchscience import Goal

        goals[workload] = Goal(metrics[workload][-1], 0.05)

    def ours() -> dict[str, dict[int, float]]:
        opened = Store(store)
        found = {}
        for workload, goal in goals.items():
            trials = steps_to_goal(opened.measurements(workload, metrics=[goal.metric]), goal)
            result = steps_to_result(trials)
            pairs = zip(result["batch_size"], result["steps"], strict=True)
            found[workload] = {batch_size: steps for batch_size, steps in pairs if steps is not pd.NA}
        return found

    began = time.perf_counter()
    plain = {}
    for workload, goal in goals.items():
        frame = loop_over_csvs(raw, workload)
        plain[workload] = loop_over_groups(frame, goal.metric, goal.threshold, goal.maximize)
    peer = time.perf_counter() - began
    assert ours() == plain, "the two ways disagree"
    seconds = min(timed(ours) for _ in range(3))
    print(f"steps to result of {len(goals)} workloads: {seconds:.3f} s, from CSV with loops {peer:.2f} s")
    report("CSV and loops over groups / steps to result from the tables", peer / seconds, 40, at_most=False)


if __name__ == "__main__":
    main()
