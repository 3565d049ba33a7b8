"""Update rules against Keras's and TensorFlow's own."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import keras
import tensorflow as tf

from batchscience.train.optimizers import DECAY_DEFAULTS, OPTIMIZERS, decayed_learning_rate, optimizer_named
from batchscience.train.workloads import OPTIMIZER_NAMES, default_space

RATE = 0.05
PEERS = {
    "sgd": (lambda: keras.optimizers.SGD(RATE), {}),
    "momentum": (lambda: keras.optimizers.SGD(RATE, momentum=0.8), {"momentum": 0.8}),
    "nesterov_momentum": (
        lambda: keras.optimizers.SGD(RATE, momentum=0.8, nesterov=True),
        {"momentum": 0.8},
    ),
    "adam": (lambda: keras.optimizers.Adam(RATE, beta_1=0.8), {"beta_1": 0.8}),
    "adamw": (lambda: keras.optimizers.AdamW(RATE, weight_decay=0.1), {"weight_decay": 0.1}),
    "lamb": (lambda: keras.optimizers.Lamb(RATE), {}),
    "lion": (lambda: keras.optimizers.Lion(RATE, weight_decay=0.1), {"weight_decay": 0.1}),
    "muon": (
        lambda: keras.optimizers.Muon(
            RATE,
            momentum=0.9,
            adam_beta_1=0.9,
            adam_beta_2=0.999,
            adam_lr_ratio=1,
            weight_decay=0.0,
            adam_weight_decay=0.0,
        ),
        {"momentum": 0.9},
    ),
}


def _updated(name: str, settings: dict[str, float], start: list, gradients: list) -> list[np.ndarray]:
    rule = OPTIMIZERS[name]
    given = {**DECAY_DEFAULTS, **rule.defaults, **settings, "learning_rate": RATE}
    scalars = {key: tf.constant(value, tf.float32) for key, value in given.items()}
    weights = [tf.constant(w) for w in start]
    slots = [tf.zeros_like(w) for _ in range(rule.slots) for w in weights]
    for step, of_step in enumerate(gradients):
        rate = decayed_learning_rate(scalars, tf.constant(step))
        weights, slots = rule.update(weights, slots, of_step, tf.constant(step), rate, scalars)
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("name", OPTIMIZER_NAMES)
def test_five_updates_equal_those_of_keras(name):
    rng = np.random.default_rng(0)
    shapes = [(6, 4), (4,), (3, 3, 2, 2)]
    start = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    gradients = [[rng.standard_normal(shape).astype(np.float32) for shape in shapes] for _ in range(5)]
    make, settings = PEERS[name]
    peer = make()
    variables = [keras.Variable(w) for w in start]
    peer.build(variables)
    for of_step in gradients:
        peer.apply([tf.constant(g) for g in of_step], variables)
    ours = _updated(name, settings, start, gradients)
    for own, theirs, first in zip(ours, variables, start, strict=True):
        np.testing.assert_allclose(own, theirs.numpy(), rtol=2e-4, atol=2e-5)
        assert np.abs(own - first).max() > 1e-3


def test_momentum_is_that_of_the_paper_also_while_the_learning_rate_decays():
    rng = np.random.default_rng(1)
    gradients = rng.standard_normal((4, 1, 3)).astype(np.float32)
    decay = {"learning_rate_decay_steps": 4.0, "end_learning_rate_factor": 0.1, "momentum": 0.9}
    ours = _updated("momentum", decay, [np.zeros(3, np.float32)], [list(g) for g in gradients])[0]
    w, v = np.zeros(3), np.zeros(3)
    for step, (g,) in enumerate(gradients):
        v = 0.9 * v + g
        w = w - RATE * (1 - 0.9 * step / 4) * v
    np.testing.assert_allclose(ours, w, rtol=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 0.5])
def test_the_learning_rate_decays_linearly_and_then_stays(factor):
    settings = {
        "learning_rate": tf.constant(0.2),
        "learning_rate_decay_steps": tf.constant(10.0),
        "end_learning_rate_factor": tf.constant(factor),
    }
    peer = keras.optimizers.schedules.PolynomialDecay(0.2, 10, 0.2 * factor)
    for step in (0, 1, 9, 10, 11, 500):
        assert float(decayed_learning_rate(settings, step)) == pytest.approx(float(peer(step)), rel=1e-4)
    constant = settings | {"learning_rate_decay_steps": tf.constant(0.0)}
    assert float(decayed_learning_rate(constant, 7)) == pytest.approx(0.2)


def test_every_optimizer_has_a_search_space_whose_settings_it_uses():
    for name in OPTIMIZER_NAMES:
        known = {*optimizer_named(name).defaults, *DECAY_DEFAULTS, "learning_rate", "label_smoothing"}
        assert {parameter.name for parameter in default_space(name)} <= known
    assert tuple(OPTIMIZERS) == OPTIMIZER_NAMES


def test_an_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="expected one of sgd, momentum"):
        optimizer_named("sgdd")
