"""What a model is trained for: the loss of an example, and the metrics of a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Sums = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Task:
    """The loss and metrics of a kind of problem.

    Parameters
    ----------
    name : str
        For example ``"classification"``.
    loss : callable
        ``loss(outputs, targets, settings)`` returns the losses of the examples (or of the words of
        sentences) and their weights, of one shape; the training loss is Σ weight · loss / Σ weight over
        the global batch.
    metrics : tuple of str
        Names without their split, for example ``"cross_entropy_error"``.
    sums : callable
        ``sums(outputs, targets, present)`` returns sums over the examples that are `present` (1 or 0 each).
    finished : callable
        The metrics, from the sums over a whole split.
    """

    name: str
    loss: Callable[[Any, Any, Mapping[str, Any]], tuple[Any, Any]]
    metrics: tuple[str, ...]
    sums: Callable[[Any, Any, Any], Sums]
    finished: Callable[[Mapping[str, NDArray[Any]]], dict[str, float]]


def smoothed_cross_entropy(logits: Any, labels: Any, smoothing: Any) -> Any:
    """Cross entropy of softmax with label smoothing as the archive means it.

    The target gives 1 − ε to the label and ε/(K − 1) to each of the other K − 1 classes; Keras's
    ``label_smoothing`` spreads ε over all K classes, so it must be ε·K/(K − 1) for the same loss.

    Parameters
    ----------
    logits : tensor (…, K)
    labels : tensor of int (…)
    smoothing : scalar tensor
        ε, from 0 up to less than 1.

    Returns
    -------
    tensor (…)
    """
    classes = logits.shape[-1]
    log_p = tf.nn.log_softmax(logits)
    # The product with one-hot rows, unlike a gather, also maps well to many trials at once.
    of_label = tf.reduce_sum(log_p * tf.one_hot(labels, classes), -1)
    others = (tf.reduce_sum(log_p, -1) - of_label) / max(classes - 1, 1)
    return -(1.0 - smoothing) * of_label - smoothing * others


def _ratio(sums: Mapping[str, NDArray[Any]], name: str) -> float:
    count = float(sums["count"])
    return float(sums[name]) / count if count else float("nan")


def _class_loss(outputs: Any, targets: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    losses = smoothed_cross_entropy(outputs, targets, settings["label_smoothing"])
    return losses, tf.ones_like(losses)


def _class_sums(outputs: Any, targets: Any, present: Any) -> Sums:
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=outputs)
    # argmax of NaN is some class; a model that has diverged must not be right by chance.
    finite = tf.reduce_all(tf.math.is_finite(outputs), -1)
    right = (tf.argmax(outputs, -1, output_type=tf.int32) == tf.cast(targets, tf.int32)) & finite
    # A product would let the NaN of a padded example through.
    kept = tf.where(present > 0, entropy, 0.0)
    return {
        "cross_entropy_error": tf.reduce_sum(kept),
        "classification_error": tf.reduce_sum(tf.where(right, 0.0, present)),
        "count": tf.reduce_sum(present),
    }


def _class_metrics(sums: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    return {name: _ratio(sums, name) for name in ("cross_entropy_error", "classification_error")}


def _word_loss(outputs: Any, targets: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    losses = smoothed_cross_entropy(outputs, targets, settings["label_smoothing"])
    return losses, tf.cast(targets != 0, tf.float32)


def _word_sums(outputs: Any, targets: Any, present: Any) -> Sums:
    words = tf.cast(targets != 0, tf.float32) * present[:, tf.newaxis]
    return _class_sums(outputs, targets, words)


def _label_loss(outputs: Any, targets: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    smoothing = settings["label_smoothing"]
    wanted = tf.cast(targets, tf.float32) * (1.0 - 2.0 * smoothing) + smoothing
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=outputs)
    losses = tf.reduce_mean(entropy, -1)
    return losses, tf.ones_like(losses)


SCORE_BINS = 4096
"""Scores of several labels are counted in so many bins of the logit between −20 and 20."""


def _label_sums(outputs: Any, targets: Any, present: Any) -> Sums:
    wanted = tf.cast(targets, tf.float32)
    entropy = tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=outputs)
    kept = tf.where(present > 0, tf.reduce_mean(entropy, -1), 0.0)
    place = tf.clip_by_value((outputs + 20.0) / 40.0, 0.0, 1.0) * (SCORE_BINS - 1)
    bins = tf.reshape(tf.cast(tf.round(place), tf.int32), (-1,))
    there = tf.broadcast_to(present[:, tf.newaxis], tf.shape(outputs))
    counts = [
        tf.math.unsorted_segment_sum(tf.reshape(there * weight, (-1,)), bins, SCORE_BINS)
        for weight in (wanted, 1.0 - wanted)
    ]
    return {
        "cross_entropy_error": tf.reduce_sum(kept),
        "count": tf.reduce_sum(present),
        "positive": counts[0],
        "negative": counts[1],
    }


def average_precision(positive: NDArray[Any], negative: NDArray[Any]) -> float:
    """Average precision from counts of positive and negative (example, label) pairs per score.

    Parameters
    ----------
    positive, negative : array (scores,)
        Counts in increasing order of the score.

    Returns
    -------
    float
        Σ (recall step) × precision over the scores from the highest down, pairs of one score taken
        together (as scikit-learn does); NaN without positives.

    Examples
    --------
    >>> average_precision(np.array([0, 1, 1]), np.array([1, 1, 0]))
    0.833...
    """
    hits = np.cumsum(np.asarray(positive, np.float64)[::-1])
    shown = hits + np.cumsum(np.asarray(negative, np.float64)[::-1])
    if hits[-1] == 0:
        return float("nan")
    steps = np.diff(hits, prepend=0.0) / hits[-1]
    precision = np.divide(hits, shown, out=np.zeros_like(hits), where=shown > 0)
    return float(np.sum(steps * precision))


def _label_metrics(sums: Mapping[str, NDArray[Any]]) -> dict[str, float]:
    return {
        "cross_entropy_error": _ratio(sums, "cross_entropy_error"),
        "average_precision": average_precision(sums["positive"], sums["negative"]),
    }


def _square_loss(outputs: Any, targets: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    del settings
    losses = tf.reduce_mean(tf.square(outputs - targets), -1)
    return losses, tf.ones_like(losses)


def _square_sums(outputs: Any, targets: Any, present: Any) -> Sums:
    losses = tf.reduce_mean(tf.square(outputs - targets), -1)
    return {
        "squared_error": tf.reduce_sum(tf.where(present > 0, losses, 0.0)),
        "count": tf.reduce_sum(present),
    }


def _given_loss(outputs: Any, targets: Any, settings: Mapping[str, Any]) -> tuple[Any, Any]:
    del targets, settings
    return outputs, tf.ones_like(outputs)


def _given_sums(outputs: Any, targets: Any, present: Any) -> Sums:
    del targets
    return {"loss": tf.reduce_sum(tf.where(present > 0, outputs, 0.0)), "count": tf.reduce_sum(present)}


TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Task(
            "classification",
            _class_loss,
            ("cross_entropy_error", "classification_error"),
            _class_sums,
            _class_metrics,
        ),
        Task(
            "language",
            _word_loss,
            ("cross_entropy_error", "classification_error"),
            _word_sums,
            _class_metrics,
        ),
        Task(
            "labels", _label_loss, ("cross_entropy_error", "average_precision"), _label_sums, _label_metrics
        ),
        Task(
            "regression",
            _square_loss,
            ("squared_error",),
            _square_sums,
            lambda sums: {"squared_error": _ratio(sums, "squared_error")},
        ),
        Task("loss", _given_loss, ("loss",), _given_sums, lambda sums: {"loss": _ratio(sums, "loss")}),
    )
}
"""Tasks by name.

``classification`` has one class per example, ``labels`` any number of labels (Open Images),
``language`` a next word for every word (0 = padding, which counts nowhere), ``regression`` numbers, and
``loss`` a model whose output is the loss.  Errors are means over the examples (words) of a split.
"""
