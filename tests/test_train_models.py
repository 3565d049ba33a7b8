"""Models: sizes that are known, and one compiled step of each, as a TPU needs it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from batchscience.train import models
from batchscience.train.data import DataSet, Split
from batchscience.train.devices import strategy_for
from tests.train_support import small_trainer, small_trial

IMAGE = tf.TensorSpec((28, 28, 1))


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "size"),
    [
        ("fc_1024", (28, 28, 1), 10, 784 * 1024 + 1024 + 1024 * 10 + 10),
        ("fc_128_128_128", (8,), 10, 8 * 128 + 128 + 2 * (128 * 128 + 128) + 1290),
        ("tanh_5", (1,), 1, 16),
        # Counted by others for the same architectures.
        ("resnet_50", (224, 224, 3), 1000, 25_557_032),
        ("vgg_11", (224, 224, 3), 1000, 132_863_336),
    ],
)
def test_a_model_has_as_many_parameters_as_its_architecture(name, shape, outputs, size):
    spec = tf.TensorSpec(shape)
    assert models.network(models.forward_named(name, outputs), spec).size == size


def test_every_model_of_the_paper_is_there():
    from batchscience import paper

    names = {workload.name.split("/")[-2] for workload in paper.WORKLOADS}
    for name in names:
        assert callable(models.forward_named(name, 10))
    with pytest.raises(ValueError, match="expected one of fc_W"):
        models.forward_named("resnet_9", 10)


def _images(shape, outputs=4, count=8, **options):
    rng = np.random.default_rng(0)
    split = Split(
        rng.standard_normal((count, *shape)).astype(np.float32),
        rng.integers(0, outputs, count).astype(np.int32),
    )
    return DataSet("images", "classification", outputs, split, **options)


def _sentences(count=8, length=6, vocabulary=11):
    words = np.random.default_rng(0).integers(1, vocabulary, (count, length)).astype(np.int32)
    inputs = np.concatenate([np.zeros((count, 1), np.int32), words[:, :-1]], 1)
    return DataSet("sentences", "language", vocabulary, Split(inputs, words))


SMALL = {
    "fc": (models.fully_connected((6, 5), 4), lambda: _images((3,))),
    "simple_cnn": (models.simple_cnn((2, 3), 5, 4), lambda: _images((8, 8, 1))),
    "resnet_8": (models.resnet_8(4), lambda: _images((8, 8, 3))),
    "resnet_50": (
        models.resnet_50(4, ghost=2, widths=(2, 2, 2, 2), blocks=(1, 1, 2, 1)),
        lambda: _images((16, 16, 3)),
    ),
    "vgg_11": (
        models.vgg_11(4, widths=(2, 2, 2, 2, 2, 2, 2, 2), hidden=4),
        lambda: _images((32, 32, 3), count=4),
    ),
    "transformer": (models.transformer(models.TransformerSize(2, 8, 12, 2), 11), _sentences),
    "lstm": (models.lstm(2, 5, 11), _sentences),
    "tanh": (models.tanh_network(5, 4), lambda: _images((1,))),
}


@pytest.mark.parametrize("name", SMALL)
def test_steps_compile_with_xla_and_equal_those_that_are_not_compiled(name):
    forward, make = SMALL[name]
    data_set = make()
    curves = []
    for compiled in (True, False):
        trainer = small_trainer(
            strategy_for("cpu"),
            "momentum",
            data_set=data_set,
            forward=forward,
            batch_size=4,
            compiled=compiled,
        )
        outcome = small_trial(trainer, {"learning_rate": 0.02, "momentum": 0.5}, steps=3)
        assert outcome.status == "COMPLETE"
        curves.append([row["train/cross_entropy_error"] for _, row in outcome.rows])
    np.testing.assert_allclose(*curves, rtol=2e-4)
    assert curves[0][0] != curves[0][-1]


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_language_model_does_not_see_the_words_to_come(name):
    forward, make = SMALL[name]
    data_set = make()
    net = models.network(forward, data_set.input_spec())
    weights, statistics = net.drawn(np.random.default_rng(0))
    tokens = np.array(data_set.train.inputs[:2])
    changed = tokens.copy()
    changed[:, 3] = (changed[:, 3] + 1) % 11
    before, after = (
        np.asarray(net.apply(weights, statistics, tf.constant(x), True)[0]) for x in (tokens, changed)
    )
    np.testing.assert_allclose(before[:, :3], after[:, :3], atol=1e-6)
    assert np.abs(before[:, 3:] - after[:, 3:]).max() > 1e-3


def test_the_lstm_equals_keras_layer_of_the_same_weights():
    import keras

    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 5, 4)).astype(np.float32)
    kernel, recurrent = (rng.standard_normal(s).astype(np.float32) for s in ((4, 24), (6, 24)))
    bias = rng.standard_normal(24).astype(np.float32)
    layer = keras.layers.LSTM(6, return_sequences=True)
    layer.build(x.shape)
    # Keras adds nothing to the forget gate while it runs; ours adds 1.
    shifted = bias.copy()
    shifted[6:12] += 1
    layer.set_weights([kernel, recurrent, shifted])
    ours = models._recurrence(tf.constant(x @ kernel + bias), tf.constant(recurrent), 6)
    np.testing.assert_allclose(ours, layer(x), atol=1e-5)


def test_batch_norm_takes_the_moments_of_the_batch_and_keeps_running_ones():
    rng = np.random.default_rng(0)
    x = (3 + 2 * rng.standard_normal((8, 5))).astype(np.float32)
    net = models.network(lambda scope, x: scope.batch_norm(x), tf.TensorSpec((5,)))
    weights, statistics = net.drawn(rng)
    y, moved = net.apply(weights, statistics, tf.constant(x), True)
    np.testing.assert_allclose(np.mean(y, 0), 0, atol=1e-5)
    np.testing.assert_allclose(np.std(y, 0), 1, rtol=1e-3)
    np.testing.assert_allclose(moved[0], 0.1 * x.mean(0), rtol=1e-4)
    np.testing.assert_allclose(moved[1], 0.9 + 0.1 * x.var(0), rtol=1e-4)
    y, same = net.apply(weights, moved, tf.constant(x), False)
    np.testing.assert_allclose(y, (x - moved[0]) / np.sqrt(moved[1] + 1e-5), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(same[0], moved[0])
    assert net.norm_batch(8) == 8


@pytest.mark.parametrize(("share", "seen"), [(8, 4), (4, 4), (6, 6), (2, 2)])
def test_ghost_batches_are_used_where_they_divide_a_replicas_share(share, seen):
    net = models.network(lambda scope, x: scope.batch_norm(x, ghost=4), tf.TensorSpec((5,)))
    assert net.norm_batch(share) == seen
    x = np.random.default_rng(0).standard_normal((share, 5)).astype(np.float32)
    y, _ = net.apply(*net.drawn(np.random.default_rng(0)), tf.constant(x), True)
    first = x[:seen]
    np.testing.assert_allclose(
        y[:seen], (first - first.mean(0)) / np.sqrt(first.var(0) + 1e-5), rtol=1e-4, atol=1e-5
    )


def test_a_keras_model_trains_like_our_own_of_the_same_first_weights():
    import keras

    def build():
        return keras.Sequential(
            [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(10)]
        )

    theirs = models.keras_network(build)
    first, again, other = (theirs.drawn(np.random.default_rng(seed))[0] for seed in (5, 5, 6))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0], other[0])
    trainer = small_trainer(strategy_for("cpu"))
    own = small_trial(trainer, {"learning_rate": 0.2})
    trainer_of_keras = small_trainer(strategy_for("cpu"))
    drawn = trainer.network.drawn(np.random.default_rng([1, 2, 0]))
    trainer_of_keras.network = models.Network(
        theirs.weights, theirs.statistics, theirs.apply, initial=lambda rng: drawn
    )
    keras_outcome = small_trial(trainer_of_keras, {"learning_rate": 0.2})
    for (_, a), (_, b) in zip(own.rows, keras_outcome.rows, strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def test_a_keras_model_of_unknown_input_is_refused():
    import keras

    with pytest.raises(ValueError, match=r"keras\.Input"):
        models.keras_network(lambda: keras.Sequential([keras.layers.Dense(3)]))
