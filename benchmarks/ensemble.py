"""Trial-steps per second of many trials at once, against one at a time and `keras.Model.fit`.

Usage: python benchmarks/ensemble.py [--rounds 5] [--batch-size 16]…

All rates are measured in turn within one run, each side in processes of its own, as they would be for a
user: how TensorFlow uses its threads is set once in a process.  The trials at once are dealt out to one
process for each processor, as by ``--engine processes --together``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import tensorflow as tf
from measure import Side, report, timed

from batchscience.train import EvaluationRule, Limits, workload_named
from batchscience.train.data import DataSet, Split
from batchscience.train.devices import strategy_for
from batchscience.train.ensemble import Ensemble, Member, run_trials
from batchscience.train.loop import Trainer, run_trial
from batchscience.train.study import Study, trainer_of

TRIALS = 64
ALONE = 4
HIDDEN = (100, 100)
NAME = "mnist1d/fc_100_100/momentum"
BATCH_SIZES = (1, 16, 64, 256)
PROMISED_AT = 16
SETTINGS = {"learning_rate": 1e-3, "momentum": 0.9}
RARELY = EvaluationRule(every=1_000_000, dense_until=0)
"""Step 0 and the last one."""

Rates = Callable[[], tuple[float, float]]
"""Trial-steps per second of updates alone, and with all measurements."""


def together(trainer: Trainer, rule: EvaluationRule, steps: int, trials: int) -> Rates:
    """Many trials at once."""
    ensemble = Ensemble(trainer)
    members = [Member(trial, SETTINGS, (1, trial)) for trial in range(trials)]

    def rates() -> tuple[float, float]:
        began = time.perf_counter()
        came = list(run_trials(ensemble, members, rule=rule, limits=Limits(steps=steps)))
        whole = time.perf_counter() - began
        return trials * steps / sum(outcome.seconds for _, outcome in came), trials * steps / whole

    return rates


def one_at_a_time(trainer: Trainer, rule: EvaluationRule, steps: int) -> Rates:
    """A few of them, one after another."""

    def rates() -> tuple[float, float]:
        began = time.perf_counter()
        came = [
            run_trial(trainer, SETTINGS, seed=(1, trial), rule=rule, limits=Limits(steps=steps))
            for trial in range(ALONE)
        ]
        whole = time.perf_counter() - began
        return ALONE * steps / sum(outcome.seconds for outcome in came), ALONE * steps / whole

    return rates


def fit(data_set: DataSet, batch_size: int, steps: int) -> Callable[[], float]:
    """Steps per second by Keras as a user writes it: cached, shuffled, and never measured."""
    train = data_set.train
    assert isinstance(train, Split)
    layers = [keras.layers.Dense(width, activation="relu") for width in HIDDEN]
    model = keras.Sequential(
        [keras.Input(train.inputs.shape[1:]), *layers, keras.layers.Dense(data_set.outputs)]
    )
    model.compile(
        keras.optimizers.SGD(SETTINGS["learning_rate"], momentum=SETTINGS["momentum"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    batches = tf.data.Dataset.from_tensor_slices((train.inputs, train.targets)).cache().shuffle(train.size)
    batches = batches.repeat().batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    model.fit(batches, steps_per_epoch=10, epochs=1, verbose=0, shuffle=False)

    def rate() -> float:
        return steps / timed(
            lambda: model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)
        )

    return rate


def prepared(batch_size: int) -> tuple[Trainer, EvaluationRule, int]:
    """The programs of a study, its evaluation rule, and how many steps are timed."""
    study = Study(workload_named(NAME), batch_size, Limits(steps=1))
    steps = min(1024, max(50, 8192 // batch_size))
    return trainer_of(study, strategy_for("cpu")), study.workload.rule, steps


def many(batch_size: int, trials: int) -> list[Rates]:
    """Trials at once in one of the processes, with updates alone and with all measurements; compiled."""
    os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
    trainer, rule, steps = prepared(batch_size)
    return compiled([together(trainer, RARELY, 4 * steps, trials), together(trainer, rule, steps, trials)])


def alone(batch_size: int) -> list[Rates]:
    """One at a time, with updates alone and with all measurements; compiled."""
    trainer, rule, steps = prepared(batch_size)
    return compiled([one_at_a_time(trainer, RARELY, 4 * steps), one_at_a_time(trainer, rule, steps)])


def compiled(rates: list[Rates]) -> list[Rates]:
    """The same, after a first call of each."""
    for compiling in rates:
        compiling()
    return rates


def at_once(sides: Sequence[Side], number: int) -> Rates:
    """The sum of the rates of all processes at the same time."""

    def rates() -> tuple[float, float]:
        with ThreadPoolExecutor(len(sides)) as pool:
            came = list(pool.map(lambda side: side.measure(number)(), sides))
        return sum(updates for updates, _ in came), sum(whole for _, whole in came)

    return rates


def fits(batch_size: int) -> list[Callable[[], float]]:
    """Keras, and large matrix products on all threads."""
    study = Study(workload_named(NAME), batch_size, Limits(steps=1))
    return [fit(study.workload.loaded(None), batch_size, 500), rate_of_products]


def rate_of_products() -> float:
    """Floating-point operations a second of this machine's large matrix products."""
    size = 2048
    a = tf.random.normal((size, size))
    timed(lambda: tf.matmul(a, a).numpy())
    return 2.0 * size**3 / min(timed(lambda: tf.matmul(a, a).numpy()) for _ in range(5))


def operations(trainer: Trainer) -> float:
    """Floating-point operations of a step's products: forth, and back to weights and hidden layers."""
    products = [
        2.0 * w.shape[0] * w.shape[1] * trainer.batch_size
        for w in trainer.network.weights
        if len(w.shape) == 2
    ]
    return 3 * sum(products) - products[0]


def main() -> None:
    """Print the rates and their ratios at each batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, action="append", help="by default 1, 16, 64 and 256")
    options = parser.parse_args()
    rounds = options.rounds
    for batch_size in options.batch_size or BATCH_SIZES:
        trainer, _, steps = prepared(batch_size)
        processes = os.cpu_count() or 1
        ours = [Side(many, batch_size, TRIALS // processes) for _ in range(processes)]
        single, theirs = Side(alone, batch_size), Side(fits, batch_size)
        by_fit, products = theirs.measure(0), theirs.measure(1)()
        measures = [at_once(ours, 0), single.measure(0), at_once(ours, 1), single.measure(1)]
        came = []
        for _ in range(rounds):
            (at_one, _), (apart, _), (_, whole_together), (_, whole_apart) = (rates() for rates in measures)
            came.append((at_one, apart, by_fit(), whole_together, whole_apart))
        for side in (*ours, single, theirs):
            side.end()
        us = [1e6 / statistics.median(column) for column in zip(*came, strict=True)]
        share = operations(trainer) * 1e6 / us[0] / products
        print(f"{os.cpu_count()} processors, large matrix products {products / 1e9:.0f} GFLOP/s")
        print(
            f"{NAME} at batch {batch_size}, µs per trial-step: {us[0]:.1f} with {TRIALS} at once "
            f"in {processes} processes ({100 * share:.0f} % of the rate of large products), "
            f"{us[1]:.1f} one at a time, "
            f"{us[2]:.1f} by fit; "
            f"with all measurements of {steps} steps {us[3]:.1f} and {us[4]:.1f}"
        )
        against_fit = statistics.median(row[0] / row[2] for row in came)
        against_alone = statistics.median(row[0] / row[1] for row in came)
        if batch_size == PROMISED_AT:
            report(f"{TRIALS} at once / fit, batch {batch_size}", against_fit, 25, at_most=False)
            report(f"{TRIALS} at once / one at a time, batch {batch_size}", against_alone, 2, at_most=False)
        else:
            print(f"{TRIALS} at once: {against_fit:.1f} × fit, {against_alone:.2f} × one at a time")


if __name__ == "__main__":
    main()
