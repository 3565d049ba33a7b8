"""One trial: what a step computes, when it is measured, and how it ends."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from batchscience.errors import TrainingError
from batchscience.goals import Goal
from batchscience.train import loop, models
from batchscience.train.data import DataSet, Split, training_order
from batchscience.train.devices import strategy_for
from batchscience.train.loop import BATCH_LOSS, Checkpoint
from batchscience.train.rules import EvaluationRule, Limits
from tests.train_support import small_trainer, small_trial

CPU = strategy_for("cpu")
SETTINGS = {"learning_rate": 0.2}


@pytest.fixture(scope="module")
def trainer():
    return small_trainer(CPU)


def _line(count=30, seed=0, **options):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 3)).astype(np.float32)
    y = (x @ np.array([[1.0], [-2.0], [0.5]]) + 0.1).astype(np.float32)
    return DataSet("line", "regression", 1, Split(x, y), Split(x[:7], y[:7]), **options)


def _linear(scope, x):
    return scope.dense(x, 1)


def _by_hand(data_set, weights, *, batch_size, rate, steps, seed, clip=None):
    """Gradient descent of a line in plain NumPy; returns weights and each step's mean loss."""
    w, b = (np.array(array, np.float64) for array in weights)
    order = training_order(data_set.train.size, batch_size, seed=seed)(0, steps)
    losses = []
    for rows in order:
        x, y = data_set.train.inputs[rows], data_set.train.targets[rows]
        error = x @ w + b - y
        losses.append(float(np.mean(error**2)))
        gradients = [2 * x.T @ error / batch_size, 2 * error.sum(0) / batch_size]
        length = math.sqrt(sum((g**2).sum() for g in gradients))
        scale = min(1.0, clip / length) if clip else 1.0
        w, b = w - rate * scale * gradients[0], b - rate * scale * gradients[1]
    return w, b, losses


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"clip_norm": 0.5}, {"compiled": False}])
def test_a_step_is_one_update_by_the_gradient_of_the_mean_loss_over_the_batch(options):
    data_set, seed = _line(), [4, 5]
    trainer = small_trainer(CPU, data_set=data_set, forward=_linear, batch_size=8, **options)
    first = trainer.network.drawn(np.random.default_rng([*seed, 0]))[0]
    rule = EvaluationRule(dense_until=20)
    outcome = small_trial(trainer, {"learning_rate": 0.05}, steps=20, seed=seed, rule=rule)
    w, b, losses = _by_hand(
        data_set, first, batch_size=8, rate=0.05, steps=20, seed=[*seed, 1], clip=options.get("clip_norm")
    )
    x, y = data_set.train.inputs, data_set.train.targets
    assert outcome.rows[-1][1]["train/squared_error"] == pytest.approx(
        np.mean((x @ w + b - y) ** 2), rel=1e-4
    )
    assert [row[BATCH_LOSS] for _, row in outcome.rows[1:]] == pytest.approx(losses, rel=1e-4)


def test_the_same_seed_gives_the_same_curve_to_the_last_bit(trainer):
    one, two, other = (small_trial(trainer, SETTINGS, seed=seed) for seed in ((1, 2), (1, 2), (1, 3)))
    assert one.rows == two.rows
    assert one.rows != other.rows


def test_how_steps_are_cut_into_calls_changes_nothing(trainer):
    whole = small_trial(trainer, SETTINGS, steps=40)
    cut = small_trainer(CPU)
    cut.steps_per_call = 3
    assert small_trial(cut, SETTINGS, steps=40).rows == whole.rows


def test_the_curve_begins_at_step_0_and_is_measured_where_the_rule_says(trainer):
    outcome = small_trial(trainer, SETTINGS, steps=13)
    assert [step for step, _ in outcome.rows] == [0, 1, 2, 4, 8, 13]
    assert outcome.steps == 13
    text = outcome.curve().text()
    header, first, *_ = text.splitlines()
    assert header.startswith("step,train/cross_entropy_error,train/classification_error,val/")
    assert header.endswith(BATCH_LOSS)
    assert first.endswith(",")  # there is no batch before the first step


def test_each_example_of_a_split_counts_exactly_once_whatever_the_evaluation_batch(monkeypatch):
    curves = []
    for most in (10_000, 7, 1):
        monkeypatch.setattr(loop, "EXAMPLES_PER_EVALUATION_BATCH", most)
        # 31 and 13 are primes: no batch of 7 divides them.
        rng = np.random.default_rng(1)
        x, y = rng.standard_normal((44, 5)).astype(np.float32), rng.integers(0, 3, 44).astype(np.int32)
        whole = Split(x, y)
        data_set = DataSet("primes", "classification", 3, whole[:31], whole[31:])
        trainer = small_trainer(
            CPU, data_set=data_set, forward=lambda scope, x: scope.dense(x, 3), batch_size=4
        )
        state = trainer.start(np.random.default_rng(0))
        weights = [np.asarray(w) for w in state.weights]
        curves.append(trainer.measured(state))
    logits = x @ weights[0] + weights[1]
    right = logits.argmax(1) == y
    for curve in curves:
        assert curve["train/classification_error"] == (31 - right[:31].sum()) / 31
        assert curve["val/classification_error"] == (13 - right[31:].sum()) / 13
        assert curve == pytest.approx(curves[0], rel=1e-6)


def test_train_columns_cover_no_more_examples_than_asked(trainer):
    few = small_trainer(CPU, train_examples=100)
    state = few.start(np.random.default_rng(0))
    assert (few.measured(state)["train/classification_error"] * 100) == pytest.approx(
        round(few.measured(state)["train/classification_error"] * 100), abs=1e-9
    )
    assert few.measured(state)["val/cross_entropy_error"] == pytest.approx(
        trainer.measured(state)["val/cross_entropy_error"], rel=1e-6
    )


def test_a_loss_that_is_not_finite_ends_the_trial_as_infeasible_with_its_curve():
    data_set = _line()
    trainer = small_trainer(CPU, data_set=data_set, forward=_linear, batch_size=8)
    outcome = small_trial(trainer, {"learning_rate": 1e3}, steps=1000)
    assert outcome.status == "INFEASIBLE"
    assert outcome.diverged_at is not None
    assert 1 < outcome.diverged_at <= 40
    assert outcome.steps >= outcome.rows[-1][0] > 0
    assert all(math.isfinite(row["train/squared_error"]) for _, row in outcome.rows)
    # By hand the loss leaves the range of float32 within a step of it.
    first = trainer.network.drawn(np.random.default_rng([1, 2, 0]))[0]
    *_, losses = _by_hand(data_set, first, batch_size=8, rate=1e3, steps=40, seed=[1, 2, 1])
    beyond = next(i + 1 for i, loss in enumerate(losses) if loss > 3.4e38)
    assert abs(outcome.diverged_at - beyond) <= 1


def test_a_trial_that_diverges_in_its_last_step_is_infeasible_too():
    trainer = small_trainer(CPU, data_set=_line(), forward=_linear, batch_size=8)
    outcome = small_trial(trainer, {"learning_rate": 1e30}, steps=1)
    assert outcome.status == "INFEASIBLE"
    assert [step for step, _ in outcome.rows] == [0]


def test_accumulated_parts_give_the_update_of_the_whole_batch():
    curves = [
        small_trial(small_trainer(CPU, accumulate=parts), SETTINGS, steps=20).rows for parts in (1, 8, 64)
    ]
    for rows in curves[1:]:
        for (step, row), (same, expected) in zip(rows, curves[0], strict=True):
            assert step == same
            assert row == pytest.approx(expected, rel=1e-4)


def test_a_batch_larger_than_the_training_set_is_refused():
    with pytest.raises(TrainingError, match="larger than the training set of 1280"):
        small_trainer(CPU, batch_size=1281)


def test_parts_that_do_not_divide_the_batch_are_refused():
    with pytest.raises(TrainingError, match="take a multiple of 3"):
        small_trainer(CPU, batch_size=64, accumulate=3)


def test_a_setting_that_nothing_uses_is_refused(trainer):
    with pytest.raises(TrainingError, match="'momentum' is used by nothing"):
        small_trial(trainer, {"learning_rate": 0.1, "momentum": 0.9})
    with pytest.raises(TrainingError, match="lack 'learning_rate'"):
        small_trial(trainer, {})


def test_training_stops_at_the_goal_only_when_asked(trainer):
    goal = Goal("val/cross_entropy_error", 2.2)
    whole = small_trial(trainer, SETTINGS, steps=64)
    stopped = small_trial(trainer, SETTINGS, steps=64, goal=goal)
    reached = next(step for step, row in whole.rows if goal.met(row[goal.metric]))
    assert stopped.stopped_at_goal
    assert stopped.steps == reached < whole.steps
    assert stopped.status == "COMPLETE"
    assert stopped.rows == whole.rows[: len(stopped.rows)]


def test_a_time_budget_ends_a_trial_as_complete_and_cuts_a_step_budget_short_as_incomplete(trainer):
    small_trial(trainer, SETTINGS, steps=1)  # compiled before the clock counts
    timed = small_trial(trainer, SETTINGS, limits=Limits(seconds=0.2))
    assert timed.status == "COMPLETE"
    assert timed.steps == timed.rows[-1][0] > 0
    assert 0.2 <= timed.seconds < 5
    cut = small_trial(trainer, SETTINGS, limits=Limits(steps=10**7, seconds=0.2))
    assert cut.status == "INCOMPLETE"
    assert cut.steps < 10**7


class Interrupted(KeyboardInterrupt):
    """Ctrl-C at a chosen measurement."""


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_an_interrupted_trial_goes_on_from_its_checkpoint_to_the_same_curve(tmp_path, optimizer):
    trainer = small_trainer(CPU, optimizer)
    trainer.steps_per_call = 5
    whole = small_trial(trainer, {"learning_rate": 0.01}, steps=60)
    checkpoint = Checkpoint(tmp_path / "1.npz", every=1e9)

    def interrupt(step, row):
        if step == 32:
            raise Interrupted

    with pytest.raises(KeyboardInterrupt):
        small_trial(
            trainer, {"learning_rate": 0.01}, steps=60, checkpoint=checkpoint, on_measurement=interrupt
        )
    assert checkpoint.path.is_file()
    seen = []
    resumed = small_trial(
        trainer,
        {"learning_rate": 0.01},
        steps=60,
        checkpoint=checkpoint,
        on_measurement=lambda step, row: seen.append(step),
    )
    assert resumed.rows == whole.rows
    assert min(seen) > 32


def test_a_damaged_checkpoint_costs_time_and_nothing_else(tmp_path, trainer):
    path = tmp_path / "1.npz"
    path.write_bytes(b"PK\x03\x04 half a file")
    outcome = small_trial(trainer, SETTINGS, checkpoint=Checkpoint(path))
    assert outcome.rows == small_trial(trainer, SETTINGS).rows


class Streamed:
    """The examples of a split, read as a stream; its shuffle is NumPy's."""

    def __init__(self, split):
        self._split = split
        self.size = split.size

    def batches(self, batch_size, *, seed, skip=0, drop_remainder=True):
        order = np.arange(self.size) if seed is None else np.random.default_rng(seed).permutation(self.size)
        for start in range(skip * batch_size, self.size, batch_size):
            rows = order[start : start + batch_size]
            if len(rows) == batch_size or not drop_remainder:
                yield self._split.inputs[rows], self._split.targets[rows]


@pytest.mark.parametrize("steps_per_call", [1, 4, 100])
def test_a_stream_trains_as_the_same_examples_in_memory_would(steps_per_call, monkeypatch):
    held = _line(50)
    data_set = DataSet("stream", "regression", 1, Streamed(held.train), Streamed(held.val))
    monkeypatch.setattr(loop, "EXAMPLES_PER_EVALUATION_BATCH", 16)
    monkeypatch.setattr(loop, "MOST_STEPS_PER_CALL", steps_per_call)
    trainer = small_trainer(CPU, data_set=data_set, forward=_linear, batch_size=8)
    assert trainer.steps_per_call == steps_per_call
    seed = [7]
    outcome = small_trial(trainer, {"learning_rate": 0.05}, steps=20, seed=seed)
    # The same in plain NumPy, pass by pass.
    w, b = (array.astype(np.float64) for array in trainer.network.drawn(np.random.default_rng([7, 0]))[0])
    step = 0
    while step < 20:
        pass_seed = int(np.random.default_rng([7, 1, step // 6]).integers(2**31))
        rows = np.random.default_rng(pass_seed).permutation(50)[(step % 6) * 8 :][:8]
        x, y = held.train.inputs[rows], held.train.targets[rows]
        error = x @ w + b - y
        w, b = w - 0.05 * 2 * x.T @ error / 8, b - 0.05 * 2 * error.mean(0)
        step += 1
    for split, name in ((held.train, "train"), (held.val, "val")):
        expected = np.mean((split.inputs @ w + b - split.targets) ** 2)
        assert outcome.rows[-1][1][f"{name}/squared_error"] == pytest.approx(expected, rel=1e-4)


def test_a_batch_of_padding_alone_does_not_divide_by_zero():
    words = np.zeros((4, 3), np.int32)
    data_set = DataSet("padding", "language", 5, Split(words, words))

    def forward(scope, tokens):
        return scope.dense(tf.one_hot(tokens, 5), 5)

    trainer = small_trainer(CPU, data_set=data_set, forward=forward, batch_size=2)
    progress = trainer.advance(
        trainer.start(np.random.default_rng(0)), trainer.examples([0]), 0, 1, trainer.scalars(SETTINGS)
    )
    assert progress.finite
    assert progress.loss == 0


@pytest.mark.parametrize("examples", [1, 5, models.FEW_EXAMPLES, models.FEW_EXAMPLES + 1])
def test_a_dense_layer_has_the_gradients_of_a_product_for_few_examples_and_many(examples):
    rng = np.random.default_rng(examples)
    x, kernel, bias, dy = (
        tf.constant(rng.standard_normal(shape).astype(np.float32))
        for shape in ((examples, 7), (7, 3), (3,), (examples, 3))
    )
    with tf.GradientTape() as tape:
        tape.watch([x, kernel, bias])
        y = models.Scope([kernel, bias]).dense(x, 3)
    came = tape.gradient(y, [x, kernel, bias], output_gradients=dy)
    np.testing.assert_allclose(y, x.numpy() @ kernel.numpy() + bias.numpy(), rtol=1e-5, atol=1e-5)
    wanted = (dy.numpy() @ kernel.numpy().T, x.numpy().T @ dy.numpy(), dy.numpy().sum(0))
    for gradient, expected in zip(came, wanted, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-5)


def test_a_compiled_step_copies_no_weights():
    forward = models.fully_connected([24, 20], 4)
    trainer = small_trainer(CPU, "momentum", forward=forward, batch_size=16)
    state = trainer.start(np.random.default_rng(0))
    order = tf.zeros((trainer.steps_per_call, 16), tf.int32)
    program = trainer._many_compiled.experimental_get_compiler_ir(
        state.weights, state.slots, state.statistics, *trainer._resident, order,
        tf.constant(0), tf.constant(1), trainer.scalars({"learning_rate": 0.1}),
    )(stage="optimized_hlo")  # fmt: skip
    _, _, loop = program.partition("while_body")
    body, _, _ = loop.partition("\n}")
    assert " dot(" in body
    copied = re.findall(r"= f32\[(\d+),(\d+)\]\S* copy\(", body)
    assert not copied, copied
