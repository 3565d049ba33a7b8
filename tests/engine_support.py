"""Studies that are killed: drivers and workers as processes of their own, and a log of what they began."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from batchscience.layout import finished_trials
from batchscience.train import EvaluationRule, Limits, Study, workload_named
from batchscience.train.engine import Engine, Train, engine_named
from batchscience.train.study import Sweep, run_sweeps
from batchscience.train.work import TrialWork

SEED = 3


def small_study(steps: int) -> Study:
    """Stochastic gradient descent on the noisy quadratic at batch size 8."""
    workload = workload_named("noisy_quadratic/quadratic/sgd")
    return Study(replace(workload, rule=EvaluationRule(dense_until=2, ratio=1.5)), 8, Limits(steps=steps))


@dataclass(frozen=True)
class LoggedWork(TrialWork):
    """The trials of a study; a line of `log` for each that is begun: trial, process, nanoseconds."""

    log: str = ""

    def _trained(self, trial: int, *rest: Any) -> Any:
        with Path(self.log).open("a") as file:
            file.write(f"{trial} {os.getpid()} {time.time_ns()}\n")
        return super()._trained(trial, *rest)

    def __reduce__(self) -> Any:
        received, arguments = super().__reduce__()
        return _logged, (received(*arguments), self.log)


def _logged(work: TrialWork, log: str) -> LoggedWork:
    own = {field.name: getattr(work, field.name) for field in fields(TrialWork)}
    return LoggedWork(**own, log=log)


def train(
    out: Path,
    log: Path,
    *,
    trials: int,
    steps: int,
    engine: Engine,
    on_trial: Callable[[Sweep, Any], None] | None = None,
) -> Sweep:
    """Train what the folder lacks, and log what is begun."""
    sweep = Sweep(
        small_study(steps),
        out,
        trials=trials,
        seed=SEED,
        device="cpu",
        engine=engine,
        checkpoint_every=0.05,
    )
    sweep.work = _logged(sweep.work, str(log))
    run_sweeps([sweep], engine, on_trial=on_trial)
    return sweep


def begun(log: Path) -> list[tuple[int, int, int]]:
    """Lines of the log."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(map(int, line.split())) for line in lines]  # type: ignore[misc]


def driver(out: str, log: str, trials: str, steps: str, engine: str, workers: str) -> None:
    """Train a study."""
    named = engine_named(engine, workers=int(workers) if int(workers) else None)
    with named as used:
        train(Path(out), Path(log), trials=int(trials), steps=int(steps), engine=used)


def kills(out: str, log: str, trials: str, steps: str, count: str) -> None:
    """Train a study with the engine ``local``, killed at so many random moments.

    Prints the exit status of each driver and the number of trials finished by then.

    The drivers are forked from this process, which has imported TensorFlow and run nothing, so that a new one
    need not import it.
    """
    import keras
    import scipy.stats
    import tensorflow

    import batchscience.train.loop

    assert {keras, scipy.stats, tensorflow, batchscience.train.loop}
    rng = random.Random(5)
    held = []
    place = Path(out) / small_study(int(steps)).name
    for number in range(int(count) + 1):
        pid = os.fork()
        if pid == 0:
            driver(out, log, trials, steps, "local", "0")
            os._exit(0)
        if number < int(count):
            # The first trial of a driver also compiles; moments after it are as likely as within it.
            until = len(begun(Path(log))) + rng.randint(1, 4)
            while len(begun(Path(log))) < until and not os.waitid(
                os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT
            ):
                time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.1))
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        held.append((os.waitstatus_to_exitcode(status), len(finished_trials(place))))
    sys.stdout.write(json.dumps(held))


# --------------------------------------------------------------------------- without TensorFlow


@dataclass(frozen=True)
class Descent:
    """A trial's loss after gradient descent on a quadratic, and the process that trained it."""

    trial: int
    loss: float
    process: int


@dataclass(frozen=True)
class DescentWork:
    """Trials of one learning rate each.

    Parameters
    ----------
    seconds : float
        What a trial takes.
    deadly : int
        Number of a trial that kills its worker.
    failing : tuple of int
        Numbers of trials that raise.
    log : str
        File to which a line is added for each trial begun.
    """

    seconds: float = 0.0
    deadly: int = 0
    failing: tuple[int, ...] = ()
    log: str = ""

    def begin(self) -> Train:
        return self.train

    def train(self, trials: Sequence[int]) -> Iterable[Descent]:
        for trial in trials:
            if self.log:
                with Path(self.log).open("a") as file:
                    file.write(f"{trial} {os.getpid()} {time.time_ns()}\n")
            if trial in self.failing:
                raise ZeroDivisionError(f"trial {trial} divides by zero")
            if trial == self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            x, curvatures = np.ones(4), np.arange(1.0, 5.0)
            for _ in range(20):
                x = x - trial / 100 * curvatures * x
            time.sleep(self.seconds)
            yield Descent(trial, float(curvatures @ (x * x) / 2), os.getpid())


def orphans(log: str) -> None:
    """A driver that waits for long trials."""
    from batchscience.train.engine import Task

    with engine_named("processes", workers=2) as engine:
        for _ in engine.run(Task(DescentWork(seconds=60.0, log=log), (t,)) for t in (1, 2)):
            pass


if __name__ == "__main__":
    # A worker imports what it is sent by name, so that must not be named after this process's own "__main__".
    from tests import engine_support

    getattr(engine_support, sys.argv[1])(*sys.argv[2:])
