"""Steps per second of one trial against `keras.Model.fit`, and what a strategy of one device costs.

Every line prints a ratio of times of one run on one machine.  Both sides run in processes of their own, as
they would for a user, and are measured in turn: how TensorFlow uses its threads is set once in a process,
and a trial sets it otherwise than Keras finds it.  Run it alone::

    python benchmarks/training.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from measure import Side

from batchscience.train.data import DataSet, Split, digits, mnist1d
from batchscience.train.devices import Devices, strategy_for
from batchscience.train.loop import Trainer
from batchscience.train.models import forward_named, network
from batchscience.train.optimizers import optimizer_named


def images(count: int = 1024) -> DataSet:
    """Random images of MNIST's size: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    split = Split(
        rng.random((count, 28, 28, 1)).astype(np.float32), rng.integers(0, 10, count).astype(np.int32)
    )
    return DataSet("images", "classification", 10, split)


DATA_SETS: dict[str, Callable[[], DataSet]] = {"digits": digits, "mnist1d": mnist1d, "images": images}


def fully_connected(shape: tuple[int, ...], widths: Sequence[int]) -> keras.Model:
    """The Keras model of the same layers."""
    hidden = [keras.layers.Dense(width, activation="relu") for width in widths]
    return keras.Sequential([keras.Input(shape), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)])


def simple_cnn() -> keras.Model:
    """The Keras model of ``simple_cnn_base``."""
    layers = []
    for channels in (32, 64):
        layers += [
            keras.layers.Conv2D(channels, 5, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
        ]
    dense = [keras.layers.Dense(1024, activation="relu"), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input((28, 28, 1)), *layers, keras.layers.Flatten(), *dense])


def ours(data_set: DataSet, model: str, batch_size: int, steps: int, devices: Devices) -> Callable[[], float]:
    """A function that returns seconds per step of our loop."""
    net = network(forward_named(model, data_set.outputs), data_set.input_spec())
    trainer = Trainer(data_set, net, optimizer_named("sgd"), batch_size=batch_size, devices=devices)
    scalars = trainer.scalars({"learning_rate": 0.01})
    examples = trainer.examples([0])
    state = trainer.start(np.random.default_rng(0))
    state = trainer.advance(state, examples, 0, 1, scalars).state

    def measure() -> float:
        nonlocal state
        begun, done = time.perf_counter(), 0
        while done < steps:
            count = min(steps - done, trainer.steps_per_call)
            progress = trainer.advance(state, examples, done, count, scalars)
            state, done = progress.state, done + progress.steps
        return (time.perf_counter() - begun) / steps

    return measure


def fit(
    data_set: DataSet, model: keras.Model, batch_size: int, steps: int, *, steps_per_execution: int = 1
) -> Callable[[], float]:
    """A function that returns seconds per step of `keras.Model.fit` as a user writes it."""
    assert isinstance(data_set.train, Split)
    size = data_set.train.size
    batches = (
        tf.data.Dataset.from_tensor_slices((data_set.train.inputs, data_set.train.targets))
        .cache()
        .shuffle(size)
        .repeat()
        .batch(batch_size, drop_remainder=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    model.compile(
        keras.optimizers.SGD(0.01),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=steps_per_execution,
    )
    model.fit(batches, steps_per_epoch=steps_per_execution, epochs=1, verbose=0, shuffle=False)

    def measure() -> float:
        begun = time.perf_counter()
        model.fit(batches, steps_per_epoch=steps, epochs=1, verbose=0, shuffle=False)
        return (time.perf_counter() - begun) / steps

    return measure


def loops(
    data: str, model: str, batch_size: int, steps: int, places: Sequence[str]
) -> list[Callable[[], float]]:
    """Seconds per step of our loop on each device."""
    data_set = DATA_SETS[data]()
    return [ours(data_set, model, batch_size, steps, strategy_for(place)) for place in places]


def fits(
    data: str, widths: Sequence[int], batch_size: int, executions: dict[int, int]
) -> list[Callable[[], float]]:
    """Seconds per step of `fit` at each number of steps per execution (to steps); a CNN without `widths`."""
    data_set = DATA_SETS[data]()
    assert isinstance(data_set.train, Split)
    shape = data_set.train.inputs.shape[1:]
    return [
        fit(
            data_set,
            fully_connected(shape, widths) if widths else simple_cnn(),
            batch_size,
            steps,
            steps_per_execution=count,
        )
        for count, steps in executions.items()
    ]


def ratio(name: str, slow: Callable[[], float], fast: Callable[[], float], rounds: int, floor: float) -> bool:
    """Print how many times longer the first takes; measured in turn, the median of the rounds counts."""
    pairs = [(slow(), fast()) for _ in range(rounds)]
    ratios = [a / b for a, b in pairs]
    middle = statistics.median(ratios)
    us = [1e6 * statistics.median(times) for times in zip(*pairs, strict=True)]
    verdict = "holds" if middle >= floor else "MISSED"
    print(
        f"{name}: {middle:.2f} × (rounds {min(ratios):.2f} to {max(ratios):.2f}; {us[0]:.0f} µs against "
        f"{us[1]:.0f} µs a step); promised {floor:g} ×: {verdict}"
    )
    return middle >= floor


def main() -> None:
    """Print all ratios; exit with 1 if one is below what is promised."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    held = []
    for data, model, widths, batch_size in (
        ("digits", "fc_128_128_128", (128, 128, 128), 16),
        ("mnist1d", "fc_100_100", (100, 100), 64),
    ):
        name = f"{data}/{model} at batch {batch_size}"
        loop = Side(loops, data, model, batch_size, 8000, ("cpu", "cpu:1"))
        keras_fit = Side(fits, data, widths, batch_size, {1: 1000, 100: 2000})
        held += [
            ratio(f"{name}: fit / loop", keras_fit.measure(0), loop.measure(), rounds, 10),
            ratio(
                f"{name}: fit with steps_per_execution=100 / loop",
                keras_fit.measure(1),
                loop.measure(),
                rounds,
                3,
            ),
            ratio(
                f"{name}: no strategy / strategy of one device",
                loop.measure(0),
                loop.measure(1),
                rounds,
                1 / 1.1,
            ),
        ]
        loop.end()
        keras_fit.end()
    loop = Side(loops, "images", "simple_cnn_base", 256, 16, ("cpu",))
    keras_fit = Side(fits, "images", (), 256, {1: 16})
    name = "simple_cnn_base at batch 256: fit / loop"
    held.append(ratio(name, keras_fit.measure(), loop.measure(), rounds, 1))
    loop.end()
    keras_fit.end()
    raise SystemExit(0 if all(held) else 1)


if __name__ == "__main__":
    main()
