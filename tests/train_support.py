"""Small training runs, some in processes of their own: TensorFlow's devices are fixed once it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

OPTIMIZERS: dict[str, dict[str, float]] = {
    "sgd": {"learning_rate": 0.2},
    "momentum": {"learning_rate": 0.05, "momentum": 0.9},
    "nesterov_momentum": {"learning_rate": 0.05, "momentum": 0.9},
    "adam": {"learning_rate": 0.01},
}


QUICK_PLAN = """
workload = "noisy_quadratic/quadratic/sgd"
batch_sizes = {batch_sizes}
trials = 3
{more}
[limits]
steps = {steps}
[evaluation]
dense_until = 2
ratio = 2.0
[goal]
metric = "train/loss"
threshold = 2.0
[space.learning_rate]
min_value = 0.001
max_value = 1.0
"""
"""A plan whose trials take a moment; ``more`` are further keys of its top."""


def quiet_environment(**more: str) -> dict[str, str]:
    """Environment of a child process in which TensorFlow says little."""
    return {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONPATH": str(ROOT), **more}


def child(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this module's `main` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.train_support", *arguments],
        cwd=ROOT,
        env=quiet_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        **options,
    )


def small_trainer(devices: Any, optimizer: str = "sgd", **options: Any) -> Any:
    """A trainer of a small network on digits, its global batch 64 unless told otherwise."""
    from batchscience.train.data import digits
    from batchscience.train.loop import Trainer
    from batchscience.train.models import forward_named, network
    from batchscience.train.optimizers import optimizer_named

    data_set = options.pop("data_set", None) or digits()
    forward = options.pop("forward", None) or forward_named("fc_16", data_set.outputs)
    options.setdefault("batch_size", 64)
    return Trainer(
        data_set,
        network(forward, data_set.input_spec()),
        optimizer_named(optimizer),
        devices=devices,
        **options,
    )


def small_trial(trainer: Any, settings: dict[str, float], *, steps: int = 12, **options: Any) -> Any:
    """A short trial, measured at steps 0, 1, 2, 4, 8 and the last."""
    from batchscience.train.loop import run_trial
    from batchscience.train.rules import EvaluationRule, Limits

    options.setdefault("rule", EvaluationRule(dense_until=2, ratio=2.0))
    options.setdefault("limits", Limits(steps=steps))
    options.setdefault("seed", (1, 2))
    return run_trial(trainer, settings, **options)


def normalised(ghost: int = 0) -> Callable[[Any, Any], Any]:
    """A network with batch norm over (ghost) batches."""
    import tensorflow as tf

    def forward(scope: Any, x: Any) -> Any:
        x = tf.nn.relu(scope.batch_norm(scope.dense(x, 16), ghost=ghost))
        return scope.dense(x, 10)

    return forward


def _on(device: str, **cases: dict[str, Any]) -> dict[str, Any]:
    from batchscience.train.devices import strategy_for

    devices = strategy_for(device)
    curves = {}
    for case, options in cases.items():
        optimizer = options.pop("optimizer", "sgd")
        outcome = small_trial(small_trainer(devices, optimizer, **options), OPTIMIZERS[optimizer])
        curves[case] = [[step, row] for step, row in outcome.rows]
    return curves


SPECIAL: dict[str, dict[str, Any]] = {
    "accumulated": {"accumulate": 4},
    "clipped": {"clip_norm": 0.05},
    "ghost": {"forward": normalised(8)},
    "batch_norm": {"forward": normalised()},
}


def _cases(
    xla: Sequence[str], *special: str, optimizers: Iterable[str] = OPTIMIZERS
) -> dict[str, dict[str, Any]]:
    cases = {name: {"optimizer": name, "compiled": name in xla} for name in optimizers}
    # Compiling takes most of the time, so XLA takes part in some of the cases only.
    return cases | {name: {"compiled": False, **SPECIAL[name]} for name in special}


def replicas(out: Path) -> None:
    """Curves of all optimizers and cases on 1, 2, 4 and 8 replicas."""
    # The largest number comes first: logical devices are made once.
    curves = {"8": _on("cpu:8", **_cases([], *SPECIAL)), "4": _on("cpu:4", **_cases([]))}
    curves["2"] = _on("cpu:2", **_cases(["sgd", "adam"]))
    curves["strategy"] = _on("cpu:1", **_cases(["sgd", "adam"], optimizers=["sgd", "adam"]))
    curves["1"] = _on("cpu", **_cases(["sgd", "adam"], *SPECIAL))
    out.write_text(json.dumps(curves))


def uneven(out: Path) -> None:
    """Say what a batch of 30 on 4 replicas is answered."""
    from batchscience.errors import TrainingError
    from batchscience.train.devices import strategy_for

    del out
    try:
        small_trainer(strategy_for("cpu:4"), batch_size=30)
    except TrainingError as error:
        sys.stdout.write(str(error))


def worker(out: Path) -> None:
    """Curves of all optimizers in one of several processes; each writes its own."""
    curves = _on("workers", **_cases(["sgd"]))
    index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    out.with_suffix(f".{index}.json").write_text(json.dumps(curves))


def workers(out: Path) -> None:
    """`worker` in two processes."""
    from batchscience.train.devices import run_local_workers

    command = [sys.executable, "-m", "tests.train_support", "worker", str(out)]
    sys.exit(run_local_workers(command, 2, environment=quiet_environment()))


def study(out: Path, *options: str) -> None:
    """A study on digits.

    Options: trials, steps, seconds between checkpoints, device, largest file in bytes (0 = any).
    """
    import resource

    from batchscience.train import EvaluationRule, Limits, Study, run_study, workload_named

    trials, steps, every, device, limit = options
    if int(limit):
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    from dataclasses import replace

    workload = replace(workload_named("digits/fc_16/sgd"), rule=EvaluationRule(dense_until=2, ratio=1.2))
    asked = Study(workload, 32, Limits(steps=int(steps)))

    def said(trial: int, status: str) -> None:
        sys.stdout.write(f"{trial} {status}\n")
        sys.stdout.flush()

    report = run_study(
        asked, out, trials=int(trials), device=device, checkpoint_every=float(every), on_trial=said
    )
    sys.stdout.write(json.dumps({"trained": report.trained, "found": report.found, "held": report.held}))


def main(what: str, out: str, *options: str) -> None:
    """Run one of the functions above."""
    {"replicas": replicas, "uneven": uneven, "worker": worker, "workers": workers, "study": study}[what](
        Path(out), *options
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
