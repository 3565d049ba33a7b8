"""Transition points with resampled limits for every workload of a store, against one fit at a time.

Usage: python benchmarks/transitions.py [--store DIR | --trials N] [--draws 999] [--peer-draws 20]

Without ``--store`` it simulates the published studies with their published numbers of trials and a few
evaluations each: what is measured does not depend on the length of a curve.  With ``--store`` the time from
the tables on disk to the steps to goal is measured too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from measure import report
from scipy.optimize import curve_fit

from batchscience.goals import Goal
from batchscience.ingest import ingest
from batchscience.paper import GOALS, PANELS, trials_used
from batchscience.regimes import Regimes, regimes_of_trials
from batchscience.results import as_steps, rank_of_best, search_of
from batchscience.simulate import simulate
from batchscience.store import Store

K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", type=Path, help="tables of a simulated or the real archive")
    parser.add_argument("--trials", type=int, help="trials of each study, instead of the published numbers")
    parser.add_argument("--draws", type=int, default=999)
    parser.add_argument("--peer-draws", type=int, default=20)
    options = parser.parse_args()
    # Short studies are the option's doing, and best trials are not looked at.
    warnings.filterwarnings("ignore", message=".*fewer than|the studies have between")
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(options.store) if options.store else simulated(Path(scratch), options.trials)
        measure(store, options.draws, options.peer_draws)


def simulated(folder: Path, trials: int | None) -> Store:
    archive = folder / "simulated.tar.gz"
    simulate(archive, trials=trials, evaluations=30, seed=0)
    report_of = ingest(archive, folder / "tables")
    assert not report_of.problems, report_of.problems[:3]
    return Store(folder / "tables")


def measure(store: Store, draws: int, peer_draws: int) -> None:
    counts = store.counts()
    goals = {name: goal for name in store.workloads() if (goal := goal_of(name)) is not None}
    searches: dict[str, pd.DataFrame] = {}
    began = time.perf_counter()
    for name, goal in goals.items():
        searches[name] = search_of(store, name, goal, first=trials_used(name))
    reading = time.perf_counter() - began
    began = time.perf_counter()
    answers = [
        regimes_of_trials(trials, workload=name, rng=np.random.default_rng(0), k=K, draws=draws)
        for name, trials in searches.items()
    ]
    seconds = time.perf_counter() - began
    studies = int(counts["workload"].isin(list(goals)).sum())
    rows = int(counts["measurements"].sum())
    print(f"{len(goals)} workloads, {studies} studies, {rows:,} evaluations, {draws} draws each")
    print(f"steps to goal of all, from the tables on disk: {reading:.1f} s")
    report("seconds for the transition points of all, with limits", seconds, 60, at_most=True)
    report("seconds from the tables on disk", seconds + reading, 60, at_most=True)
    compare_with_one_fit_at_a_time(answers, searches, draws, peer_draws)


def goal_of(workload: str) -> Goal | None:
    """The paper's goal of a workload; the quality workloads and two others have one only by analogy."""
    for panel in PANELS:
        for series in panel.series:
            if series.workload == workload and series.goal is not None:
                return series.goal
    return next((goal for name, goal in GOALS.items() if workload.endswith(name)), None) or (
        Goal("val/classification_error", 0.03) if workload.startswith("mnist/fc_") else None
    )


def compare_with_one_fit_at_a_time(
    answers: list[Regimes], searches: dict[str, pd.DataFrame], draws: int, peer_draws: int
) -> None:
    answer = max((a for a in answers if a.law), key=lambda a: len(a.law.batch_sizes))
    trials = searches[answer.workload]
    began = time.perf_counter()
    regimes_of_trials(trials, workload=answer.workload, rng=np.random.default_rng(0), k=K, draws=draws)
    ours = (time.perf_counter() - began) / draws
    began = time.perf_counter()
    peer = plain_bootstrap(trials, peer_draws, np.random.default_rng(0))
    theirs = (time.perf_counter() - began) / peer_draws
    medians = np.median(answer.distribution.critical_batch_size), np.median(peer)
    print("critical batch size of {}: {:,.0f} here, {:,.0f} there".format(answer.workload, *medians))
    report("times faster a draw than resampling trials and curve_fit", theirs / ours, 1, at_most=False)


def plain_bootstrap(trials: pd.DataFrame, draws: int, rng: np.random.Generator) -> list[float]:
    """Resample the trials of each study, sort them, fit the knee to the best of k, one draw at a time."""
    studies = {size: as_steps(group["steps"]) for size, group in trials.groupby("batch_size")}
    found = []
    for _ in range(draws):
        sizes, steps = [], []
        for size, times in studies.items():
            again = np.sort(rng.choice(times, len(times)))
            if np.isfinite(best := again[rank_of_best(K, len(times)) - 1]):
                sizes.append(size)
                steps.append(best)
        x, y = np.log(sizes), np.log(steps)
        start = [y.min(), float(np.median(x)), 0.0]
        fit, _ = curve_fit(log_knee, x, y, p0=start, maxfev=10_000)
        found.append(float(np.exp(fit[1])))
    return found


def log_knee(x: np.ndarray, floor: float, critical: float, log_sharpness: float) -> np.ndarray:
    sharpness = np.exp(np.clip(log_sharpness, -2, 3))
    return floor + np.logaddexp(0, sharpness * (critical - x)) / sharpness


if __name__ == "__main__":
    main()
