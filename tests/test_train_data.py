"""Data sets: what is made here, what is read from files, and in which order examples come."""

from __future__ import annotations

import gzip
import os
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchscience.errors import TrainingError

pytest.importorskip("tensorflow")

from batchscience.train import data


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 60),
    seed=st.integers(0, 5),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=8),
)
@settings(deadline=None)
def test_every_pass_takes_each_example_at_most_once_and_drops_only_the_remainder(size, batch, seed, cuts):
    if batch > size:
        with pytest.raises(TrainingError, match=f"larger than the training set of {size} examples"):
            data.training_order(size, batch, seed=(seed,))
        return
    order = data.training_order(size, batch, seed=(seed,))
    each = size // batch
    for number in range(2):
        one_pass = order(number * each, each).reshape(-1)
        assert len(one_pass) == each * batch
        assert len(set(one_pass.tolist())) == len(one_pass)
        assert one_pass.min() >= 0
        assert one_pass.max() < size
    # However the steps are cut into calls, and from wherever they go on, they are the same.
    whole = order(0, sum(cuts))
    step = 0
    again = data.training_order(size, batch, seed=(seed,))
    for count in cuts:
        assert np.array_equal(again(step, count), whole[step : step + count])
        step += count


def test_two_passes_are_shuffled_differently():
    order = data.training_order(1000, 1000, seed=(0,))
    assert not np.array_equal(order(0, 1), order(1, 1))
    assert np.array_equal(np.sort(order(0, 1)), np.sort(order(1, 1)))


def test_draws_with_replacement_repeat_examples_and_are_uniform():
    order = data.training_order(10, 5, seed=(3,), with_replacement=True)
    drawn = order(0, 20_000).reshape(-1)
    counts = np.bincount(drawn, minlength=10)
    # 100,000 draws: standard deviation of a count is 95.
    assert np.all(np.abs(counts - 10_000) < 5 * 95)
    assert any(len(set(row.tolist())) < 5 for row in order(0, 10))


def test_digits_split_into_three_parts_that_share_no_example_and_hold_all_of_them():
    from sklearn.datasets import load_digits

    digits = data.digits()
    parts = [digits.train, digits.val, digits.test]
    assert [part.size for part in parts] == [1280, 259, 258]
    rows = np.concatenate([np.column_stack([part.inputs * 16, part.targets]) for part in parts])
    published = np.column_stack([load_digits().data, load_digits().target])
    assert np.array_equal(rows[np.lexsort(rows.T)], published[np.lexsort(published.T)])


def test_mnist1d_is_the_same_each_time_and_its_shapes_can_be_told_apart():
    one, two = data.mnist1d(), data.mnist1d()
    assert np.array_equal(one.train.inputs, two.train.inputs)
    assert [split.size for split in (one.train, one.val, one.test)] == [4000, 1000, 1000]
    assert one.train.inputs.shape[1:] == (40,)
    everything = np.concatenate([one.train.inputs, one.val.inputs, one.test.inputs])
    assert abs(everything.mean()) < 1e-5
    assert abs(everything.std() - 1) < 1e-5
    assert np.all(np.bincount(np.concatenate([one.train.targets, one.val.targets, one.test.targets])) == 600)
    # The authors report about 32 % accuracy of a linear classifier, where chance is 10 %.
    from sklearn.linear_model import LogisticRegression

    linear = LogisticRegression(max_iter=200).fit(one.train.inputs, one.train.targets)
    assert 0.2 < linear.score(one.test.inputs, one.test.targets) < 0.45


def test_the_noise_of_the_quadratic_has_mean_zero_and_unit_covariance():
    z = data.NoisyQuadratic(dimensions=16, population=512).data_set().train.inputs.astype(np.float64)
    assert np.abs(z.mean(0)).max() < 1e-6
    assert np.abs(z.T @ z / len(z) - np.eye(16)).max() < 1e-5


@pytest.mark.parametrize("batch_size", [1, 8, 100])
def test_the_closed_form_of_the_quadratic_agrees_with_many_simulated_runs(batch_size):
    bowl = data.NoisyQuadratic(dimensions=4, condition=10.0, noise=0.5)
    rng, rate, runs = np.random.default_rng(0), 0.3, 20_000
    w = np.tile(bowl.start, (runs, 1))
    for _ in range(20):
        noise = rng.standard_normal(w.shape) * np.sqrt(bowl.noise * bowl.curvatures / batch_size)
        w -= rate * (bowl.curvatures * w - noise)
    losses = 0.5 * (bowl.curvatures * w * w).sum(1)
    error = losses.std() / np.sqrt(runs)
    assert abs(losses.mean() - bowl.expected_loss(20, batch_size, rate)) < 4 * error


def test_steps_to_a_loss_are_where_the_closed_form_crosses_it():
    bowl = data.NoisyQuadratic()
    steps = bowl.steps_to_loss(8.0, 32, 0.2)
    assert bowl.expected_loss(steps, 32, 0.2) < 8.0 <= bowl.expected_loss(steps - 1e-6, 32, 0.2)
    assert bowl.steps_to_loss(8.0, 1, 1.0) == np.inf


def _write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def images():
    rng = np.random.default_rng(0)
    return {
        "train": (rng.integers(0, 256, (120, 28, 28)), rng.integers(0, 10, 120)),
        "t10k": (rng.integers(0, 256, (30, 28, 28)), rng.integers(0, 10, 30)),
    }


def _idx_folder(folder: Path, images: dict, end: str) -> None:
    folder.mkdir(parents=True)
    for part, (pixels, labels) in images.items():
        _write_idx(folder / f"{part}-images-idx3-ubyte{end}", pixels)
        _write_idx(folder / f"{part}-labels-idx1-ubyte{end}", labels)


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("folder", ["fashion_mnist", "fashion-mnist", ""])
def test_fashion_mnist_is_read_from_a_folder_of_idx_files(tmp_path, images, end, folder):
    _idx_folder(tmp_path / "sets" / folder, images, end)
    held = data.data_set_named("fashion_mnist", tmp_path / "sets")
    assert [split.size for split in held.splits().values()] == [110, 10, 30]
    pixels, labels = images["train"]
    assert np.array_equal(held.train.inputs[..., 0], pixels[:110])
    assert np.array_equal(held.val.inputs[..., 0], pixels[110:])
    assert np.array_equal(held.val.targets, labels[110:])
    assert np.array_equal(held.test.targets, images["t10k"][1])
    assert held.input_spec().shape == (28, 28, 1)


def test_mnist_is_read_from_an_npz_named_by_the_environment(tmp_path, images, monkeypatch):
    (x, y), (x_test, y_test) = images["train"], images["t10k"]
    np.savez(tmp_path / "mnist.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    monkeypatch.setenv(data.FOLDER_VARIABLE, str(tmp_path))
    subset = data.data_set_named("mnist_subsets/mnist_50")
    assert subset.train.size == 50
    assert np.array_equal(subset.train.inputs[..., 0], x[:50])
    assert data.data_set_named("solution_quality/mnist").train.size == 110


def test_cifar_10_is_read_from_an_npz(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, (40, 1))
    np.savez(tmp_path / "cifar_10.npz", x_train=x, y_train=y, x_test=x[:5], y_test=y[:5])
    held = data.data_set_named("cifar_10", tmp_path)
    assert [split.size for split in held.splits().values()] == [36, 4, 5]
    prepared = np.asarray(held.prepare(held.train.inputs))
    assert np.abs(prepared.mean((1, 2, 3))).max() < 1e-4
    assert np.abs(prepared.std((1, 2, 3)) - 1).max() < 1e-3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>not found</html>", "expected an IDX file"),
        (struct.pack(">HBBI", 0, 8, 1, 10) + b"123", "expected 10 bytes after the header, found 3"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "labels-idx1-ubyte"
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=message) as caught:
        data.read_idx(path)
    assert str(path) in str(caught.value)


@pytest.mark.skipif(
    bool(os.environ.get(data.FOLDER_VARIABLE)), reason="the environment names a folder of data sets"
)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("common_crawl", "put text files, one sentence a line"),
        ("imagenet", "tfds build imagenet2012"),
        ("lm1b", "tfds build lm1b"),
        ("open_images_v4", "tfds build open_images_v4"),
        ("no_such", "expected one of digits"),
    ],
)
def test_a_missing_data_set_says_how_to_get_it(tmp_path, name, hint):
    pytest.importorskip("tensorflow_datasets")
    with pytest.raises(TrainingError, match=hint):
        data.data_set_named(name, tmp_path)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar_10"])
def test_a_failed_download_says_where_to_put_the_files(tmp_path, name, monkeypatch):
    # A proxy that refuses stands for a machine without a network.
    for variable in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9")
    monkeypatch.delenv(data.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr(data, "DEBIAN_FOLDER", tmp_path / "nothing")
    with pytest.raises(TrainingError, match=r"--datasets DIR") as caught:
        data.data_set_named(name, tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert name in str(caught.value)


def test_common_crawl_is_read_from_text_files(tmp_path):
    folder = tmp_path / "common_crawl"
    folder.mkdir()
    lines = [f"the word{i % 7} of line {i} ." for i in range(250)]
    (folder / "a.txt").write_text("\n".join(lines[:100]) + "\n\n")
    (folder / "b.txt").write_text("\n".join(lines[100:]))
    held = data.data_set_named("common_crawl", tmp_path)
    assert [split.size for split in held.splits().values()] == [244, 3, 3]
    sentence, begun = held.val.targets[0], held.val.inputs[0]
    # Every line has "the", and no other word is more frequent or earlier in the alphabet.
    assert len({int(row[0]) for row in held.train.targets}) == 1
    assert np.array_equal(begun[1:], sentence[:-1])
    assert begun[0] == data.PADDING
    assert (sentence != data.PADDING).sum() == 6
    assert (
        held.outputs
        == len({w for line in lines for w in line.split()} - {"0", "1", "100", "101", "200", "201"}) + 2
    )


def test_a_word_that_is_not_in_the_vocabulary_is_unknown_and_long_sentences_are_cut():
    split = data.encoded(["a b zebra", "a " * 10], {"a": 2, "b": 3}, length=4)
    assert split.targets.tolist() == [[2, 3, data.UNKNOWN, 0], [2, 2, 2, 2]]
    assert split.inputs.tolist() == [[0, 2, 3, 1], [0, 2, 2, 2]]


# ------------------------------------------------------------------- tensorflow-datasets


def _prepared_tfds(name: str, root: Path, examples: dict[str, list[dict]]) -> None:
    """Small files of a data set, written by tensorflow-datasets itself with the real one's features."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=str(root))
    info = builder.info
    identity = tfds.core.dataset_info.DatasetIdentity.from_builder(builder)
    Path(builder.data_path).mkdir(parents=True)
    written = tfds.core.DatasetInfo(builder=identity, features=info.features)
    writer = tfds.core.SequentialWriter(written, max_examples_per_shard=1000)
    writer.initialize_splits(list(examples))
    for split, rows in examples.items():
        writer.add_examples({split: rows})
    writer.close_all()


tfds_warnings = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def _marked(test):
    for mark in tfds_warnings:
        test = mark(test)
    return test


@_marked
def test_imagenet_is_streamed_with_validation_held_out(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    rng = np.random.default_rng(0)

    def rows(count, first):
        return [
            {
                "image": rng.integers(0, 256, (20 + i % 3, 31, 3), dtype=np.uint8),
                "label": (first + i) % 1000,
                "file_name": f"{first + i}.JPEG",
            }
            for i in range(count)
        ]

    _prepared_tfds("imagenet2012", tmp_path, {"train": rows(60, 470), "validation": rows(7, 0)})
    held = data.imagenet(datasets=tmp_path, size=16)
    assert [split.size for split in held.splits().values()] == [54, 6, 7]
    assert held.input_spec().shape == (16, 16, 3)

    def labels(stream, **options):
        options = {"seed": None, "drop_remainder": False} | options
        return [label for _, y in stream.batches(4, **options) for label in y.tolist()]

    assert sorted(labels(held.train) + labels(held.val)) == list(range(470, 530))
    assert labels(held.test) == list(range(7))
    first, again, other = (labels(held.train, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)
    assert labels(held.train, seed=1, skip=3) == first[12:]
    assert len(labels(held.train, seed=1, drop_remainder=True)) == 52
    half = data.imagenet("imagenet_subsets/imagenet_half_classes", datasets=tmp_path, size=16)
    assert half.outputs == 500
    assert labels(half.train) == [label for label in labels(held.train) if label < 500]
    assert half.train.size == len(labels(half.train))
    fewer = data.imagenet("imagenet_subsets/imagenet_half_images", datasets=tmp_path, size=16)
    assert fewer.train.size == 27 == len(labels(fewer.train))


@_marked
def test_lm1b_is_streamed_as_numbers_of_words(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    rows = {
        "train": [{"text": f"the cat number {i} ."} for i in range(20)],
        "test": [{"text": "the unheard cat"} for _ in range(6)],
    }
    _prepared_tfds("lm1b", tmp_path, rows)
    held = data.lm1b(tmp_path)
    assert [split.size for split in held.splits().values()] == [20, 3, 3]
    inputs, targets = next(held.val.batches(3, seed=None))
    # ".", "cat", "number", "the" stand in every sentence, so they come first, in order of the alphabet.
    assert targets[0, :4].tolist() == [5, data.UNKNOWN, 3, data.PADDING]
    assert inputs[0, :4].tolist() == [data.PADDING, 5, data.UNKNOWN, 3]


@_marked
def test_open_images_have_any_number_of_sure_labels(tmp_path):
    pytest.importorskip("tensorflow_datasets")
    pixels = np.zeros((20, 20, 3), np.uint8)

    def row(labels, confidences):
        objects = [
            {"label": label, "confidence": sure, "source": 0}
            for label, sure in zip(labels, confidences, strict=True)
        ]
        return {
            "image": pixels,
            "image/filename": "a",
            "objects": [],
            "objects_trainable": objects,
            "bobjects": [],
        }

    rows = [row([3, 5, 7], [10, 0, 10]), row([], [])]
    _prepared_tfds("open_images_v4", tmp_path, {"train": rows, "validation": rows, "test": rows})
    held = data.open_images_v4(tmp_path, size=8)
    _, targets = next(held.val.batches(2, seed=None))
    assert np.flatnonzero(targets[0]).tolist() == [3, 7]
    assert targets[1].sum() == 0
    assert targets.shape[1] == held.outputs > 7


# What tensorflow-datasets documents of these data sets; its package does not come with it.
PUBLISHED_SPLITS = {
    "imagenet2012": {"train": 1_281_167, "validation": 50_000},
    "open_images_v4": {"train": 1_743_042, "validation": 41_620, "test": 125_436},
    "lm1b": {"train": 30_301_028, "test": 306_688},
}


@pytest.fixture
def mocked(tmp_path):
    """A data set of tensorflow-datasets at its published size, with no file but its description."""
    tfds = pytest.importorskip("tensorflow_datasets")

    def mock(name, **options):
        builder = tfds.builder(name, data_dir=str(tmp_path))
        identity = tfds.core.dataset_info.DatasetIdentity.from_builder(builder)
        described = tfds.core.DatasetInfo(builder=identity, features=builder.info.features)
        files = tfds.core.ShardedFileTemplate(
            data_dir=builder.data_path, dataset_name=builder.name, filetype_suffix="tfrecord"
        )
        splits = [
            tfds.core.splits.SplitInfo(name=part, shard_lengths=[size], num_bytes=0, filename_template=files)
            for part, size in PUBLISHED_SPLITS[name].items()
        ]
        described.set_splits(tfds.core.splits.SplitDict(splits))
        Path(builder.data_path).mkdir(parents=True)
        described.write_to_directory(builder.data_path)
        return tfds.testing.mock_data(num_examples=24, data_dir=str(tmp_path), **options)

    return mock


@_marked
def test_imagenet_takes_the_mock_examples_of_tensorflow_datasets(mocked, tmp_path):
    with mocked("imagenet2012"):
        held = data.imagenet(datasets=tmp_path, size=16)
        assert {name: split.size for name, split in held.splits().items()} == {
            "train": 1_231_167,
            "val": 50_000,
            "test": 50_000,
        }
        for split in held.splits().values():
            inputs, targets = next(split.batches(8, seed=1))
            assert (inputs.shape, inputs.dtype) == ((8, 16, 16, 3), np.uint8)
            assert (targets.shape, targets.dtype) == ((8,), np.int32)
            assert inputs.std() > 1
            assert 0 <= targets.min() < targets.max() < held.outputs == 1000


@_marked
def test_lm1b_takes_the_mock_sentences_of_tensorflow_datasets(mocked, tmp_path):
    with mocked("lm1b"):
        held = data.lm1b(tmp_path)
        assert [split.size for split in held.splits().values()] == [30_301_028, 153_344, 153_344]
        for split in held.splits().values():
            inputs, targets = next(split.batches(8, seed=1))
            assert inputs.shape == targets.shape == (8, data.SENTENCE)
            assert np.array_equal(inputs[:, 1:], targets[:, :-1])
            assert not inputs[:, 0].any()
            assert targets.max() >= 2


@_marked
def test_open_images_take_mock_examples_of_tensorflow_datasets(mocked, tmp_path):
    import tensorflow as tf

    def examples(builder, *_, **__):
        # The mock's own examples give each part of an object another number of objects.
        features = builder.info.features["objects_trainable"].feature

        def example(i):
            part = {name: tf.range(i % 3, dtype=tf.int64) for name in features}
            confidence = tf.fill([i % 3], tf.constant(10, features["confidence"].np_dtype))
            image = tf.cast(tf.random.stateless_uniform((24 + i, 40, 3), (i, 0)) * 255, tf.uint8)
            return {"image": image, "objects_trainable": part | {"confidence": confidence}}

        return tf.data.Dataset.range(24).map(lambda i: example(tf.cast(i, tf.int32)))

    with mocked("open_images_v4", as_dataset_fn=examples):
        held = data.open_images_v4(tmp_path, size=16)
        assert [split.size for split in held.splits().values()] == [1_743_042, 41_620, 125_436]
        for split in held.splits().values():
            inputs, targets = next(split.batches(6, seed=None))
            assert (inputs.shape, inputs.dtype) == ((6, 16, 16, 3), np.uint8)
            assert targets.shape == (6, held.outputs)
            assert targets.sum(1).tolist() == [0, 1, 2, 0, 1, 2]
