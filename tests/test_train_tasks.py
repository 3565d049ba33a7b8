"""Losses and metrics against plain NumPy, Keras and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

from batchscience.train.tasks import TASKS, average_precision, smoothed_cross_entropy


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("smoothing", [0.0, 0.01, 0.1])
def test_label_smoothing_is_that_of_keras_times_k_over_k_minus_one(classes, smoothing):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((20, classes)).astype(np.float32)
    labels = rng.integers(0, classes, 20).astype(np.int32)
    peer = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=smoothing * classes / (classes - 1), reduction="none"
    )
    theirs = peer(tf.one_hot(labels, classes), logits)
    ours = smoothed_cross_entropy(tf.constant(logits), labels, tf.constant(smoothing))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_padding_words_count_neither_in_the_loss_nor_in_the_metrics():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 4, 6)).astype(np.float32)
    targets = np.array([[1, 2, 0, 0], [5, 0, 0, 0], [3, 3, 3, 3]], np.int32)
    losses, weights = TASKS["language"].loss(
        tf.constant(logits), targets, {"label_smoothing": tf.constant(0.0)}
    )
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    real = targets != 0
    entropy = -np.take_along_axis(log_p, targets[..., None], -1)[..., 0][real].mean()
    assert float(tf.reduce_sum(losses * weights) / tf.reduce_sum(weights)) == pytest.approx(entropy, rel=1e-5)
    sums = TASKS["language"].sums(tf.constant(logits), targets, tf.constant([1.0, 1.0, 1.0]))
    metrics = TASKS["language"].finished({name: value.numpy() for name, value in sums.items()})
    assert metrics["cross_entropy_error"] == pytest.approx(entropy, rel=1e-5)
    assert metrics["classification_error"] == pytest.approx((logits.argmax(-1) != targets)[real].mean())


def test_average_precision_from_binned_scores_is_that_of_scikit_learn():
    from sklearn.metrics import average_precision_score

    rng = np.random.default_rng(0)
    targets = (rng.random((400, 12)) < 0.2).astype(np.uint8)
    logits = (rng.standard_normal(targets.shape) + 1.5 * targets).astype(np.float32)
    sums = TASKS["labels"].sums(tf.constant(logits), targets, tf.ones(400))
    metrics = TASKS["labels"].finished({name: value.numpy() for name, value in sums.items()})
    exact = average_precision_score(targets.reshape(-1), logits.reshape(-1))
    assert metrics["average_precision"] == pytest.approx(exact, abs=2e-3)
    # On the bins' own scores there is nothing left to differ.
    bins = np.round(np.clip((logits + 20) / 40, 0, 1) * 4095)
    exact = average_precision_score(targets.reshape(-1), bins.reshape(-1))
    assert metrics["average_precision"] == pytest.approx(exact, rel=1e-6)


def test_average_precision_without_positives_is_no_number():
    assert np.isnan(average_precision(np.zeros(3), np.ones(3)))


def test_a_diverged_model_is_never_right():
    nan = tf.constant([[float("nan")] * 3] * 2)
    sums = TASKS["classification"].sums(nan, np.array([0, 0], np.int32), tf.constant([1.0, 1.0]))
    assert float(sums["classification_error"]) == 2


@pytest.mark.parametrize("name", ["classification", "language", "labels", "regression", "loss"])
def test_examples_that_are_not_present_count_nowhere_even_when_they_are_not_finite(name):
    outputs = {"language": (4, 3, 5), "loss": (4,)}.get(name, (4, 5))
    targets = {"language": (4, 3), "labels": (4, 5), "regression": (4, 5)}.get(name, (4,))
    rng = np.random.default_rng(0)
    x = rng.standard_normal(outputs).astype(np.float32)
    kinds = {"regression": np.float32, "labels": np.uint8}
    y = rng.integers(0, 2, targets).astype(kinds.get(name, np.int32))
    spoiled = np.concatenate([x, np.full((2, *outputs[1:]), np.nan, np.float32)])
    task = TASKS[name]

    def metrics(x, y, present):
        sums = task.sums(tf.constant(x), tf.constant(y), tf.constant(present))
        return task.finished({key: np.asarray(value) for key, value in sums.items()})

    whole = metrics(x, y, [1.0] * 4)
    padded = metrics(spoiled, np.concatenate([y, y[:2]]), [1.0] * 4 + [0.0] * 2)
    assert set(whole) == set(task.metrics)
    assert padded == pytest.approx(whole, rel=1e-6, nan_ok=True)
