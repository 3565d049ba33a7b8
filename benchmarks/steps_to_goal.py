"""Steps to goal on ten million measurements, against two plain loops on a sample of them.

Usage: python benchmarks/steps_to_goal.py [--rows 10000000] [--sample 1000000] [--repeats 3] [--shuffled]
"""

from __future__ import annotations

import argparse

import numpy as np
import pandas as pd
import pyarrow as pa
from measure import ratio, report, timed

from batchscience.goals import Goal
from batchscience.results import steps_to_goal

ERROR = "val/classification_error"
GOAL = Goal(ERROR, 0.05)
STUDIES, EVALUATIONS = 454, 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--sample", type=int, default=1_000_000, help="rows that the plain loops work on")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--shuffled", action="store_true", help="also with the rows in random order")
    options = parser.parse_args()

    table = measurements(options.rows)
    steps_to_goal(table.head(1000), GOAL)
    seconds = min(timed(lambda: steps_to_goal(table, GOAL)) for _ in range(options.repeats))
    report(f"seconds for {len(table):,} rows of {STUDIES} studies", seconds, 2.0, at_most=True)

    sample = table.head(options.sample)
    expected = steps_to_goal(sample, GOAL)["steps"].to_numpy(dtype=np.float64, na_value=-1)
    for name, loop in (("over rows", loop_over_rows), ("over groups", loop_over_groups)):
        assert np.array_equal(loop(sample), expected), f"the loop {name} disagrees"
        _, _, share = ratio(
            lambda: timed(lambda: steps_to_goal(sample, GOAL)),
            lambda loop=loop: timed(lambda: loop(sample)),
            repeats=options.repeats,
        )
        report(f"times faster than a plain loop {name} ({len(sample):,} rows)", 1 / share, 50, at_most=False)
    if options.shuffled:
        shuffled = table.sample(frac=1, random_state=0, ignore_index=True)
        print(f"with the rows in random order: {timed(lambda: steps_to_goal(shuffled, GOAL)):.2f} s")


def measurements(rows: int) -> pd.DataFrame:
    """A table as the store returns it: sorted by key, the metric as Arrow float64 with some missing."""
    rng = np.random.default_rng(0)
    trials = -(-rows // EVALUATIONS)
    study = np.sort(np.arange(trials) % STUDIES)
    number = np.arange(trials) - np.searchsorted(study, study) + 1
    names = [f"dataset/model_{i:02d}/optimizer" for i in range(35)]
    step = np.tile(np.arange(EVALUATIONS) * 50, trials)[:rows]
    decay = np.repeat(rng.uniform(0.2, 3, trials), EVALUATIONS)[:rows]
    values = np.exp(-decay * step / step.max()) * 0.9 + rng.normal(0, 0.01, rows)
    missing = rng.random(rows) < 0.01
    return pd.DataFrame(
        {
            "workload": pd.Categorical.from_codes(np.repeat(study // 13, EVALUATIONS)[:rows], names),
            "batch_size": np.repeat(2 ** (study % 13), EVALUATIONS)[:rows].astype(np.int64),
            "trial": np.repeat(number, EVALUATIONS)[:rows].astype(np.int64),
            "step": step.astype(np.int64),
            ERROR: pd.Series(
                pd.arrays.ArrowExtensionArray(pa.chunked_array([pa.array(values, mask=missing)]))
            ),
        }
    )


def loop_over_rows(table: pd.DataFrame) -> np.ndarray:
    """One dictionary of first steps, filled row by row."""
    found: dict[tuple[str, int, int], float] = {}
    for row in table.to_dict("records"):
        key = (row["workload"], row["batch_size"], row["trial"])
        known = found.setdefault(key, -1.0)
        value = row[ERROR]
        if value is None or not value < GOAL.threshold:
            continue
        if known < 0 or row["step"] < known:
            found[key] = float(row["step"])
    return np.array(list(found.values()))


def loop_over_groups(table: pd.DataFrame) -> np.ndarray:
    """The usual notebook: each trial's frame, sorted by step, its first row below the goal."""
    found = []
    for _, trial in table.groupby(["workload", "batch_size", "trial"], observed=True):
        trial = trial.sort_values("step")
        hits = trial[trial[ERROR] < GOAL.threshold]
        found.append(float(hits["step"].iloc[0]) if len(hits) else -1.0)
    return np.array(found)


if __name__ == "__main__":
    main()
