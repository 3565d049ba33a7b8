"""One trial: many updates per call of a compiled program, measured on whole splits at declared steps."""

from __future__ import annotations

import functools
import json
import math
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..errors import TrainingError
from ..goals import Goal
from ..layout import COMPLETE, INCOMPLETE, INFEASIBLE, Curve
from .data import DataSet, Split, training_order
from .devices import Devices, keep_programs_on_their_thread
from .models import Network
from .optimizers import DECAY_DEFAULTS, Optimizer, decayed_learning_rate
from .rules import EvaluationRule, Limits, NoiseRule, Pruning
from .tasks import TASKS

Array = NDArray[Any]

BATCH_LOSS = "train/batch_loss"
"""Column of the mean training loss over the global batch of the latest step, before its update."""

MOST_STEPS_PER_CALL = 4096
ORDER_BYTES_PER_CALL = 1 << 20
STREAM_BYTES_PER_CALL = 1 << 28
EXAMPLES_PER_EVALUATION_BATCH = 512


@dataclass(slots=True)
class State:
    """What training changes, as it lies on the devices."""

    weights: list[Any]
    slots: list[Any]
    statistics: list[Any]


class Trainer:
    """The compiled programs of a study: its trials differ in settings, seed and order of examples only.

    Parameters
    ----------
    data_set : DataSet
    network : Network
    optimizer : Optimizer
    batch_size : int
        Examples of one update, over all replicas and accumulated parts.
    devices : Devices
    accumulate : int, default 1
        Parts into which each replica divides its share, to need less memory; one update follows all of them.
    clip_norm : float, optional
        Largest Euclidean norm of the gradient of the mean loss over the global batch; larger ones are
        scaled down to it.
    compiled : bool, optional
        Whether XLA compiles the steps.  By default it does, except for convolutions on a CPU, which it runs
        many times slower than TensorFlow's kernels.
    train_examples : int, default 10000
        The ``train/`` columns are measured on so many of the first training examples (all, if there are
        fewer).
    together : bool, default False
        Whether an `Ensemble` will train several trials at once: then TensorFlow keeps its threads, which
        they share.  Otherwise a compiled trial on a CPU stays on one
        (`devices.keep_programs_on_their_thread`).

    Raises
    ------
    TrainingError
        If the batch does not split evenly over the replicas, or is larger than the training set.

    Notes
    -----
    Each replica adds up the loss and the gradients of its examples; the sums are added over the
    replicas and divided by the number of examples of the global batch (of words, for language); then
    all replicas make the same single update.  So the curve depends on the batch size and not on who
    computes it, to rounding.  The one exception is batch norm, which sees no more than a replica's
    share.
    """

    def __init__(
        self,
        data_set: DataSet,
        network: Network,
        optimizer: Optimizer,
        *,
        batch_size: int,
        devices: Devices,
        accumulate: int = 1,
        clip_norm: float | None = None,
        compiled: bool | None = None,
        train_examples: int = 10_000,
        together: bool = False,
    ) -> None:
        self.data_set, self.network, self.optimizer = data_set, network, optimizer
        self.batch_size, self.devices, self.accumulate = batch_size, devices, accumulate
        self.share = devices.share(batch_size, accumulate)
        self.clip_norm = clip_norm
        # Asking for the order once refuses a batch that the training set cannot fill.
        training_order(data_set.train.size, batch_size, seed=(0,), with_replacement=data_set.with_replacement)
        self.compiled = compiled
        if compiled is None:
            self.compiled = devices.kind != "cpu" or not network.convolutional
        if self.compiled and devices.kind == "cpu" and not together:
            keep_programs_on_their_thread()
        self._task = TASKS[data_set.task]
        self._jit = tf.function(jit_compile=True, autograph=False) if self.compiled else (lambda f: f)
        self._advance = tf.function(self._advance_all, autograph=False)
        self._measure = tf.function(self._measure_all, autograph=False)
        self._sums_compiled = self._jit(self._sums)
        self._update_compiled = self._jit(self._update)
        self._many_compiled = self._jit(self._many)
        self._measure_compiled = self._jit(self._measure_local)
        self._resident: tuple[Any, Any] | None = None
        if isinstance(data_set.train, Split):
            self._resident = devices.copied(data_set.train.inputs), devices.copied(data_set.train.targets)
        self.steps_per_call = self._steps_per_call()
        self._parts = self._evaluation_parts(train_examples)
        self._packing: Any = None

    # ------------------------------------------------------------------ settings and state

    def complete(self, settings: Mapping[str, float]) -> dict[str, float]:
        """Settings with the defaults of those that are not given.

        Raises
        ------
        TrainingError
            If nothing uses one of them, or there is no learning rate.
        """
        known = {**DECAY_DEFAULTS, "label_smoothing": 0.0, **self.optimizer.defaults}
        for name in settings:
            if name not in known and name != "learning_rate":
                raise TrainingError(
                    f"setting {name!r} is used by nothing in {self.data_set.name}/{self.optimizer.name}; "
                    f"known are learning_rate, {', '.join(sorted(known))}"
                )
        if "learning_rate" not in settings:
            raise TrainingError("the search space and the fixed settings lack 'learning_rate'")
        return {**known, **{name: float(value) for name, value in settings.items()}}

    def start(self, rng: np.random.Generator) -> State:
        """First weights, drawn from `rng`, on every replica."""
        weights, statistics = self.network.drawn(rng)
        slots = [np.zeros_like(w) for _ in range(self.optimizer.slots) for w in weights]
        return self.placed([*weights, *slots, *statistics])

    def placed(self, arrays: Sequence[Array]) -> State:
        """The state of arrays in the order of `arrays`."""
        there = [self.devices.copied(array) for array in arrays]
        w = len(self.network.weights)
        s = w * (1 + self.optimizer.slots)
        return State(there[:w], there[w:s], there[s:])

    def arrays(self, state: State) -> list[Array]:
        """Weights, slots and statistics as arrays, in this order."""
        everything = [*state.weights, *state.slots, *state.statistics]
        return [np.asarray(self.devices.first(tensor)) for tensor in everything]

    def scalars(self, settings: Mapping[str, float]) -> dict[str, Any]:
        """Settings as tensors."""
        return {name: tf.constant(value, tf.float32) for name, value in self.complete(settings).items()}

    # ------------------------------------------------------------------ updates

    def _steps_per_call(self) -> int:
        count = max(1, min(MOST_STEPS_PER_CALL, ORDER_BYTES_PER_CALL // (4 * self.batch_size)))
        if self._resident is None:
            assert not isinstance(self.data_set.train, Split)
            inputs, targets = next(self.data_set.train.batches(1, seed=None))
            step_bytes = self.batch_size * (inputs.nbytes + targets.nbytes)
            count = max(1, min(count, STREAM_BYTES_PER_CALL // max(1, step_bytes)))
        return count

    def _sums(
        self, weights: Any, statistics: Any, inputs: Any, targets: Any, mine: Any, settings: Any
    ) -> tuple[list[Any], list[Any]]:
        """Sums over a replica's examples: [loss, weight, gradients…], and the new statistics."""

        def part(examples: Any, statistics: Any) -> tuple[list[Any], list[Any]]:
            x = self.data_set.prepare(tf.gather(inputs, examples))
            y = tf.gather(targets, examples)
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(weights)
                outputs, moved = self.network.apply(weights, statistics, x, True)
                losses, counts = self._task.loss(outputs, y, settings)
                total = tf.reduce_sum(losses * counts)
            gradients = tape.gradient(total, weights, unconnected_gradients=tf.UnconnectedGradients.ZERO)
            dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
            return [total, tf.reduce_sum(counts), *dense], moved

        if self.accumulate == 1:
            return part(mine, statistics)
        rows = tf.reshape(mine, (self.accumulate, self.share))
        zeros = [tf.constant(0.0), tf.constant(0.0), *(tf.zeros_like(w) for w in weights)]

        def body(i: Any, sums: Any, statistics: Any) -> tuple[Any, ...]:
            more, moved = part(rows[i], statistics)
            return i + 1, [a + b for a, b in zip(sums, more, strict=True)], moved

        _, sums, moved = tf.while_loop(
            lambda i, *_: i < self.accumulate, body, (tf.constant(0), zeros, list(statistics))
        )
        return sums, moved

    def _update(
        self, weights: Any, slots: Any, sums: Any, step: Any, settings: Any
    ) -> tuple[list[Any], list[Any], Any]:
        """One update from the sums over the global batch, and the mean loss."""
        # A batch of nothing but padding must not divide by zero.
        count = tf.maximum(sums[1], 1.0)
        gradients = [gradient / count for gradient in sums[2:]]
        if self.clip_norm is not None:
            # Written out, as tf.clip_by_global_norm cannot be mapped over many trials.
            norm = tf.sqrt(tf.add_n([tf.reduce_sum(g * g) for g in gradients]))
            scale = self.clip_norm * tf.minimum(1.0 / norm, 1.0 / self.clip_norm)
            scale = tf.where(tf.math.is_finite(norm), scale, math.nan)
            gradients = [gradient * scale for gradient in gradients]
        # Nothing is larger than infinity, so this adds 0.  But XLA updates weights in place only where it
        # sees that all gradients were made before, and copies them otherwise; the first weight's is last.
        after = tf.cast(tf.reshape(sums[2], (-1,))[0] > math.inf, tf.float32)
        rate = decayed_learning_rate(settings, step) + after
        weights, slots = self.optimizer.update(weights, slots, gradients, step, rate, settings)
        return weights, slots, sums[0] / count

    def _step(
        self, weights: Any, slots: Any, statistics: Any, inputs: Any, targets: Any, examples: Any, step: Any,
        settings: Any, *, sums_of: Callable[..., Any], update: Callable[..., Any],
    ) -> tuple[Any, ...]:  # fmt: skip
        """One step of one replica: its sums, the reduction, the update that all replicas make."""
        each = self.share * self.accumulate
        mine = examples
        if self.devices.replicas > 1:
            mine = tf.slice(examples, [self.devices.replica_number() * each], [each])
        sums, moved = sums_of(weights, statistics, inputs, targets, mine, settings)
        sums, moved = self._reduced(sums, moved)
        weights, slots, loss = update(weights, slots, sums, step, settings)
        return weights, slots, moved, loss

    def _reduced(self, sums: list[Any], moved: list[Any]) -> tuple[list[Any], list[Any]]:
        """Sums over the replicas; running statistics are averaged (whole numbers stay as they are)."""
        if self.devices.replicas == 1:
            return sums, moved
        averaged = [m for m in moved if m.dtype.is_floating]
        # One reduction of one vector: a reduction per tensor would cost more than the sums.
        flat = tf.concat([tf.reshape(t, (-1,)) for t in [*sums, *averaged]], 0)
        total = self.devices.sum_over_replicas(flat)
        shapes = [t.shape for t in [*sums, *averaged]]
        pieces = tf.split(total, [math.prod(shape) for shape in shapes])
        whole = [tf.reshape(p, shape) for p, shape in zip(pieces, shapes, strict=True)]
        means = iter([m / self.devices.replicas for m in whole[len(sums) :]])
        return whole[: len(sums)], [next(means) if m.dtype.is_floating else m for m in moved]

    def _many(
        self, weights: Any, slots: Any, statistics: Any, inputs: Any, targets: Any, order: Any, start: Any,
        count: Any, settings: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Up to `count` steps inside one program; fewer if the loss is not finite."""

        def body(i: Any, loss: Any, ok: Any, weights: Any, slots: Any, statistics: Any) -> tuple[Any, ...]:
            del ok
            weights, slots, statistics, loss = self._step(
                weights, slots, statistics, inputs, targets, order[i], start + i, settings,
                sums_of=self._sums, update=self._update,
            )  # fmt: skip
            return i + 1, loss, tf.math.is_finite(loss), weights, slots, statistics

        done, loss, ok, weights, slots, statistics = tf.while_loop(
            lambda i, _, ok, *__: (i < count) & ok,
            body,
            (
                tf.constant(0),
                tf.constant(0.0),
                tf.constant(True),
                list(weights),
                list(slots),
                list(statistics),
            ),
        )
        return weights, slots, statistics, _report(done, loss, ok)

    def _advance_all(
        self, weights: Any, slots: Any, statistics: Any, inputs: Any, targets: Any, order: Any, start: Any,
        count: Any, settings: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """`_many` on all replicas."""
        strategy = self.devices.strategy
        if self.devices.loop_on_device:
            arguments = (weights, slots, statistics, inputs, targets, order, start, count, settings)
            *state, report = strategy.run(self._many_compiled, args=arguments)
            return (*state, self.devices.first(report))

        replica = functools.partial(self._step, sums_of=self._sums_compiled, update=self._update_compiled)

        def body(i: Any, loss: Any, ok: Any, weights: Any, slots: Any, statistics: Any) -> tuple[Any, ...]:
            del ok, loss
            weights, slots, statistics, losses = strategy.run(
                replica,
                args=(weights, slots, statistics, inputs, targets, order[i], start + i, settings),
            )
            loss = self.devices.first(losses)
            return i + 1, loss, tf.math.is_finite(loss), weights, slots, statistics

        done, loss, ok, weights, slots, statistics = tf.while_loop(
            lambda i, _, ok, *__: (i < count) & ok,
            body,
            (
                tf.constant(0),
                tf.constant(0.0),
                tf.constant(True),
                list(weights),
                list(slots),
                list(statistics),
            ),
        )
        return weights, slots, statistics, _report(done, loss, ok)

    def advance(
        self, state: State, examples: Examples, start: int, count: int, settings: Mapping[str, Any]
    ) -> Progress:
        """Make up to `count` ≤ `steps_per_call` updates; `settings` as `scalars` returns them."""
        inputs, targets, order = examples.of(start, count)
        if len(order) < self.steps_per_call:
            padded = np.zeros((self.steps_per_call, self.batch_size), np.int32)
            padded[: len(order)] = order
            order = padded
        weights, slots, statistics, report = self._advance(
            state.weights,
            state.slots,
            state.statistics,
            inputs,
            targets,
            tf.constant(order),
            tf.constant(start, tf.int32),
            tf.constant(count, tf.int32),
            settings,
        )
        done, finite, loss = np.asarray(report)
        return Progress(State(weights, slots, statistics), int(done), bool(finite), float(loss))

    # ------------------------------------------------------------------ measurements

    def _evaluation_parts(self, train_examples: int) -> list[tuple[list[str], Any, Any, Any]]:
        """(names of splits, inputs, targets, present) to be measured together, on the devices."""
        held = {name: split for name, split in self.data_set.splits().items() if isinstance(split, Split)}
        if "train" in held:
            held["train"] = held["train"][:train_examples]
        self._train_examples = train_examples
        if not held:
            return []
        inputs = np.concatenate([split.inputs for split in held.values()])
        targets = np.concatenate([split.targets for split in held.values()])
        owner = np.repeat(np.arange(len(held)), [split.size for split in held.values()])
        present = (owner == np.arange(len(held))[:, None]).astype(np.float32)
        return [(list(held), *self._spread(inputs, targets, present))]

    def _spread(self, inputs: Array, targets: Array, present: Array) -> tuple[Any, Any, Any]:
        """Examples in whole batches of one size, each replica holding its part of them."""
        replicas = self.devices.replicas
        each = math.ceil(len(inputs) / replicas)
        rounds = math.ceil(each / EXAMPLES_PER_EVALUATION_BATCH)
        batch = math.ceil(each / rounds)
        missing = replicas * rounds * batch - len(inputs)
        # Padding repeats the first example and is counted nowhere: `present` is 0 there.
        inputs = np.concatenate([inputs, np.repeat(inputs[:1], missing, 0)])
        targets = np.concatenate([targets, np.repeat(targets[:1], missing, 0)])
        present = np.pad(present, ((0, 0), (0, missing)))
        x = inputs.reshape(replicas, rounds, batch, *inputs.shape[1:])
        y = targets.reshape(replicas, rounds, batch, *targets.shape[1:])
        p = present.reshape(len(present), replicas, rounds, batch).transpose(1, 2, 0, 3)
        if replicas == 1:
            return self.devices.copied(x[0]), self.devices.copied(y[0]), self.devices.copied(p[0])
        return (
            self.devices.spread(lambda r: x[r]),
            self.devices.spread(lambda r: y[r]),
            self.devices.spread(lambda r: p[r]),
        )

    def _measure_local(self, weights: Any, statistics: Any, inputs: Any, targets: Any, present: Any) -> Any:
        """Sums of the metrics of a replica's examples, per split."""
        rounds, splits = inputs.shape[0], present.shape[1]

        def batch(i: Any) -> Any:
            x = self.data_set.prepare(inputs[i])
            outputs, _ = self.network.apply(weights, statistics, x, False)
            return [self._task.sums(outputs, targets[i], present[i, k]) for k in range(splits)]

        if rounds == 1:
            return batch(0)
        zeros = tf.nest.map_structure(tf.zeros_like, batch(0))
        _, sums = tf.while_loop(
            lambda i, _: i < rounds,
            lambda i, sums: (i + 1, tf.nest.map_structure(tf.add, sums, batch(i))),
            (tf.constant(0), zeros),
        )
        return sums

    def _measure_all(self, weights: Any, statistics: Any, inputs: Any, targets: Any, present: Any) -> Any:
        def replica(*arguments: Any) -> Any:
            sums = self._measure_compiled(*arguments)
            if self.devices.replicas == 1:
                return sums
            return tf.nest.map_structure(self.devices.sum_over_replicas, sums)

        sums = self.devices.strategy.run(replica, args=(weights, statistics, inputs, targets, present))
        return tf.nest.map_structure(self.devices.first, sums)

    def measured(self, state: State) -> dict[str, float]:
        """The metrics of all splits, every example of a split counted exactly once."""
        metrics: dict[str, float] = {}
        for names, *arrays in self._parts:
            sums = self._measure(state.weights, state.statistics, *arrays)
            for name, of_split in zip(names, sums, strict=True):
                metrics |= self._named(name, {key: np.asarray(value) for key, value in of_split.items()})
        for name, split in self.data_set.splits().items():
            if isinstance(split, Split):
                continue
            limit = self._train_examples if name == "train" else split.size
            metrics |= self._named(name, self._stream_sums(state, split, limit))
        return {f"{s}/{m}": metrics[f"{s}/{m}"] for s in self.data_set.splits() for m in self._task.metrics}

    def _stream_sums(self, state: State, split: Any, limit: int) -> dict[str, Array]:
        # The batch must be one that every pass fills the same way, whatever the number of replicas.
        batch = min(EXAMPLES_PER_EVALUATION_BATCH, split.size)
        batch = math.ceil(batch / self.devices.replicas) * self.devices.replicas
        total: dict[str, Array] = {}
        left = limit
        for x, y in split.batches(batch, seed=None, drop_remainder=False):
            kept = min(len(x), left)
            left -= kept
            present = np.zeros((1, batch), np.float32)
            present[0, :kept] = 1.0
            x, y = (np.concatenate([a, np.repeat(a[:1], batch - len(a), 0)]) for a in (x, y))
            sums = self._measure(state.weights, state.statistics, *self._spread(x, y, present))[0]
            for key, value in sums.items():
                total[key] = total.get(key, 0.0) + np.asarray(value, np.float64)
            if left <= 0:
                break
        return total

    def _named(self, split: str, sums: Mapping[str, Array]) -> dict[str, float]:
        return {f"{split}/{metric}": value for metric, value in self._task.finished(sums).items()}

    # ------------------------------------------------------------------ gradients

    @functools.cached_property
    def noise_gradient(self) -> Callable[[State, Any], Any]:
        """A function of (state, numbers of examples) that returns one vector, the mean gradient over them.

        It runs on one replica, whatever the devices; for data sets in memory.
        """
        if self._resident is None:
            raise TrainingError(
                f"{self.data_set.name} is streamed; the noise scale needs its examples in memory"
            )
        settings = self.scalars({"learning_rate": 0.0})

        def mean(weights: Any, statistics: Any, inputs: Any, targets: Any, examples: Any) -> Any:
            accumulate, self.accumulate = self.accumulate, 1
            try:
                sums, _ = self._sums(weights, statistics, inputs, targets, examples, settings)
            finally:
                self.accumulate = accumulate
            return tf.concat([tf.reshape(g, (-1,)) for g in sums[2:]], 0) / sums[1]

        compiled = self._jit(mean) if self.compiled else tf.function(mean, autograph=False)
        first = self.devices.first

        def gradient(state: State, examples: Any) -> Any:
            weights, statistics = [first(w) for w in state.weights], [first(s) for s in state.statistics]
            assert self._resident is not None
            inputs, targets = (first(array) for array in self._resident)
            if self.devices.kind == "tpu":
                arguments = (state.weights, state.statistics, *self._resident, examples)
                return first(tf.function(lambda: self.devices.strategy.run(compiled, args=arguments))())
            return compiled(weights, statistics, inputs, targets, examples)

        return gradient

    def examples(self, seed: Sequence[int]) -> Examples:
        """The training examples of a trial, in the order of its seed."""
        return Examples(self, seed)


def _report(done: Any, loss: Any, ok: Any) -> Any:
    """What the host has to know, as one vector: one transfer instead of three.

    A step whose loss is not finite has not been made; the weights behind it are of no use.
    """
    made = tf.where(ok, done, done - 1)
    return tf.stack([tf.cast(made, tf.float32), tf.cast(ok, tf.float32), loss])


@dataclass(frozen=True, slots=True)
class Progress:
    """State after some steps; `steps` made, whether the loss stayed finite, and the last step's mean loss."""

    state: State
    steps: int
    finite: bool
    loss: float


class Examples:
    """Which examples the steps of a trial take: numbers into resident arrays, or stretches of a stream."""

    def __init__(self, trainer: Trainer, seed: Sequence[int]) -> None:
        self._trainer, self._seed = trainer, list(seed)
        data_set = trainer.data_set
        self._order = training_order(
            data_set.train.size, trainer.batch_size, seed=seed, with_replacement=data_set.with_replacement
        )
        self._at = -1
        self._batches: Iterator[tuple[Array, Array]] = iter(())

    def of(self, start: int, count: int) -> tuple[Any, Any, NDArray[np.int32]]:
        """Inputs, targets, and for each of `count` steps the numbers of its examples in them."""
        trainer = self._trainer
        if trainer._resident is not None:
            return (*trainer._resident, self._order(start, count))
        size, rows = trainer.batch_size, trainer.steps_per_call
        parts = [self._next(step) for step in range(start, start + count)]
        # The program's shapes are fixed: what a short call leaves over is filled up and not used.
        parts += [parts[-1] if parts else self._first()] * (rows - count)
        inputs, targets = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        order = np.arange(rows * size, dtype=np.int32).reshape(rows, size)
        return trainer.devices.copied(inputs), trainer.devices.copied(targets), order

    def _first(self) -> tuple[Array, Array]:
        return next(self._trainer.data_set.train.batches(self._trainer.batch_size, seed=None))  # type: ignore[union-attr]

    def _next(self, step: int) -> tuple[Array, Array]:
        train, size = self._trainer.data_set.train, self._trainer.batch_size
        assert not isinstance(train, Split)
        number, at = divmod(step, train.size // size)
        if step != self._at or at == 0:
            seed = int(np.random.default_rng([*self._seed, number]).integers(2**31))
            self._batches = iter(train.batches(size, seed=seed, skip=at))
        self._at = step + 1
        return next(self._batches)


# --------------------------------------------------------------------------- a trial


@dataclass(slots=True)
class Outcome:
    """What became of a trial.

    Parameters
    ----------
    status : {"COMPLETE", "INCOMPLETE", "INFEASIBLE"}
        INFEASIBLE if the loss was not finite; INCOMPLETE if a time limit cut a step budget short.
    steps : int
        Updates made.
    rows : list of (step, metrics)
        The measurements.
    noise : list of dict
        Rows of the gradient noise scale, if it was measured.
    diverged_at : int, optional
        The update that could not be made because its loss was not finite.
    seconds : float
        Time spent in updates.
    stopped_at_goal : bool
        Whether the goal ended the trial.
    pruned : bool
        Whether it ended because it could no longer win; then it is INCOMPLETE.
    """

    status: str
    steps: int
    rows: list[tuple[int, dict[str, float]]]
    noise: list[dict[str, Any]] = field(default_factory=list)
    diverged_at: int | None = None
    seconds: float = 0.0
    stopped_at_goal: bool = False
    pruned: bool = False

    def curve(self) -> Curve:
        """The measurements as the raw layout holds them."""
        names = list(self.rows[0][1]) if self.rows else []
        names += [BATCH_LOSS] if BATCH_LOSS not in names else []
        columns = {name: [row.get(name) for _, row in self.rows] for name in names}
        return Curve([step for step, _ in self.rows], columns)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A file from which a trial goes on.

    Parameters
    ----------
    path : Path
        Where it lies; written under another name and renamed.
    every : float
        Seconds between two writes.
    """

    path: Path
    every: float = 60.0

    def save(self, arrays: Sequence[Array], facts: Mapping[str, Any]) -> None:
        """Write arrays and facts, whole or not at all."""
        named: dict[str, Any] = {f"a{i}": array for i, array in enumerate(arrays)}
        text = json.dumps(facts).encode()
        temporary = self.path.with_name(f"{self.path.name}.{os.getpid()}.tmp")
        try:
            with temporary.open("wb") as file:
                np.savez(file, allow_pickle=False, facts=np.frombuffer(text, np.uint8), **named)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def load(self) -> tuple[list[Array], dict[str, Any]] | None:
        """What was saved; None where there is nothing whole."""
        try:
            with self.path.open("rb") as file, np.load(file) as held:
                facts = json.loads(held["facts"].tobytes())
                return [held[f"a{i}"] for i in range(len(held.files) - 1)], facts
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            # A checkpoint only saves time; without it the trial begins anew, with the same result.
            return None


def run_trial(
    trainer: Trainer,
    settings: Mapping[str, float],
    *,
    seed: Sequence[int],
    rule: EvaluationRule,
    limits: Limits,
    goal: Goal | None = None,
    noise: NoiseRule | None = None,
    pruning: Pruning | None = None,
    checkpoint: Checkpoint | None = None,
    on_measurement: Callable[[int, Mapping[str, float]], None] | None = None,
) -> Outcome:
    """Train with one setting of the metaparameters.

    Parameters
    ----------
    trainer : Trainer
    settings : mapping of str to float
    seed : sequence of int
        Entropy of first weights and order of examples; with `settings` it determines the curve.
    rule : EvaluationRule
        Steps at which the metrics are measured.
    limits : Limits
        When training ends.
    goal : Goal, optional
        Ends training at the first measurement that meets it.
    noise : NoiseRule, optional
        Steps at which the gradient noise scale is measured.
    pruning : Pruning, optional
        Ends training where it can no longer be the first at the goal.
    checkpoint : Checkpoint, optional
        Where to go on from, and to save to now and then and on Ctrl-C.
    on_measurement : callable, optional
        Called with the step and the metrics of every measurement.

    Returns
    -------
    Outcome

    Notes
    -----
    The same seed gives the same curve to the last bit on the same machine and kind of device, also if
    the trial was interrupted: how the steps are cut into calls of the program changes nothing.
    """
    devices = trainer.devices
    scalars = trainer.scalars(settings)
    steps = limits.steps_at(trainer.batch_size)
    outcome = Outcome(COMPLETE, 0, [])
    state = trainer.start(np.random.default_rng([*seed, 0]))
    examples = trainer.examples([*seed, 1])
    last_loss = math.nan
    resumed = _resumed(checkpoint, devices, trainer, state)
    if resumed is not None:
        state, facts = resumed
        outcome.steps, outcome.seconds, last_loss = facts["step"], facts["seconds"], facts["loss"]
        outcome.rows = [(step, row) for step, row in facts["rows"]]
        outcome.noise = facts["noise"]
    saved = time.monotonic()

    def save() -> None:
        nonlocal saved
        if checkpoint is not None and devices.chief:
            facts = {
                "step": outcome.steps,
                "seconds": outcome.seconds,
                "loss": last_loss,
                "rows": outcome.rows,
                "noise": outcome.noise,
            }
            checkpoint.save(trainer.arrays(state), facts)
        saved = time.monotonic()

    def measure() -> bool:
        """Add a row; whether training goes on."""
        row = trainer.measured(state)
        if not all(math.isfinite(row[name]) for name in row if name.startswith("train/")):
            outcome.status, outcome.diverged_at = INFEASIBLE, outcome.steps
            return False
        if outcome.steps:
            row[BATCH_LOSS] = last_loss
        outcome.rows.append((outcome.steps, row))
        if on_measurement is not None:
            on_measurement(outcome.steps, row)
        if noise is not None and outcome.steps in noise.steps:
            from .noise import measured_noise

            outcome.noise.append(measured_noise(trainer, state, outcome.steps, noise, seed=[*seed, 2]))
        if goal is not None and goal.metric in row and bool(goal.met(row[goal.metric])):
            outcome.stopped_at_goal = True
            return False
        if pruning is not None and pruning.ends(outcome.rows) and (steps is None or outcome.steps < steps):
            outcome.status, outcome.pruned = INCOMPLETE, True
            return False
        return True

    try:
        if not outcome.rows and not measure():
            return outcome
        extra = noise.steps if noise is not None else ()
        for target in rule.steps(steps, also=extra):
            while outcome.steps < target:
                count = min(target - outcome.steps, trainer.steps_per_call)
                if limits.seconds is not None:
                    count = min(count, _steps_in_time(outcome, limits.seconds))
                before = time.perf_counter()
                progress = trainer.advance(state, examples, outcome.steps, count, scalars)
                outcome.seconds += time.perf_counter() - before
                state, last_loss = progress.state, progress.loss
                outcome.steps += progress.steps
                if not progress.finite:
                    outcome.status, outcome.diverged_at = INFEASIBLE, outcome.steps + 1
                    return outcome
                if limits.seconds is not None:
                    (outcome.seconds,) = devices.agreed([outcome.seconds])
                    if outcome.seconds >= limits.seconds:
                        break
                if checkpoint is not None and time.monotonic() - saved > checkpoint.every:
                    save()
            if outcome.steps > outcome.rows[-1][0] and not measure():
                return outcome
            if limits.seconds is not None and outcome.seconds >= limits.seconds:
                if steps is not None and outcome.steps < steps:
                    outcome.status = INCOMPLETE
                return outcome
    except KeyboardInterrupt:
        save()
        raise
    return outcome


def _steps_in_time(outcome: Outcome, seconds: float) -> int:
    """Steps that fit into what is left of the time, and into about a fifth of a second."""
    if not outcome.steps:
        return 1
    each = outcome.seconds / outcome.steps
    return max(1, int(min(0.2, max(seconds - outcome.seconds, 0.0)) / max(each, 1e-9)))


def _resumed(
    checkpoint: Checkpoint | None, devices: Devices, trainer: Trainer, state: State
) -> tuple[State, dict[str, Any]] | None:
    if checkpoint is None:
        return None
    held = checkpoint.load() if devices.chief else None
    shapes = [array.shape for array in trainer.arrays(state)]
    if held is not None and [array.shape for array in held[0]] != shapes:
        held = None
    (there,) = devices.agreed([float(held is not None)])
    if not there:
        return None
    if not devices.has_peers:
        assert held is not None
        return trainer.placed(held[0]), held[1]
    # The chief's file, on all processes: they need not share a disk.
    text = json.dumps(held[1]).encode() if held is not None else b""
    (length,) = devices.agreed([float(len(text))])
    codes = devices.agreed(list(text) if devices.chief else [0.0] * int(length))
    facts = json.loads(bytes(int(code) for code in codes))
    arrays = []
    for own, array in zip(
        trainer.arrays(state), held[0] if held is not None else trainer.arrays(state), strict=True
    ):
        values = devices.agreed([float(v) for v in array.reshape(-1)])
        arrays.append(np.array(values, own.dtype).reshape(own.shape))
    return trainer.placed(arrays), facts
