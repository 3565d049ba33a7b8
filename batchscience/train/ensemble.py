"""Many trials of one study as one program: settings, seeds and orders of examples along a leading axis."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..goals import Goal
from ..layout import COMPLETE, INCOMPLETE, INFEASIBLE
from .data import training_order
from .devices import processors
from .loop import BATCH_LOSS, MOST_STEPS_PER_CALL, Checkpoint, Outcome, State, Trainer
from .rules import EvaluationRule, Limits, NoiseRule, Pruning

log = logging.getLogger(__name__)

Array = NDArray[Any]

ORDER_BYTES_PER_CALL = 1 << 20
MOST_BYTES = 1 << 32
"""Most memory that the weights, slots, gradients and activations of trials at once may need."""

CACHE_BYTES = 1 << 21
"""What a strand should need on a CPU: its numbers then stay in one processor's cache from step to step."""

FEWEST_LANES = 4
"""Strands of a CPU are no narrower, however much a trial needs: fewer gain nothing over one after another."""

WORTH_COMPILING = 1e11
"""Floating-point operations that a narrower program must save: about what its compilation costs."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the trials that are trained together.

    Parameters
    ----------
    trial : int
        Its number.
    settings : mapping of str to float
    seed : sequence of int
        Entropy of first weights and order of examples.
    checkpoint : Checkpoint, optional
        As `run_trial` takes it; the two read each other's files.
    """

    trial: int
    settings: Mapping[str, float]
    seed: Sequence[int]
    checkpoint: Checkpoint | None = None


@dataclass(slots=True, eq=False)
class _Run:
    """A member on its way."""

    member: Member
    outcome: Outcome
    order: Callable[[int, int], NDArray[np.int32]]
    last_loss: float = math.nan
    ended: bool = False


@dataclass(slots=True, eq=False)
class _Strand:
    """Runs that one thread trains, one to a lane; lanes whose run has ended, or never had one, run idle."""

    lanes: list[_Run | None]
    state: State
    settings: dict[str, Any]


class CannotBatchError(Exception):
    """Trials of some kind cannot be trained together; the message is the reason."""


class Ensemble:
    """The compiled programs that train several trials of a study at once.

    Parameters
    ----------
    trainer : Trainer
        Programs of one trial; network, task, optimizer and data are taken from it.
    threads : int, optional
        Strands of trials that run side by side; by default one for each processor that TensorFlow may
        use, and one on other devices.

    Notes
    -----
    A step of one trial is mapped over the leading axis of weights, slots, statistics, settings and
    numbers of examples, so that a matrix product becomes one product per trial.  Nothing is computed
    across the axis: what a trial does reaches no other.
    """

    def __init__(self, trainer: Trainer, *, threads: int | None = None) -> None:
        self.trainer = trainer
        self.threads = threads or (processors() if trainer.devices.kind == "cpu" else 1)
        self._advance = self._program(self._many)
        self._measure = self._program(self._sums)
        self._ready: set[int] = set()
        self.widest: int | None = None
        """Most lanes of a strand; None for no limit."""
        if trainer.devices.kind == "cpu":
            self.widest = max(FEWEST_LANES, CACHE_BYTES // bytes_of_a_trial(trainer, trainer.share))

    def _program(self, of: Callable[..., Any]) -> Any:
        devices, compiled = self.trainer.devices, tf.function(of, jit_compile=True, autograph=False)
        if devices.kind == "cpu":
            return compiled
        return tf.function(lambda *a: devices.strategy.run(compiled, args=a), autograph=False)

    # ------------------------------------------------------------------ programs

    def _many(
        self, weights: Any, slots: Any, statistics: Any, inputs: Any, targets: Any, order: Any, start: Any,
        count: Any, ok: Any, settings: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """`count` steps of every lane, and the report on them."""
        trainer = self.trainer

        def body(
            i: Any, made: Any, last: Any, ok: Any, weights: Any, slots: Any, moved: Any
        ) -> tuple[Any, ...]:
            def one(lane: Any) -> Any:
                w, s, m, mine, own = lane
                sums, m = trainer._sums(w, m, inputs, targets, mine, own)
                w, s, loss = trainer._update(w, s, sums, start + i, own)
                return w, s, m, loss

            lanes = (weights, slots, moved, order[i], settings)
            weights, slots, moved, losses = tf.vectorized_map(one, lanes, fallback_to_while_loop=False)
            # A lane that has diverged goes on with numbers that nobody reads: to stop it would cost more.
            ok = ok & tf.math.is_finite(losses)
            return i + 1, made + tf.cast(ok, tf.int32), tf.where(ok, losses, last), ok, weights, slots, moved

        nothing = tf.zeros_like(ok, tf.int32)
        _, made, last, ok, weights, slots, statistics = tf.while_loop(
            lambda i, _, __, ok, *___: (i < count) & tf.reduce_any(ok),
            body,
            (
                tf.constant(0),
                nothing,
                tf.cast(nothing, tf.float32),
                ok,
                list(weights),
                list(slots),
                list(statistics),
            ),
        )
        return (
            weights,
            slots,
            statistics,
            tf.stack([tf.cast(made, tf.float32), tf.cast(ok, tf.float32), last]),
        )

    def _sums(self, weights: Any, statistics: Any, inputs: Any, targets: Any, present: Any) -> Any:
        """Sums of the metrics per split and lane."""
        trainer, (rounds, splits) = self.trainer, (inputs.shape[0], present.shape[1])

        def batch(i: Any) -> Any:
            x, y, p = trainer.data_set.prepare(inputs[i]), targets[i], present[i]

            def one(lane: Any) -> Any:
                w, s = lane
                outputs, _ = trainer.network.apply(w, s, x, False)
                return [trainer._task.sums(outputs, y, p[k]) for k in range(splits)]

            return tf.vectorized_map(one, (weights, statistics), fallback_to_while_loop=False)

        zeros = tf.nest.map_structure(tf.zeros_like, batch(0))
        _, sums = tf.while_loop(
            lambda i, _: i < rounds,
            lambda i, sums: (i + 1, tf.nest.map_structure(tf.add, sums, batch(i))),
            (tf.constant(0), zeros),
        )
        return sums

    # ------------------------------------------------------------------ lanes

    def _placed(self, arrays: Sequence[Array]) -> State:
        return self.trainer.placed(arrays)

    def _settings(self, runs: Sequence[_Run | None]) -> dict[str, Any]:
        shown = [self.trainer.complete(_some(run, runs).member.settings) for run in runs]
        return {
            name: self.trainer.devices.copied(np.array([own[name] for own in shown], np.float32))
            for name in shown[0]
        }

    def _strands(self, runs: Sequence[_Run], arrays: Sequence[Array], width: int) -> list[_Strand]:
        """Runs dealt out to the threads; `arrays` hold their states along a leading axis, in their order."""
        strands = []
        for part in range(math.ceil(len(runs) / width)):
            mine = range(part * width, min((part + 1) * width, len(runs)))
            # Idle lanes need some numbers: those of the first.
            lanes: list[_Run | None] = [*(runs[i] for i in mine), *[None] * (width - len(mine))]
            numbers = [*mine, *[mine[0]] * (width - len(mine))]
            state = self._placed([array[numbers] for array in arrays])
            strands.append(_Strand(lanes, state, self._settings(lanes)))
        return strands

    def width(self, runs: int) -> int:
        """Lanes of each strand for so many runs: as many as the cache holds, with few of them idle."""
        fair = math.ceil(runs / self.threads)
        if self.widest is None or fair <= self.widest:
            return fair

        def trained(width: int) -> int:
            """Lanes that the busiest thread trains."""
            return width * math.ceil(math.ceil(runs / width) / self.threads)

        # Of widths that idle alike, the widest.
        return min(range(self.widest, min(FEWEST_LANES, self.widest) - 1, -1), key=trained)

    def steps_per_call(self, width: int) -> int:
        """Most steps of one call of the program."""
        wanted = ORDER_BYTES_PER_CALL // (4 * self.trainer.batch_size * width)
        return max(1, min(MOST_STEPS_PER_CALL, wanted))

    def _order(self, strand: _Strand, start: int, count: int) -> Any:
        rows = self.steps_per_call(len(strand.lanes))
        order = np.zeros((rows, len(strand.lanes), self.trainer.batch_size), np.int32)
        for lane, run in enumerate(strand.lanes):
            if run is not None:
                order[:count, lane] = run.order(start, count)
        return tf.constant(order)

    def advance(self, strand: _Strand, start: int, count: int) -> tuple[State, Array]:
        """The state after `count` updates of every lane, and a report on each.

        The report has three rows: updates made before the loss was not finite, whether it stayed finite,
        and the last finite one.
        """
        trainer, state = self.trainer, strand.state
        ok = np.array([run is not None for run in strand.lanes])
        weights, slots, statistics, report = self._advance(
            state.weights,
            state.slots,
            state.statistics,
            *trainer._resident,  # type: ignore[misc]
            self._order(strand, start, count),
            tf.constant(start, tf.int32),
            tf.constant(count, tf.int32),
            tf.constant(ok),
            strand.settings,
        )
        # What the host has to know comes as one array: one transfer instead of three.
        return State(weights, slots, statistics), np.asarray(report)

    def measured(self, strand: _Strand) -> list[dict[str, float]]:
        """The metrics of every lane, as `Trainer.measured` has them."""
        trainer = self.trainer
        rows: list[dict[str, float]] = [{} for _ in strand.lanes]
        for names, *arrays in trainer._parts:
            sums = self._measure(strand.state.weights, strand.state.statistics, *arrays)
            for name, of_split in zip(names, sums, strict=True):
                held = {key: np.asarray(value) for key, value in of_split.items()}
                for lane, row in enumerate(rows):
                    row |= trainer._named(name, {key: value[lane] for key, value in held.items()})
        columns = [f"{s}/{m}" for s in trainer.data_set.splits() for m in trainer._task.metrics]
        return [{column: row[column] for column in columns} for row in rows]

    def prepare(self, strand: _Strand) -> None:
        """Compile for the width of a strand: a call of no steps.

        Raises
        ------
        CannotBatchError
            If part of the model or the optimizer has no form for many trials at once.
        """
        if len(strand.lanes) in self._ready:
            return
        try:
            self.advance(strand, 0, 0)
        except (ValueError, NotImplementedError, tf.errors.OpError) as error:
            # TensorFlow says in any of these ways that an operation has no form for many at once.
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            # TensorFlow puts where before what.
            reason = next((line for line in lines if "Error: " in line), lines[0] if lines else "")[:200]
            raise CannotBatchError(f"its program has no form for many trials at once ({reason})") from error
        self._ready.add(len(strand.lanes))

    def lane(self, strand: _Strand, number: int) -> State:
        """The state of one trial."""
        state = strand.state
        return State(
            [w[number] for w in state.weights],
            [s[number] for s in state.slots],
            [s[number] for s in state.statistics],
        )


def _some(run: _Run | None, runs: Sequence[_Run | None]) -> _Run:
    return run if run is not None else next(other for other in runs if other is not None)


def alone_because(trainer: Trainer, limits: Limits) -> str | None:
    """Why trials of this kind are trained one at a time; None if they may be trained together."""
    devices = trainer.devices
    if devices.replicas > 1:
        return f"each batch is shared by {devices.replicas} replicas"
    if trainer._resident is None or len(trainer._parts) != 1:
        return f"{trainer.data_set.name} is streamed, each trial from its own place"
    if trainer.network.convolutional:
        return "a convolution with a kernel for each trial is no faster than one after another"
    if not trainer.compiled:
        return "its steps are not compiled"
    if limits.seconds is not None:
        return "its trials end by time, which they would share"
    return None


def bytes_of_a_trial(trainer: Trainer, examples: int) -> int:
    """Memory that a trial needs: weights, slots, gradients, and activations of examples forth and back."""
    spec = trainer.data_set.input_spec()
    graph = tf.Graph()
    with graph.as_default():
        weights = [tf.zeros(w.shape) for w in trainer.network.weights]
        statistics = [tf.zeros(s.shape) for s in trainer.network.statistics]
        before = set(graph.get_operations())
        trainer.network.apply(weights, statistics, tf.zeros((examples, *spec.shape), spec.dtype), True)
        made = [t for op in graph.get_operations() if op not in before for t in op.outputs]
    activations = sum(t.shape.num_elements() or 0 for t in made if t.dtype.is_floating)
    return 4 * (trainer.network.size * (3 + trainer.optimizer.slots) + 2 * activations)


def run_trials(
    ensemble: Ensemble,
    members: Sequence[Member],
    *,
    rule: EvaluationRule,
    limits: Limits,
    goal: Goal | None = None,
    noise: NoiseRule | None = None,
    pruning: Pruning | None = None,
) -> Iterator[tuple[Member, Outcome]]:
    """Train several trials at once; each is handed back when it ends.

    Parameters
    ----------
    ensemble : Ensemble
    members : sequence of Member
        Trials of one study, each with its settings and its seed.
    rule, limits, goal, noise, pruning
        As `run_trial` takes them.

    Yields
    ------
    (Member, Outcome)
        What `run_trial` would return, to the rounding of sums; trials that diverge come first.

    Raises
    ------
    CannotBatchError
        If trials of this kind cannot be trained together; nothing has been trained then.

    Notes
    -----
    All members are measured at the same steps.  One that diverges or reaches the goal leaves; the others
    move together when they fill fewer strands, or narrower ones if what remains is worth compiling a
    program for.  ``seconds`` of an outcome is the trial's share of the time.
    """
    trainer = ensemble.trainer
    if (reason := alone_because(trainer, limits)) is not None:
        raise CannotBatchError(reason)
    examples = max(trainer.share, trainer._parts[0][1].shape[1])
    most = max(1, MOST_BYTES // bytes_of_a_trial(trainer, examples))
    if most < len(members):
        log.info("memory holds %d trials of %s at a time", most, trainer.data_set.name)
    # After an interruption not all need be at one step; those that are go together.
    by_step: dict[tuple[int, bool], list[tuple[_Run, list[Array]]]] = {}
    for member in members:
        run, arrays = _begun(trainer, member)
        measured = bool(run.outcome.rows)
        by_step.setdefault((run.outcome.steps, measured), []).append((run, arrays))
    with ThreadPoolExecutor(ensemble.threads) as pool:
        for _, group in sorted(by_step.items()):
            for first in range(0, len(group), most):
                part = group[first : first + most]
                yield from _Chunk(ensemble, pool, part, rule, limits, goal, noise, pruning).train()


def _begun(trainer: Trainer, member: Member) -> tuple[_Run, list[Array]]:
    data_set = trainer.data_set
    order = training_order(
        data_set.train.size,
        trainer.batch_size,
        seed=[*member.seed, 1],
        with_replacement=data_set.with_replacement,
    )
    run = _Run(member, Outcome(COMPLETE, 0, []), order)
    weights, statistics = trainer.network.drawn(np.random.default_rng([*member.seed, 0]))
    slots = [np.zeros_like(w) for _ in range(trainer.optimizer.slots) for w in weights]
    arrays = [*weights, *slots, *statistics]
    held = member.checkpoint.load() if member.checkpoint is not None else None
    if held is not None and [a.shape for a in held[0]] == [a.shape for a in arrays]:
        arrays, facts = held
        outcome = run.outcome
        outcome.steps, outcome.seconds, run.last_loss = facts["step"], facts["seconds"], facts["loss"]
        outcome.rows = [(step, row) for step, row in facts["rows"]]
        outcome.noise = facts["noise"]
    return run, arrays


class _Chunk:
    """Trials at one step that are trained together to their ends."""

    def __init__(
        self,
        ensemble: Ensemble,
        pool: ThreadPoolExecutor,
        group: Sequence[tuple[_Run, list[Array]]],
        rule: EvaluationRule,
        limits: Limits,
        goal: Goal | None,
        noise: NoiseRule | None,
        pruning: Pruning | None,
    ) -> None:
        self.ensemble, self.pool = ensemble, pool
        self.goal, self.noise, self.pruning = goal, noise, pruning
        self.runs = [run for run, _ in group]
        self.step = self.runs[0].outcome.steps
        self.last = limits.steps_at(ensemble.trainer.batch_size)
        self.rule = rule
        stacked = [np.stack(arrays) for arrays in zip(*(arrays for _, arrays in group), strict=True)]
        self.width = ensemble.width(len(self.runs))
        self.strands = ensemble._strands(self.runs, stacked, self.width)
        checkpoints = [run.member.checkpoint for run in self.runs if run.member.checkpoint is not None]
        self.every = min((checkpoint.every for checkpoint in checkpoints), default=None)
        self.saved = time.monotonic()
        self.settled = True
        """Whether states and outcomes are at one step, so that they may be saved together."""

    @property
    def alive(self) -> list[_Run]:
        return [run for run in self.runs if not run.ended]

    def train(self) -> Iterator[tuple[Member, Outcome]]:
        self.ensemble.prepare(self.strands[0])
        try:
            if not self.runs[0].outcome.rows:
                yield from self._measure()
            extra = self.noise.steps if self.noise is not None else ()
            for target in self.rule.steps(self.last, also=extra):
                while self.step < target and self.alive:
                    yield from self._advance(target)
                    if self.every is not None and time.monotonic() - self.saved > self.every:
                        self._save()
                if not self.alive:
                    return
                if self.step > self.alive[0].outcome.rows[-1][0]:
                    yield from self._measure()
                    self._narrow()
        except (KeyboardInterrupt, GeneratorExit):
            self._save()
            raise
        for run in self.alive:
            run.ended = True
            yield run.member, run.outcome

    def _end(self, strand: _Strand, lane: int, run: _Run) -> tuple[Member, Outcome]:
        strand.lanes[lane], run.ended = None, True
        return run.member, run.outcome

    def _advance(self, target: int) -> list[tuple[Member, Outcome]]:
        count = min(target - self.step, self.ensemble.steps_per_call(self.width))
        before, alive = time.perf_counter(), len(self.alive)
        came = list(self.pool.map(lambda s: self.ensemble.advance(s, self.step, count), self.strands))
        share = (time.perf_counter() - before) / alive
        ended = []
        self.settled = False
        self.step += count
        for strand, (state, report) in zip(self.strands, came, strict=True):
            strand.state = state
            for lane, run in _runs(strand):
                made, finite, loss = report[:, lane]
                outcome = run.outcome
                outcome.seconds += share
                outcome.steps += int(made)
                run.last_loss = float(loss)
                if not finite:
                    outcome.status, outcome.diverged_at = INFEASIBLE, outcome.steps + 1
                    ended.append(self._end(strand, lane, run))
        self._drop_idle()
        self.settled = True
        return ended

    def _measure(self) -> list[tuple[Member, Outcome]]:
        came = list(self.pool.map(self.ensemble.measured, self.strands))
        ended = []
        self.settled = False
        left: list[tuple[_Strand, int, _Run]] = []
        for strand, rows in zip(self.strands, came, strict=True):
            for lane, run in _runs(strand):
                if self._measured(strand, lane, run, rows[lane]):
                    left.append((strand, lane, run))
                else:
                    ended.append(self._end(strand, lane, run))
        if self.pruning is not None and self.step != self.last:
            for strand, lane, run in left:
                if self.pruning.ends(run.outcome.rows):
                    run.outcome.status, run.outcome.pruned = INCOMPLETE, True
                    ended.append(self._end(strand, lane, run))
        self._drop_idle()
        self.settled = True
        return ended

    def _measured(self, strand: _Strand, lane: int, run: _Run, row: dict[str, float]) -> bool:
        """Add a row to a run; whether it goes on."""
        outcome = run.outcome
        if not all(math.isfinite(row[name]) for name in row if name.startswith("train/")):
            outcome.status, outcome.diverged_at = INFEASIBLE, outcome.steps
            return False
        if outcome.steps:
            row[BATCH_LOSS] = run.last_loss
        outcome.rows.append((outcome.steps, row))
        if self.noise is not None and outcome.steps in self.noise.steps:
            from .noise import measured_noise

            state, seed = self.ensemble.lane(strand, lane), [*run.member.seed, 2]
            outcome.noise.append(
                measured_noise(self.ensemble.trainer, state, outcome.steps, self.noise, seed=seed)
            )
        if self.goal is not None and self.goal.metric in row and bool(self.goal.met(row[self.goal.metric])):
            outcome.stopped_at_goal = True
            return False
        return True

    def _drop_idle(self) -> None:
        self.strands = [s for s in self.strands if any(run is not None for run in s.lanes)]

    def _narrow(self) -> None:
        """Move what is left into fewer or narrower strands, if that saves more than it costs."""
        alive, trainer = len(self.alive), self.ensemble.trainer
        if not alive or self.last is None:
            return
        # Widths halve, so that few programs are compiled.
        width = self.width
        while width > 1 and alive <= self.ensemble.threads * (width // 2):
            width //= 2
        saved = len(self.strands) * self.width - math.ceil(alive / width) * width
        # Forward, backward to the weights, backward to the inputs: two operations each for every weight.
        operations = 6.0 * trainer.network.size * trainer.batch_size
        cost = 0.0 if width in self.ensemble._ready else WORTH_COMPILING
        if not saved or saved * (self.last - self.step) * operations < cost:
            return
        kept = []
        for strand in self.strands:
            lanes = [lane for lane, _ in _runs(strand)]
            kept.append([array[lanes] for array in _arrays(strand.state)])
        arrays = [np.concatenate(parts) for parts in zip(*kept, strict=True)]
        runs = [run for strand in self.strands for _, run in _runs(strand)]
        self.strands, self.width = self.ensemble._strands(runs, arrays, width), width
        self.ensemble.prepare(self.strands[0])

    def _save(self) -> None:
        """Write the checkpoints of all that is left."""
        if self.every is None or not self.settled:
            return
        for strand in self.strands:
            arrays = _arrays(strand.state)
            for lane, run in _runs(strand):
                outcome = run.outcome
                if run.member.checkpoint is None or not outcome.rows:
                    continue
                facts = {
                    "step": outcome.steps,
                    "seconds": outcome.seconds,
                    "loss": run.last_loss,
                    "rows": outcome.rows,
                    "noise": outcome.noise,
                }
                run.member.checkpoint.save([array[lane] for array in arrays], facts)
        self.saved = time.monotonic()


def _runs(strand: _Strand) -> list[tuple[int, _Run]]:
    """Lanes that hold a run, with it."""
    return [(lane, run) for lane, run in enumerate(strand.lanes) if run is not None]


def _arrays(state: State) -> list[Array]:
    return [np.asarray(tensor) for tensor in (*state.weights, *state.slots, *state.statistics)]
