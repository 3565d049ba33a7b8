"""Engines against each other, and a study whose driver and workers are killed at random moments.

``python benchmarks/engines.py [--trials N] [--steps N] [--kills N]``; some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from measure import report

from batchscience.layout import finished_trials
from batchscience.train import EvaluationRule, Limits, Study, run_study, workload_named
from batchscience.train.engine import Engine, Processes, RayCluster
from tests.engine_support import begun, small_study


def study(steps: int) -> Study:
    """Trials of some seconds."""
    workload = workload_named("mnist1d/fc_100_100/sgd")
    return Study(replace(workload, rule=EvaluationRule(dense_until=2, ratio=2.0)), 64, Limits(steps=steps))


def seconds_of(engine: Engine, asked: Study, trials: int, folder: Path) -> tuple[float, float]:
    """Seconds of a study whose workers have begun, and the mean seconds that a trial spends in updates."""
    run_study(asked, folder, trials=2, engine=engine)  # imports, loads and compiles in both workers
    began = time.perf_counter()
    report_ = run_study(asked, folder, trials=2 + trials, engine=engine)
    took = time.perf_counter() - began
    spent = [
        json.loads((report_.folder / str(trial) / "facts.json").read_text())["seconds"]
        for trial in report_.trained
    ]
    return took, statistics.mean(spent)


def overhead(trials: int, steps: int, repeats: int) -> None:
    """A local Ray cluster of two workers against two processes, in turn."""
    ratios, long = [], []
    with Processes(2) as processes, RayCluster("local", {"CPU": 1}) as cluster:
        for repeat in range(repeats):
            took = {}
            for engine in (processes, cluster) if repeat % 2 else (cluster, processes):
                with tempfile.TemporaryDirectory() as folder:
                    took[engine.name], each = seconds_of(engine, study(steps), trials, Path(folder))
                    long.append(each)
                outside = 1 - trials * each / (2 * took[engine.name])
                print(
                    f"{trials} trials with {engine.name}: {took[engine.name]:.1f} s, "
                    f"{each:.1f} s each in updates, {outside:.1%} of both workers' time outside them",
                    flush=True,
                )
            ratios.append(took["ray"] / took["processes"])
    print(f"a trial spends {statistics.mean(long):.1f} s in updates")
    report("Ray over processes, the same study on two workers", statistics.median(ratios), 1.1, at_most=True)


def killed(kills: int, trials: int, steps: int) -> None:
    """A study with two processes, killed at random moments; compared with an undisturbed one."""
    rng = random.Random(11)
    with tempfile.TemporaryDirectory() as folder:
        calm, torn = Path(folder) / "calm", Path(folder) / "torn"
        torn.mkdir()
        log = torn / "log"
        command = [sys.executable, "-m", "tests.engine_support", "driver"]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}

        def start(out: Path) -> subprocess.Popen[bytes]:
            arguments = [str(out), str(out / "log"), str(trials), str(steps), "processes", "2"]
            return subprocess.Popen(
                [*command, *arguments],
                env=environment,
                cwd=Path(__file__).parent.parent,
                stderr=subprocess.DEVNULL,
            )

        calm.mkdir()
        start(calm).wait()
        place = torn / small_study(steps).name
        victims: list[str] = []
        driver = start(torn)
        while len(victims) < kills:
            until = len(begun(log)) + rng.randint(1, 6)
            while len(begun(log)) < until and driver.poll() is None:
                time.sleep(0.005)
            if driver.poll() is not None:
                break
            time.sleep(rng.uniform(0.0, 0.3))
            whom = rng.choice(("driver", "worker"))
            process = driver.pid if whom == "driver" else begun(log)[-1][1]
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
            victims.append(whom)
            print(f"killed a {whom} at {len(finished_trials(place))} of {trials} trials", flush=True)
            if whom == "driver":
                driver.wait()
                driver = start(torn)
        driver.wait()
        same = all(
            (place / str(trial) / name).read_bytes()
            == (calm / small_study(steps).name / str(trial) / name).read_bytes()
            for trial in range(1, trials + 1)
            for name in ("metadata.json", "measurements.csv")
        )
        late = [
            trial
            for trial, _, when in begun(log)
            if when > (place / str(trial)).stat().st_ctime_ns + 10_000_000
        ]
    report("killed at random moments", len(victims), kills, at_most=False)
    report("trials that differ from the undisturbed study's (0 or 1)", float(not same), 0, at_most=True)
    report("trials begun again after they had finished", len(late), 0, at_most=True)


def main() -> None:
    """Print both figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--only", choices=("overhead", "kills"))
    given = parser.parse_args()
    if given.only != "kills":
        overhead(given.trials, given.steps, given.repeats)
    if given.only != "overhead":
        killed(given.kills, 80, 2000)


if __name__ == "__main__":
    main()
