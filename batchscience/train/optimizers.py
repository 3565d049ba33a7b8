"""Update rules as pure functions of (weights, slots, gradients), and the decay of the learning rate.

A rule sees the gradient of the mean loss over the global batch, already summed over replicas, and makes
one update of it.  Settings are scalar tensors, not constants, so that one compiled program serves every
trial of a study.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

Tensors = Sequence[Any]
Update = Callable[[Tensors, Tensors, Tensors, Any, Any, Mapping[str, Any]], tuple[list[Any], list[Any]]]


@dataclass(frozen=True, slots=True)
class Optimizer:
    """An update rule.

    Parameters
    ----------
    name : str
        As in a workload's name.
    slots : int
        Number of slots of each weight (momenta and the like), which start at zero.
    defaults : mapping of str to float
        Settings that a search space need not give, with their values.
    update : callable
        ``update(weights, slots, gradients, step, learning_rate, settings)`` returns the new weights and
        slots; `slots` holds all first slots, then all second ones; `step` counts updates from 0.
    """

    name: str
    slots: int
    defaults: Mapping[str, float]
    update: Update


DECAY_DEFAULTS = {"learning_rate_decay_steps": 0.0, "end_learning_rate_factor": 1.0}
"""No decay."""


def decayed_learning_rate(settings: Mapping[str, Any], step: Any) -> Any:
    """The learning rate of an update.

    Parameters
    ----------
    settings : mapping of str to scalar tensor
        ``learning_rate``, ``learning_rate_decay_steps`` and ``end_learning_rate_factor``.
    step : scalar tensor
        Updates made so far, so 0 for the first.

    Returns
    -------
    scalar tensor

    Notes
    -----
    It falls linearly from ``learning_rate`` to ``end_learning_rate_factor`` × ``learning_rate`` over
    ``learning_rate_decay_steps`` updates and stays there.  With 0 decay steps it is constant.
    """
    length = settings["learning_rate_decay_steps"]
    along = tf.minimum(tf.cast(step, tf.float32) / tf.maximum(length, 1.0), 1.0)
    factor = 1.0 - (1.0 - settings["end_learning_rate_factor"]) * along
    return settings["learning_rate"] * tf.where(length > 0, factor, 1.0)


def _sgd(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    del step, settings
    return [w - rate * g for w, g in zip(weights, gradients, strict=True)], list(slots)


def _momentum(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    del step
    velocity = [settings["momentum"] * v + g for v, g in zip(slots, gradients, strict=True)]
    return [w - rate * v for w, v in zip(weights, velocity, strict=True)], velocity


def _nesterov_momentum(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    del step
    velocity = [settings["momentum"] * v + g for v, g in zip(slots, gradients, strict=True)]
    moved = [
        w - rate * (g + settings["momentum"] * v)
        for w, g, v in zip(weights, gradients, velocity, strict=True)
    ]
    return moved, velocity


def _moments(
    slots: Tensors, gradients: Tensors, step: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any], Any, Any]:
    count = len(gradients)
    one, two = settings["beta_1"], settings["beta_2"]
    first = [m + (g - m) * (1.0 - one) for m, g in zip(slots[:count], gradients, strict=True)]
    second = [v + (g * g - v) * (1.0 - two) for v, g in zip(slots[count:], gradients, strict=True)]
    updates = tf.cast(step, tf.float32) + 1.0
    return first, second, 1.0 - tf.pow(one, updates), 1.0 - tf.pow(two, updates)


def _adam(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    first, second, bias_1, bias_2 = _moments(slots, gradients, step, settings)
    # As in Keras, epsilon is added before the correction of the second moment's bias.
    scale = rate * tf.sqrt(bias_2) / bias_1
    kept = 1.0 - rate * settings["weight_decay"]
    moved = [
        w * kept - scale * m / (tf.sqrt(v) + settings["epsilon"])
        for w, m, v in zip(weights, first, second, strict=True)
    ]
    return moved, [*first, *second]


def _lamb(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    first, second, bias_1, bias_2 = _moments(slots, gradients, step, settings)
    moved = []
    for w, m, v in zip(weights, first, second, strict=True):
        direction = (m / bias_1) / (tf.sqrt(v / bias_2) + settings["epsilon"])
        direction += settings["weight_decay"] * w
        length, wanted = tf.norm(direction), tf.norm(w)
        both = (length > 0) & (wanted > 0)
        trust = tf.where(both, wanted / tf.where(both, length, 1.0), 1.0)
        moved.append(w - rate * trust * direction)
    return moved, [*first, *second]


def _lion(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    del step
    one, two = settings["beta_1"], settings["beta_2"]
    kept = 1.0 - rate * settings["weight_decay"]
    moved = [
        w * kept - rate * tf.sign(one * m + (1.0 - one) * g)
        for w, m, g in zip(weights, slots, gradients, strict=True)
    ]
    return moved, [two * m + (1.0 - two) * g for m, g in zip(slots, gradients, strict=True)]


def _orthogonal(matrix: Any) -> Any:
    """Five Newton–Schulz iterations towards the nearest semi-orthogonal matrix."""
    tall = matrix.shape[-2] > matrix.shape[-1]
    x = tf.transpose(matrix) if tall else matrix
    x = x / (tf.norm(x) + 1e-7)
    for _ in range(5):
        square = tf.matmul(x, x, transpose_b=True)
        x = 3.4445 * x + tf.matmul(-4.7750 * square + 2.0315 * tf.matmul(square, square), x)
    return tf.transpose(x) if tall else x


def _muon(
    weights: Tensors, slots: Tensors, gradients: Tensors, step: Any, rate: Any, settings: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    count = len(weights)
    adam_weights, adam_slots = _adam(weights, slots, gradients, step, rate, settings)
    kept = 1.0 - rate * settings["weight_decay"]
    beta = settings["momentum"]
    for i, (w, m, g) in enumerate(zip(weights, slots[:count], gradients, strict=True)):
        if len(w.shape) != 2:
            continue
        m = beta * m + g
        direction = _orthogonal(g + beta * m)
        scale = 0.2 * max(int(w.shape[0]), int(w.shape[1])) ** 0.5
        adam_weights[i] = w * kept - rate * scale * direction
        adam_slots[i] = m
    return adam_weights, adam_slots


_ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "weight_decay": 0.0}

OPTIMIZERS: Mapping[str, Optimizer] = {
    rule.name: rule
    for rule in (
        Optimizer("sgd", 0, {}, _sgd),
        Optimizer("momentum", 1, {"momentum": 0.9}, _momentum),
        Optimizer("nesterov_momentum", 1, {"momentum": 0.9}, _nesterov_momentum),
        Optimizer("adam", 2, _ADAM, _adam),
        Optimizer("adamw", 2, _ADAM | {"weight_decay": 0.004}, _adam),
        Optimizer("lamb", 2, _ADAM, _lamb),
        Optimizer("lion", 1, {"beta_1": 0.9, "beta_2": 0.99, "weight_decay": 0.0}, _lion),
        Optimizer("muon", 2, _ADAM | {"momentum": 0.95}, _muon),
    )
}
"""Rules by name.

``momentum`` is v ← m·v + g, w ← w − lr·v; ``nesterov_momentum`` moves by g + m·v instead (both as in
TensorFlow 1's MomentumOptimizer; Keras folds the learning rate into v, which differs when it decays).
``adam``, ``adamw``, ``lamb`` and ``lion`` agree with Keras's.  ``muon`` orthogonalises the momentum of
every weight that is a matrix, with the scale 0.2·√max(rows, columns) of Liu et al. (2025), and takes
adam for the others, with the same learning rate.
"""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of a name.

    Raises
    ------
    ValueError
        If there is none of that name.

    Examples
    --------
    >>> optimizer_named("momentum").defaults["momentum"]
    0.9
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r}: expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]
