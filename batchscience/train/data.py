"""Data sets by name: in memory for the compiled loop, or streamed where they do not fit."""

from __future__ import annotations

import gzip
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from ..errors import TrainingError

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Split:
    """Examples in memory: arrays whose first axis is the example."""

    inputs: Array
    targets: Array

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"expected a target per example, got {len(self.inputs)} and {len(self.targets)}")

    @property
    def size(self) -> int:
        """Number of examples."""
        return len(self.inputs)

    def __getitem__(self, part: slice) -> Split:
        return Split(self.inputs[part], self.targets[part])


class Stream(Protocol):
    """Examples that are read as they are needed."""

    @property
    def size(self) -> int:
        """Number of examples."""

    def batches(
        self, batch_size: int, *, seed: int | None, skip: int = 0, drop_remainder: bool = True
    ) -> Iterator[tuple[Array, Array]]:
        """One pass over the examples.

        Parameters
        ----------
        batch_size : int
            Examples of a batch.
        seed : int or None
            Of the shuffle; None for the order of the files.
        skip : int, default 0
            Batches to leave out at the beginning.
        drop_remainder : bool, default True
            Whether to leave out a last batch that is not full.
        """


Examples = Split | Stream


@dataclass(frozen=True, slots=True)
class DataSet:
    """Training, validation and test examples and what they are for.

    Parameters
    ----------
    name : str
        As in a workload's name.
    task : str
        A key of `tasks.TASKS`.
    outputs : int
        Classes, labels, words of the vocabulary, or numbers to predict.
    train : Split or Stream
    val, test : Split or Stream, optional
        Without one, there are no such columns.
    prepare : callable, optional
        From the stored inputs (``uint8``, say) to those of the model, on the device.
    with_replacement : bool, default False
        Whether each example of a batch is drawn on its own, rather than in shuffled passes.
    """

    name: str
    task: str
    outputs: int
    train: Examples
    val: Examples | None = None
    test: Examples | None = None
    prepare: Callable[[Any], Any] = lambda inputs: inputs
    with_replacement: bool = False

    def splits(self) -> dict[str, Examples]:
        """The splits that there are, by the word that names their columns."""
        named = {"train": self.train, "val": self.val, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    def input_spec(self) -> tf.TensorSpec:
        """Shape and type of the inputs of one example, as the model sees them."""
        if isinstance(self.train, Split):
            sample = self.train.inputs[:1]
        else:
            sample = next(self.train.batches(1, seed=None))[0]
        # In a graph nothing runs, so that TensorFlow's threads can still be configured.
        with tf.Graph().as_default():
            prepared = self.prepare(tf.constant(sample))
        return tf.TensorSpec(prepared.shape[1:], prepared.dtype)


def training_order(
    size: int, batch_size: int, *, seed: Sequence[int], with_replacement: bool = False
) -> Callable[[int, int], NDArray[np.int32]]:
    """The examples of every step of a trial, as a function of the step.

    Parameters
    ----------
    size : int
        Number of training examples.
    batch_size : int
        Examples of a step.
    seed : sequence of int
        Entropy of the shuffles.
    with_replacement : bool, default False
        Draw each example on its own.

    Returns
    -------
    callable
        ``order(step, count)``: the numbers of the examples of `count` steps from `step` (counted from
        0) on, of shape (count, batch_size).

    Raises
    ------
    TrainingError
        If the batch is larger than the training set.

    Notes
    -----
    Each pass shuffles the whole training set anew and drops what is left over at its end.  A pass's
    shuffle depends on the seed and the number of the pass alone, so training can go on from any step.
    """
    if batch_size < 1:
        raise TrainingError(f"batch size {batch_size}: expected at least 1")
    if batch_size > size and not with_replacement:
        raise TrainingError(
            f"batch size {batch_size} is larger than the training set of {size} examples; "
            f"the largest batch is the whole set"
        )
    each = size // batch_size if not with_replacement else max(1, 65_536 // batch_size)
    latest: tuple[int, NDArray[np.int32]] = (-1, np.empty((0, batch_size), np.int32))

    def one_pass(number: int) -> NDArray[np.int32]:
        nonlocal latest
        if latest[0] != number:
            rng = np.random.default_rng([*seed, number])
            if with_replacement:
                examples = rng.integers(size, size=each * batch_size, dtype=np.int32)
            else:
                examples = rng.permutation(size).astype(np.int32)[: each * batch_size]
            latest = number, examples.reshape(each, batch_size)
        return latest[1]

    def order(step: int, count: int) -> NDArray[np.int32]:
        parts = []
        while count > 0:
            number, at = divmod(step, each)
            parts.append(one_pass(number)[at : at + count])
            step, count = step + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts) if parts else np.empty((0, batch_size), np.int32)

    return order


# --------------------------------------------------------------------------- made here


def digits() -> DataSet:
    """Scikit-learn's 1,797 handwritten digits of 8×8 pixels: 1,280 for training, 259 and 258 held out."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    inputs = (bunch.data / 16.0).astype(np.float32)
    targets = bunch.target.astype(np.int32)
    # The file's own order follows the writers, so a shuffle; 1,280 = 5 · 2⁸ lets powers of two divide it.
    order = np.random.default_rng(0).permutation(len(targets))
    whole = Split(inputs[order], targets[order])
    return DataSet("digits", "classification", 10, whole[:1280], whole[1280:1539], whole[1539:])


_MNIST1D_TEMPLATES = (
    (5, 6, 6.5, 6.75, 7, 7, 7, 7, 6.75, 6.5, 6, 5),
    (5, 3, 3, 3.4, 3.8, 4.2, 4.6, 5, 5.4, 5.8, 5, 5),
    (5, 6, 6.5, 6.5, 6, 5.25, 4.75, 4, 3.5, 3.5, 4, 5),
    (5, 6, 6.5, 6.5, 6, 5, 5, 6, 6.5, 6.5, 6, 5),
    (5, 4.4, 3.8, 3.2, 2.6, 2.6, 5, 5, 5, 5, 5, 5),
    (5, 3, 3, 3, 3, 5, 6, 6.5, 6.5, 6, 4.5, 5),
    (5, 4, 3.5, 3.25, 3, 3, 3, 3, 3.25, 3.5, 4, 5),
    (5, 7, 7, 6.6, 6.2, 5.8, 5.4, 5, 4.6, 4.2, 5, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 4, 3.5, 3.5, 4, 5),
    (5, 4, 3.5, 3.5, 4, 5, 5, 5, 5, 4.7, 4.3, 5),
)


def mnist1d() -> DataSet:
    """Ten shapes of a line of 40 points, made by the recipe of MNIST-1D (Greydanus and Kobak 2024).

    Certain, from the authors' published code: the templates, and the order and sizes of the
    transformations (padding by 36 to 60 points, scaling by up to ±20 %, translation, correlated noise
    0.25 where the line is flat, noise 0.02, shear 0.75, 40 points), 4,000 examples to train on and
    1,000 to test. Chosen here: NumPy's present generator, so that the examples are others than in the
    authors' file, and 1,000 further examples for validation.
    """
    from scipy.ndimage import gaussian_filter1d

    rng = np.random.default_rng(42)
    templates = np.array(_MNIST1D_TEMPLATES)
    templates = (templates - templates.mean(1, keepdims=True)) / templates.std(1, keepdims=True)
    templates = (templates - templates[:, :1]) / 6.0
    count, long, short = 6_000, 72, 40
    inputs = np.empty((count, short))
    labels = np.arange(count) % 10
    for i, label in enumerate(labels):
        padded = np.concatenate([templates[label] + 1e-8, np.zeros(rng.integers(36, 61))])
        line = np.interp(np.linspace(0, 1, long), np.linspace(0, 1, len(padded)), padded)
        line *= 1 + 0.4 * (rng.random() - 0.5)
        line = np.roll(line, rng.integers(48))
        noise = gaussian_filter1d(0.25 * rng.standard_normal(long), 2)
        line = np.where(line != 0, line, noise) + 0.02 * rng.standard_normal(long)
        line -= 0.75 * (rng.random() - 0.5) * np.linspace(-0.5, 0.5, long)
        inputs[i] = np.interp(np.linspace(0, 1, short), np.linspace(0, 1, long), line)
    order = rng.permutation(count)
    inputs = ((inputs - inputs.mean()) / inputs.std())[order].astype(np.float32)
    whole = Split(inputs, labels[order].astype(np.int32))
    return DataSet("mnist1d", "classification", 10, whole[:4000], whole[4000:5000], whole[5000:])


def parabola(examples: int = 256) -> DataSet:
    """y = x² on so many points of [−1, 1], validated half-way between them.

    With the model ``tanh_5`` this is the classic small question of how to split a batch over P
    processes: each takes its share, the gradient sums are added, and every process makes the same one update.
    """
    x = np.linspace(-1, 1, examples, dtype=np.float32)[:, None]
    between = (x[1:] + x[:-1]) / 2
    return DataSet("parabola", "regression", 1, Split(x, x**2), Split(between, between**2))


@dataclass(frozen=True, slots=True)
class NoisyQuadratic:
    """A quadratic bowl with noisy gradients, whose expected loss after any number of steps is known.

    Parameters
    ----------
    dimensions : int
        Number of weights; more make the loss of one run closer to its expectation.
    condition : float
        Ratio of the largest to the smallest curvature; curvatures are spaced evenly in log between them, the
        largest is 1.
    noise : float
        Variance of one example's gradient in each direction, divided by the curvature there.
    population : int
        Number of noise vectors that examples draw from, with replacement.

    Notes
    -----
    Loss ½ Σ h w², gradient h w − √c z of an example with noise z, c = `noise` · h as in Zhang et al. (2019).
    With a constant learning rate a and batch size B, E[w²] ← (1 − a h)² E[w²] + a² c / B.

    References
    ----------
    Zhang et al. (2019), Which algorithmic choices matter at which batch sizes? Insights from a noisy
    quadratic model, section 3.
    """

    dimensions: int = 1024
    condition: float = 20.0
    noise: float = 1.0
    population: int = 4096

    @property
    def curvatures(self) -> Array:
        """The h, largest first."""
        return np.geomspace(1.0, 1.0 / self.condition, self.dimensions)

    @property
    def start(self) -> Array:
        """The first weights, all 1."""
        return np.ones(self.dimensions)

    def expected_loss(self, steps: Array | float, batch_size: float, learning_rate: float) -> Array:
        """E[loss] after `steps` updates with a constant learning rate below 2.

        Examples
        --------
        >>> bowl = NoisyQuadratic(dimensions=1, condition=1.0, noise=0.0)
        >>> float(bowl.expected_loss(1, 1, 0.5))
        0.125
        """
        h = self.curvatures
        rest = learning_rate * self.noise / (batch_size * (2.0 - learning_rate * h))
        kept = np.power((1.0 - learning_rate * h) ** 2, np.asarray(steps, float)[..., None])
        return np.asarray(0.5 * np.sum(h * (kept * (self.start**2 - rest) + rest), -1))

    def steps_to_loss(self, goal: float, batch_size: float, learning_rate: float) -> float:
        """Steps until the expected loss is below `goal`, as a real number; infinity if it never is."""
        h = self.curvatures
        rest = learning_rate * self.noise / (batch_size * (2.0 - learning_rate * h))
        if learning_rate >= 2 or 0.5 * np.sum(h * rest) >= goal:
            return math.inf
        low, high = 0.0, 1.0
        while self.expected_loss(high, batch_size, learning_rate) >= goal:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            if self.expected_loss(middle, batch_size, learning_rate) >= goal:
                low = middle
            else:
                high = middle
        return high

    def fewest_steps(self, goal: float, batch_size: float, *, largest_rate: float = 0.3) -> float:
        """Steps to the goal with the best constant learning rate up to `largest_rate`."""
        rates = largest_rate * np.geomspace(1e-6, 1.0, 400)
        return min(self.steps_to_loss(goal, batch_size, float(rate)) for rate in rates)

    def critical_batch_size(self, goal: float, *, largest_rate: float = 0.3) -> float:
        """Where the two asymptotes cross: examples needed by tiny batches / steps needed by huge ones."""
        tiny, huge = 1e-3, 1e9
        examples = tiny * self.fewest_steps(goal, tiny, largest_rate=largest_rate)
        return examples / self.fewest_steps(goal, huge, largest_rate=largest_rate)

    def noise_scale(self, weights: Array) -> float:
        """tr(Σ) / |G|² at the given weights (G the expected gradient, Σ the covariance of one example's)."""
        h = self.curvatures
        return float(np.sum(self.noise * h) / np.sum((h * weights) ** 2))

    def data_set(self) -> DataSet:
        """The noise vectors, of mean 0 and unit covariance to the last bit that floats allow."""
        z = np.random.default_rng(0).standard_normal((self.population, self.dimensions))
        z -= z.mean(0)
        z = z @ np.linalg.inv(np.linalg.cholesky(z.T @ z / len(z))).T
        split = Split(z.astype(np.float32), np.zeros(len(z), np.int32))
        return DataSet("noisy_quadratic", "loss", 1, split, with_replacement=True)


# --------------------------------------------------------------------------- read from files

FOLDER_VARIABLE = "BATCHSCIENCE_DATASETS"
DEBIAN_FOLDER = Path("/usr/share/datasets")


def _folders(datasets: str | os.PathLike[str] | None) -> list[Path]:
    places = [datasets, os.environ.get(FOLDER_VARIABLE)]
    return [*(Path(place) for place in places if place), DEBIAN_FOLDER]


def read_idx(path: Path) -> Array:
    """The array of an IDX file (``.gz`` or not), the format of MNIST's own files.

    Raises
    ------
    TrainingError
        If the file is not IDX of unsigned bytes, or its length does not fit its header.
    """
    try:
        content = path.read_bytes()
        if path.suffix == ".gz":
            content = gzip.decompress(content)
    except (OSError, EOFError) as error:
        raise TrainingError(f"{path}: {error}; is the file damaged?") from None
    if len(content) < 4 or content[:3] != b"\x00\x00\x08":
        raise TrainingError(
            f"{path}: expected an IDX file of unsigned bytes, found {content[:4]!r} at its start"
        )
    axes = content[3]
    shape = np.frombuffer(content, ">u4", axes, 4).astype(np.int64)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
    if values.size != shape.prod():
        raise TrainingError(f"{path}: expected {shape.prod()} bytes after the header, found {values.size}")
    return values.reshape(shape)


def _find_idx(folder: Path, part: str, kind: str) -> Path | None:
    stems = (f"{part}-{kind}-ubyte", f"{part}-{kind.replace('-idx', '.idx')}-ubyte")
    names = [stem + end for stem in stems for end in ("", ".gz")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _mnist_arrays(name: str, datasets: str | os.PathLike[str] | None) -> tuple[Split, Split]:
    """Training and test images of MNIST or Fashion MNIST from local files, else through Keras."""
    spellings = (name, name.replace("_", "-"))
    tried = []
    for root in _folders(datasets):
        for folder in (*(root / spelling for spelling in spellings), root):
            # A folder of several data sets must not lend one the files of another.
            if folder == root and root == DEBIAN_FOLDER:
                continue
            tried.append(str(folder))
            files = [
                _find_idx(folder, part, kind)
                for part in ("train", "t10k")
                for kind in ("images-idx3", "labels-idx1")
            ]
            if all(files):
                images, labels, test_images, test_labels = (read_idx(file) for file in files if file)
                return (
                    Split(images[..., None], labels.astype(np.int32)),
                    Split(test_images[..., None], test_labels.astype(np.int32)),
                )
            for spelling in spellings:
                if (archive := folder / f"{spelling}.npz").is_file():
                    return _npz(archive)
    return _keras_arrays(name, tried)


def _npz(path: Path) -> tuple[Split, Split]:
    try:
        with np.load(path, allow_pickle=False) as held:
            x, y, x_test, y_test = (held[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    except (OSError, ValueError, KeyError) as error:
        raise TrainingError(f"{path}: expected arrays x_train, y_train, x_test and y_test: {error}") from None
    shaped = [images[..., None] if images.ndim == 3 else images for images in (x, x_test)]
    labels = [np.asarray(classes, np.int32).reshape(-1) for classes in (y, y_test)]
    return Split(shaped[0], labels[0]), Split(shaped[1], labels[1])


def _keras_arrays(name: str, tried: Sequence[str]) -> tuple[Split, Split]:
    import keras

    loader = {"mnist": "mnist", "fashion_mnist": "fashion_mnist", "cifar_10": "cifar10"}[name]
    try:
        (x, y), (x_test, y_test) = getattr(keras.datasets, loader).load_data()
    except Exception as error:  # noqa: BLE001 - Keras raises a bare Exception when a download fails
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        hint = {
            "fashion_mnist": "install Debian's package dataset-fashion-mnist, or put its four IDX files",
            "mnist": "put its four IDX files or mnist.npz",
            "cifar_10": "put cifar_10.npz (arrays x_train, y_train, x_test, y_test)",
        }[name]
        raise TrainingError(
            f"data set {name}: not in {', '.join(tried)}, and Keras could not download it ({reason}); {hint} "
            f"into DIR/{name} and give --datasets DIR (or set ${FOLDER_VARIABLE})"
        ) from None
    shaped = [images[..., None] if images.ndim == 3 else images for images in (x, x_test)]
    return (
        Split(shaped[0], y.reshape(-1).astype(np.int32)),
        Split(shaped[1], y_test.reshape(-1).astype(np.int32)),
    )


def _unit(inputs: Any) -> Any:
    return tf.cast(inputs, tf.float32) / 255.0


def mnist(
    name: str = "mnist", *, examples: int = 55_000, datasets: str | os.PathLike[str] | None = None
) -> DataSet:
    """MNIST or Fashion MNIST: 55,000 training, 5,000 validation and 10,000 test images of 28×28 pixels.

    Certain: the sizes of the splits, and of the subsets ``mnist_subsets/mnist_6875`` and so on.  Chosen
    here: validation takes the last 5,000 of the 60,000 published training images, a subset takes the
    first ones, and pixels are divided by 255.
    """
    whole, test = _mnist_arrays(name, datasets)
    held = min(5_000, whole.size // 12)
    train = whole[: min(examples, whole.size - held)]
    return DataSet(name, "classification", 10, train, whole[whole.size - held :], test, _unit)


def _standardised(inputs: Any) -> Any:
    x = _unit(inputs)
    mean, variance = tf.nn.moments(x, (1, 2, 3), keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-6)


def cifar_10(datasets: str | os.PathLike[str] | None = None) -> DataSet:
    """CIFAR-10: 45,000 training, 5,000 validation and 10,000 test images of 32×32 pixels.

    Chosen here: validation takes the last 5,000 of the 50,000 published training images, each image is
    standardised, and there is no augmentation.
    """
    tried = []
    for root in _folders(datasets)[:-1]:
        for path in (root / "cifar_10" / "cifar_10.npz", root / "cifar_10.npz", root / "cifar10.npz"):
            tried.append(str(path))
            if path.is_file():
                whole, test = _npz(path)
                break
        else:
            continue
        break
    else:
        whole, test = _keras_arrays("cifar_10", tried)
    held = whole.size // 10
    return DataSet("cifar_10", "classification", 10, whole[:-held], whole[-held:], test, _standardised)


# --------------------------------------------------------------------------- streamed


@dataclass(frozen=True, slots=True)
class TfdsStream:
    """A split of a data set that tensorflow-datasets has prepared.

    Parameters
    ----------
    builder : tensorflow_datasets.core.DatasetBuilder
    split : str
        In the words of tensorflow-datasets, for example ``"train[:90%]"``.
    size : int
        Number of examples.
    decode : callable
        From a record to (inputs, targets), both of fixed shape.
    shuffle_buffer : int
        Records among which the next one is drawn, after the files themselves were shuffled.
    """

    builder: Any
    split: str
    size: int
    decode: Callable[[dict[str, Any]], tuple[Any, Any]]
    shuffle_buffer: int = 16_384

    def batches(
        self, batch_size: int, *, seed: int | None, skip: int = 0, drop_remainder: bool = True
    ) -> Iterator[tuple[Array, Array]]:
        """One pass over the split; see `Stream`."""
        import tensorflow_datasets as tfds

        config = tfds.ReadConfig(shuffle_seed=seed, interleave_cycle_length=16)
        records = self.builder.as_dataset(
            split=self.split,
            shuffle_files=seed is not None,
            read_config=config,
        )
        if seed is not None:
            records = records.shuffle(min(self.shuffle_buffer, self.size), seed=seed)
        # Skipped before decoding, which is what costs.
        records = records.skip(skip * batch_size)
        batches = records.map(self.decode, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        batches = batches.batch(batch_size, drop_remainder=drop_remainder).prefetch(2)
        options = tf.data.Options()
        options.deterministic = True
        for inputs, targets in batches.with_options(options):
            yield inputs.numpy(), targets.numpy()


def _builder(name: str, datasets: str | os.PathLike[str] | None) -> Any:
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise TrainingError(
            f"data set {name} comes through tensorflow-datasets; 'pip install tensorflow-datasets'"
        ) from None
    folder = datasets or os.environ.get(FOLDER_VARIABLE)
    try:
        return tfds.builder(name, data_dir=None if folder is None else str(folder))
    except (tfds.core.DatasetNotFoundError, OSError, ValueError) as error:
        raise TrainingError(f"data set {name}: {error}") from None


def _prepared(builder: Any, name: str) -> None:
    if not builder.info.splits:
        raise TrainingError(
            f"data set {name}: not in {builder.data_path}; prepare it with 'tfds build {name}' "
            f"(it is too large to download unasked) and give its folder with --datasets"
        )


def _image_decoder(size: int, target: Callable[[dict[str, Any]], Any]) -> Callable[..., tuple[Any, Any]]:
    def decode(record: dict[str, Any]) -> tuple[Any, Any]:
        image = record["image"]
        shape = tf.shape(image)
        side = tf.minimum(shape[0], shape[1])
        middle = tf.image.resize_with_crop_or_pad(image, side, side)
        resized = tf.image.resize(middle, (size, size), antialias=True)
        return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8), target(record)

    return decode


def imagenet(
    name: str = "imagenet", *, datasets: str | os.PathLike[str] | None = None, size: int = 224
) -> DataSet:
    """ImageNet (ILSVRC 2012) through tensorflow-datasets' ``imagenet2012``.

    Certain: 1,281,167 training images of 1,000 classes; the subsets' names.  Chosen here: the central
    square, resized to `size` pixels and divided by 255; no augmentation; validation on 50,000 images
    held out of the training set; the published validation images serve as the test split;
    ``imagenet_half_images`` takes every other image, ``imagenet_half_classes`` the first 500 classes.
    """
    builder = _builder("imagenet2012", datasets)
    _prepared(builder, "imagenet2012")
    total, tested = (builder.info.splits[part].num_examples for part in ("train", "validation"))
    held = min(50_000, total // 10)
    decode = _image_decoder(size, lambda record: tf.cast(record["label"], tf.int32))
    last = total - held
    if name.endswith("half_images"):
        last //= 2
    train: Stream = TfdsStream(builder, f"train[{held}:{held + last}]", last, decode)
    val: Stream = TfdsStream(builder, f"train[:{held}]", held, decode)
    test: Stream = TfdsStream(builder, "validation", tested, decode)
    classes = 1000
    if name.endswith("half_classes"):
        classes = 500
        train, val, test = (FilteredStream(stream, classes) for stream in (train, val, test))
    return DataSet(name, "classification", classes, train, val, test, _unit)


class FilteredStream:
    """The examples of a stream whose class is below a limit."""

    def __init__(self, stream: Any, classes: int) -> None:
        self._stream, self._classes = stream, classes
        self._size: int | None = None

    @property
    def size(self) -> int:
        """Number of examples; the first call reads all of them."""
        if self._size is None:
            self._size = sum(int(np.sum(t < self._classes)) for _, t in self._whole(None))
        return self._size

    def _whole(self, seed: int | None) -> Iterator[tuple[Array, Array]]:
        return iter(self._stream.batches(256, seed=seed, drop_remainder=False))

    def batches(
        self, batch_size: int, *, seed: int | None, skip: int = 0, drop_remainder: bool = True
    ) -> Iterator[tuple[Array, Array]]:
        """One pass over the examples that are kept; see `Stream`."""
        inputs: list[Array] = []
        targets: list[Array] = []
        for x, t in self._whole(seed):
            kept = t < self._classes
            inputs += list(x[kept])
            targets += list(t[kept])
            while len(targets) >= batch_size:
                if skip:
                    skip -= 1
                else:
                    yield np.stack(inputs[:batch_size]), np.array(targets[:batch_size])
                del inputs[:batch_size], targets[:batch_size]
        if targets and not drop_remainder:
            yield np.stack(inputs), np.array(targets)


def open_images_v4(datasets: str | os.PathLike[str] | None = None, *, size: int = 224) -> DataSet:
    """Open Images V4 through tensorflow-datasets: images with any number of labels.

    Certain: the data set and its metric, average precision over all pairs of image and label.  Chosen
    here: the trainable image labels with positive verification, the central square of `size` pixels, no
    augmentation.
    """
    builder = _builder("open_images_v4", datasets)
    _prepared(builder, "open_images_v4")
    feature = builder.info.features["objects_trainable"]["label"]
    classes = int(feature.num_classes)

    def target(record: dict[str, Any]) -> Any:
        objects = record["objects_trainable"]
        sure = tf.cast(objects["confidence"] > 5, tf.uint8)
        # A label of −1 is unknown; one_hot gives it a row of zeros.
        rows = tf.one_hot(objects["label"], classes, dtype=tf.uint8) * sure[:, tf.newaxis]
        return tf.cast(tf.reduce_sum(tf.cast(rows, tf.int32), 0) > 0, tf.uint8)

    decode = _image_decoder(size, target)
    streams = {
        name: TfdsStream(builder, part, builder.info.splits[part].num_examples, decode)
        for name, part in (("train", "train"), ("val", "validation"), ("test", "test"))
    }
    return DataSet(
        "open_images_v4", "labels", classes, streams["train"], streams["val"], streams["test"], _unit
    )


WORD = re.compile(r"\w+|[^\w\s]")
PADDING, UNKNOWN = 0, 1
VOCABULARY = 32_768
SENTENCE = 64


def vocabulary_of(lines: Iterable[str], size: int = VOCABULARY) -> list[str]:
    """The most frequent words, ties in order of the alphabet; number 2 is the most frequent.

    Examples
    --------
    >>> vocabulary_of(["b a b", "c b"], size=4)
    ['b', 'a']
    """
    counts = Counter(word for line in lines for word in WORD.findall(line))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return ranked[: size - 2]


def encoded(lines: Sequence[str], numbers: dict[str, int], length: int = SENTENCE) -> Split:
    """Sentences as numbers of words: inputs begin with a padding word, targets are the words themselves."""
    words = np.zeros((len(lines), length), np.int32)
    for row, line in zip(words, lines, strict=True):
        found = [numbers.get(word, UNKNOWN) for word in WORD.findall(line)[:length]]
        row[: len(found)] = found
    inputs = np.concatenate([np.full((len(lines), 1), PADDING, np.int32), words[:, :-1]], 1)
    return Split(inputs, words)


@dataclass(frozen=True, slots=True)
class TextStream:
    """Sentences of a stream of texts, as numbers of words."""

    texts: TfdsStream
    numbers: dict[str, int]

    @property
    def size(self) -> int:
        """Number of sentences."""
        return self.texts.size

    def batches(
        self, batch_size: int, *, seed: int | None, skip: int = 0, drop_remainder: bool = True
    ) -> Iterator[tuple[Array, Array]]:
        """One pass; see `Stream`."""
        passed = self.texts.batches(batch_size, seed=seed, skip=skip, drop_remainder=drop_remainder)
        for texts, _ in passed:
            split = encoded([text.decode(errors="replace") for text in texts], self.numbers)
            yield split.inputs, split.targets


def lm1b(datasets: str | os.PathLike[str] | None = None) -> DataSet:
    """The One Billion Word benchmark through tensorflow-datasets.

    Certain: 30,301,028 training sentences, and cross entropy per word as the metric.  Chosen here:
    words and marks as tokens, the 32,766 most frequent of the first 100,000 sentences as vocabulary,
    sentences cut at 64; validation takes the first half of the published test sentences.
    """
    builder = _builder("lm1b", datasets)
    _prepared(builder, "lm1b")
    total, tested = (builder.info.splits[part].num_examples for part in ("train", "test"))

    def decode(record: dict[str, Any]) -> tuple[Any, Any]:
        return record["text"], 0

    def texts(split: str, size: int) -> TfdsStream:
        return TfdsStream(builder, split, size, decode, shuffle_buffer=262_144)

    train = texts("train", total)
    sample: list[str] = []
    for batch, _ in train.batches(1_000, seed=None, drop_remainder=False):
        sample += [text.decode(errors="replace") for text in batch]
        if len(sample) >= 100_000:
            break
    numbers = {word: i + 2 for i, word in enumerate(vocabulary_of(sample))}
    half = tested // 2
    return DataSet(
        "lm1b",
        "language",
        VOCABULARY,
        TextStream(train, numbers),
        TextStream(texts(f"test[:{half}]", half), numbers),
        TextStream(texts(f"test[{half}:]", tested - half), numbers),
    )


def common_crawl(datasets: str | os.PathLike[str] | None = None) -> DataSet:
    """Sentences of local text files, one a line: ``DIR/common_crawl/*.txt``.

    The paper's own selection of Common Crawl is not published, so any text serves.  Chosen here: one
    line in a hundred, from the first, is for validation, the next one for testing; words as in `lm1b`.
    """
    tried = []
    for root in _folders(datasets)[:-1]:
        files = sorted((root / "common_crawl").glob("*.txt"))
        tried.append(str(root / "common_crawl"))
        if files:
            break
    else:
        raise TrainingError(
            f"data set common_crawl: no *.txt in {', '.join(tried) or 'any folder'}; put text files, "
            f"one sentence a line, into DIR/common_crawl and give --datasets DIR (or set ${FOLDER_VARIABLE})"
        )
    lines = [
        line
        for file in files
        for line in file.read_text("utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    parts = [[line for i, line in enumerate(lines) if i % 100 == part] for part in (0, 1)]
    rest = [line for i, line in enumerate(lines) if i % 100 > 1]
    if not rest:
        raise TrainingError(f"data set common_crawl: {len(lines)} lines in {tried[-1]}; expected at least 3")
    numbers = {word: i + 2 for i, word in enumerate(vocabulary_of(rest))}
    size = min(VOCABULARY, len(numbers) + 2)
    train, val, test = (encoded(part, numbers) for part in (rest, *parts))
    return DataSet("common_crawl", "language", size, train, val, test)


def data_set_named(name: str, datasets: str | os.PathLike[str] | None = None) -> DataSet:
    """The data set of an archive name, or one of those made here.

    Parameters
    ----------
    name : str
        ``digits``, ``mnist1d``, ``parabola``, ``noisy_quadratic``, ``mnist``, ``fashion_mnist``,
        ``cifar_10``, ``mnist_subsets/mnist_N``, ``imagenet``, ``imagenet_subsets/…``,
        ``open_images_v4``, ``lm1b`` or ``common_crawl``; each also behind ``solution_quality/``.
    datasets : path, optional
        Folder of downloaded data sets; ``$BATCHSCIENCE_DATASETS`` and Debian's folder are looked into
        after it.

    Raises
    ------
    TrainingError
        If the data set is not known or not there; the message says how to get it.
    """
    base = name.removeprefix("solution_quality/")
    if match := re.fullmatch(r"mnist_subsets/mnist_(\d+)", base):
        return mnist("mnist", examples=int(match[1]), datasets=datasets)
    made: dict[str, Callable[[], DataSet]] = {
        "digits": digits,
        "mnist1d": mnist1d,
        "parabola": parabola,
        "noisy_quadratic": lambda: NoisyQuadratic().data_set(),
        "mnist": lambda: mnist("mnist", datasets=datasets),
        "fashion_mnist": lambda: mnist("fashion_mnist", datasets=datasets),
        "cifar_10": lambda: cifar_10(datasets),
        "imagenet": lambda: imagenet(datasets=datasets),
        "imagenet_subsets/imagenet_half_images": lambda: imagenet(base, datasets=datasets),
        "imagenet_subsets/imagenet_half_classes": lambda: imagenet(base, datasets=datasets),
        "open_images_v4": lambda: open_images_v4(datasets),
        "lm1b": lambda: lm1b(datasets),
        "common_crawl": lambda: common_crawl(datasets),
    }
    if base not in made:
        raise TrainingError(f"data set {name!r}: expected one of {', '.join(made)}, mnist_subsets/mnist_N")
    return made[base]()
