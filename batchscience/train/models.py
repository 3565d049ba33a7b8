"""Models by their archive names, as pure functions of their weights.

A model is written once, against a `Scope` that hands out its weights: declaring them collects their
shapes and initial distributions, applying them computes.  So the same function serves one device, many
replicas, a compiled loop, and many trials at once along a leading axis.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

Array = NDArray[Any]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def glorot_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Uniform within ±√(6 / (inputs + outputs)), the initial weights of Keras's layers."""
    area = math.prod(shape[:-2])
    limit = math.sqrt(6.0 / (area * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def he_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal with variance 2 / inputs, for layers followed by a rectifier."""
    return (rng.standard_normal(shape) * math.sqrt(2.0 / math.prod(shape[:-1]))).astype(np.float32)


def small_normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Normal with standard deviation 1/√width, for embeddings of so many columns."""
    return (rng.standard_normal(shape) / math.sqrt(shape[-1])).astype(np.float32)


def zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """All 0."""
    del rng
    return np.zeros(shape, np.float32)


def ones(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """All 1."""
    del rng
    return np.ones(shape, np.float32)


@dataclass(frozen=True, slots=True)
class Weight:
    """Shape and initial distribution of a weight."""

    shape: tuple[int, ...]
    draw: Draw


@dataclass(slots=True)
class Scope:
    """Hands a model its weights in the order in which it asks for them.

    Parameters
    ----------
    weights, statistics : sequence of tensors, optional
        What to hand out; None to declare them instead.
    training : bool
        Whether batch norm takes the moments of the batch rather than the running ones.
    """

    weights: Sequence[Any] | None = None
    statistics: Sequence[Any] | None = None
    training: bool = True
    declared: list[Weight] = field(default_factory=list)
    declared_statistics: list[Weight] = field(default_factory=list)
    moved: list[Any] = field(default_factory=list)
    norm_batches: set[int] = field(default_factory=set)
    convolutional: bool = False

    def weight(self, shape: Sequence[int], draw: Draw) -> Any:
        """The next weight."""
        self.declared.append(Weight(tuple(int(n) for n in shape), draw))
        if self.weights is None:
            return tf.zeros(self.declared[-1].shape)
        return self.weights[len(self.declared) - 1]

    def dense(self, x: Any, width: int, draw: Draw = glorot_uniform, *, bias: bool = True) -> Any:
        """A fully connected layer on the last axis."""
        kernel = self.weight((x.shape[-1], width), draw)
        if x.shape.rank == 2:
            # Models with convolutions are not compiled on a CPU; there a sum of terms is slow.
            y = tf.matmul(x, kernel) if self.convolutional else _product(x, kernel)
        else:
            flat = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), kernel)
            y = tf.reshape(flat, (*_sizes(x)[:-1], width))
        return y + self.weight((width,), zeros) if bias else y

    def convolution(
        self, x: Any, channels: int, size: int, *, stride: int = 1, draw: Draw = he_normal, bias: bool = True
    ) -> Any:
        """A square convolution over images (example, row, column, channel), padded to keep their size."""
        self.convolutional = True
        kernel = self.weight((size, size, x.shape[-1], channels), draw)
        y = tf.nn.conv2d(x, kernel, stride, "SAME")
        return y + self.weight((channels,), zeros) if bias else y

    def batch_norm(
        self,
        x: Any,
        *,
        ghost: int = 0,
        first_scale: Draw = ones,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
    ) -> Any:
        """Batch normalisation over all axes but the last.

        `ghost` > 0 takes the moments of so many examples at a time, if that divides the replica's share
        of the batch; then the result does not depend on the number of replicas.
        """
        width = x.shape[-1]
        scale, offset = self.weight((width,), first_scale), self.weight((width,), zeros)
        at = len(self.declared_statistics)
        self.declared_statistics += [Weight((width,), zeros), Weight((width,), ones)]
        if self.statistics is None:
            old_mean, old_variance = tf.zeros(width), tf.ones(width)
        else:
            old_mean, old_variance = self.statistics[at], self.statistics[at + 1]
        if not self.training:
            self.moved += [old_mean, old_variance]
            return (x - old_mean) * (tf.math.rsqrt(old_variance + epsilon) * scale) + offset
        share = x.shape[0]
        if share is not None:
            group = ghost if ghost and share % ghost == 0 else share
            self.norm_batches.add(int(group))
        else:
            group = -1
        grouped = tf.reshape(x, (-1, group, *_sizes(x)[1:])) if group != -1 else x[tf.newaxis]
        axes = list(range(1, grouped.shape.rank - 1))
        mean, variance = tf.nn.moments(grouped, axes, keepdims=True)
        normal = (grouped - mean) * (tf.math.rsqrt(variance + epsilon) * scale) + offset
        for old, new in ((old_mean, mean), (old_variance, variance)):
            seen = tf.reduce_mean(tf.reshape(new, (-1, width)), 0)
            self.moved.append(momentum * old + (1.0 - momentum) * tf.stop_gradient(seen))
        return tf.reshape(normal, _sizes(x))

    def layer_norm(self, x: Any, epsilon: float = 1e-6) -> Any:
        """Layer normalisation over the last axis."""
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        scale, offset = self.weight((x.shape[-1],), ones), self.weight((x.shape[-1],), zeros)
        return (x - mean) * tf.math.rsqrt(variance + epsilon) * scale + offset


FEW_EXAMPLES = 16
"""Up to so many examples the gradient of a kernel is written as a sum of outer products."""

FEW_OUTPUTS = 4096
"""Numbers of a batch's outputs that such a sum may read again and again: they stay in the nearest cache."""


def _product(x: Any, kernel: Any) -> Any:
    """The product of a batch and a kernel.

    Its gradient for a kernel has few terms where there are few examples.  Written out, XLA adds them up
    in the loop that updates the slot or the weight, instead of calling a product and reading its result.
    """
    examples = x.shape[0]
    if examples is None or examples > FEW_EXAMPLES or examples * kernel.shape[-1] > FEW_OUTPUTS:
        return tf.matmul(x, kernel)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def product(x: Any, kernel: Any) -> Any:
        def gradients(dy: Any) -> tuple[Any, Any]:
            terms = [x[i, :, tf.newaxis] * dy[i, tf.newaxis, :] for i in range(examples)]
            return tf.matmul(dy, kernel, transpose_b=True), functools.reduce(tf.add, terms)

        return tf.matmul(x, kernel), gradients

    return product(x, kernel)


def _sizes(x: Any) -> list[Any]:
    """The shape of a tensor, a tensor in place of each size that is not known before it runs."""
    dynamic = None
    sizes: list[Any] = []
    for i, size in enumerate(x.shape):
        if size is None:
            dynamic = tf.shape(x) if dynamic is None else dynamic
            size = dynamic[i]
        sizes.append(size)
    return sizes


Forward = Callable[[Scope, Any], Any]


@dataclass(frozen=True, slots=True)
class Network:
    """A model that is ready to be trained.

    Parameters
    ----------
    weights : tuple of Weight
        What the optimizer changes.
    statistics : tuple of Weight
        What batch norm keeps beside them.
    apply : callable
        ``apply(weights, statistics, inputs, training)`` returns the outputs and the new statistics.
    convolutional : bool
        Whether there are convolutions, which XLA's CPU compiler runs far slower than TensorFlow's kernels.
    initial : callable, optional
        ``initial(rng)`` returns the first weights and statistics; by default each is drawn on its own.
    norm_batch : callable, optional
        ``norm_batch(share)``: the number of examples whose moments batch norm takes together when a
        replica sees `share` of them; None for a model without batch norm.
    """

    weights: tuple[Weight, ...]
    statistics: tuple[Weight, ...]
    apply: Callable[[Sequence[Any], Sequence[Any], Any, bool], tuple[Any, list[Any]]]
    convolutional: bool = False
    initial: Callable[[np.random.Generator], tuple[list[Array], list[Array]]] | None = None
    norm_batch: Callable[[int], int | None] = lambda share: None  # noqa: ARG005

    def drawn(self, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        """First weights and statistics."""
        if self.initial is not None:
            return self.initial(rng)
        return [w.draw(rng, w.shape) for w in self.weights], [s.draw(rng, s.shape) for s in self.statistics]

    @property
    def size(self) -> int:
        """Number of trained parameters."""
        return sum(math.prod(weight.shape) for weight in self.weights)


def network(forward: Forward, inputs: tf.TensorSpec) -> Network:
    """The network of a function of (scope, inputs).

    Parameters
    ----------
    forward : callable
        Asks the scope for its weights, always in the same order, and returns the outputs.
    inputs : tf.TensorSpec
        Shape (without the axis of examples) and type of one example's inputs.

    Examples
    --------
    >>> line = network(lambda scope, x: scope.dense(x, 1), tf.TensorSpec((3,)))
    >>> [weight.shape for weight in line.weights]
    [(3, 1), (1,)]
    """

    def declaration(share: int) -> Scope:
        scope = Scope()
        with tf.Graph().as_default():
            forward(scope, tf.zeros((share, *inputs.shape), inputs.dtype))
        return scope

    scope = declaration(2)

    def apply(
        weights: Sequence[Any], statistics: Sequence[Any], x: Any, training: bool
    ) -> tuple[Any, list[Any]]:
        run = Scope(weights, statistics, training)
        outputs = forward(run, x)
        return outputs, run.moved

    def norm_batch(share: int) -> int | None:
        return max(declaration(share).norm_batches) if scope.declared_statistics else None

    return Network(
        tuple(scope.declared),
        tuple(scope.declared_statistics),
        apply,
        convolutional=scope.convolutional,
        norm_batch=norm_batch,
    )


def keras_network(build: Callable[[], Any]) -> Network:
    """The network of a function that returns a Keras model with known input shape.

    The first weights are drawn by the model's own initialisers, seeded by the trial.  Layers that draw
    random numbers while training (dropout) draw the same ones on every replica.
    """
    import keras

    model = build()
    if not model.built:
        raise ValueError("the Keras model has no weights yet; begin it with keras.Input(shape)")
    kinds = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)
    layers = list(model._flatten_layers())
    norms = any(isinstance(layer, keras.layers.BatchNormalization) for layer in layers)

    def values(one: Any) -> tuple[list[Array], list[Array]]:
        return (
            [np.asarray(v) for v in one.trainable_variables],
            [np.asarray(v) for v in one.non_trainable_variables],
        )

    def initial(rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        # Keras's initialisers without a seed of their own take it from this global generator.
        keras.utils.set_random_seed(int(rng.integers(2**31)))
        return values(build())

    def apply(
        weights: Sequence[Any], statistics: Sequence[Any], x: Any, training: bool
    ) -> tuple[Any, list[Any]]:
        outputs, moved = model.stateless_call(list(weights), list(statistics), x, training=training)
        return outputs, list(moved)

    weights, statistics = values(model)
    return Network(
        tuple(Weight(w.shape, zeros) for w in weights),
        tuple(Weight(s.shape, zeros) for s in statistics),
        apply,
        convolutional=any(isinstance(layer, kinds) for layer in layers),
        initial=initial,
        norm_batch=lambda share: share if norms else None,
    )


def fully_connected(widths: Sequence[int], outputs: int) -> Forward:
    """``fc_*``: hidden layers of these widths, each followed by a rectifier, then a linear layer.

    Certain from the archive's names: the number and the widths of the hidden layers.  Chosen here: the
    rectifier and the initial weights (Glorot, zero biases).
    """

    def forward(scope: Scope, x: Any) -> Any:
        x = _flat(x)
        for width in widths:
            x = tf.nn.relu(scope.dense(x, width))
        return scope.dense(x, outputs)

    return forward


def simple_cnn(channels: tuple[int, int], width: int, outputs: int) -> Forward:
    """``simple_cnn_*``: two convolutions with max-pooling, then one hidden fully connected layer.

    Certain from the paper: that sequence, and that there is no batch norm.  Chosen here: 5×5 kernels,
    2×2 pooling, and the sizes of base (32 and 64 channels, 1,024 units), narrow (a quarter of each) and
    wide (twice).
    """

    def forward(scope: Scope, x: Any) -> Any:
        for count in channels:
            x = tf.nn.relu(scope.convolution(x, count, 5))
            x = tf.nn.max_pool2d(x, 2, 2, "SAME")
        x = tf.nn.relu(scope.dense(_flat(x), width))
        return scope.dense(x, outputs)

    return forward


def resnet_8(outputs: int) -> Forward:
    """``resnet_8``: seven convolutions in three residual blocks, then a linear layer.

    Certain from the name: eight layers with weights on the longest path.  Chosen here: the 16-32-64
    channels of He et al. (2016) for CIFAR-10, pre-activation blocks, no batch norm (so that the curve
    does not depend on the split of the batch), and 1×1 projections where the shape changes.
    """

    def forward(scope: Scope, x: Any) -> Any:
        x = scope.convolution(x, 16, 3)
        for count, stride in ((16, 1), (32, 2), (64, 2)):
            active = tf.nn.relu(x)
            y = scope.convolution(active, count, 3, stride=stride)
            y = scope.convolution(tf.nn.relu(y), count, 3)
            if stride != 1:
                x = scope.convolution(active, count, 1, stride=stride)
            x += y
        return scope.dense(tf.reduce_mean(tf.nn.relu(x), (1, 2)), outputs)

    return forward


def resnet_50(
    outputs: int,
    *,
    ghost: int = 32,
    widths: Sequence[int] = (64, 128, 256, 512),
    blocks: Sequence[int] = (3, 4, 6, 3),
) -> Forward:
    """``resnet_50``: the bottleneck network of He et al. (2016) with batch norm.

    Certain from the name: 3, 4, 6 and 3 bottleneck blocks.  Chosen here: the stride in the 3×3
    convolution, a last scale of each block that starts at 0 (Goyal et al. 2017), and batch norm over
    ghost batches of 32 examples (Hoffer et al. 2017) where that divides a replica's share, else over
    the share.
    """

    def norm(scope: Scope, x: Any, first_scale: Draw = ones) -> Any:
        return scope.batch_norm(x, ghost=ghost, first_scale=first_scale)

    def forward(scope: Scope, x: Any) -> Any:
        x = tf.nn.relu(norm(scope, scope.convolution(x, widths[0], 7, stride=2, bias=False)))
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for stage, (count, many) in enumerate(zip(widths, blocks, strict=True)):
            for block in range(many):
                stride = 2 if stage and not block else 1
                y = tf.nn.relu(norm(scope, scope.convolution(x, count, 1, bias=False)))
                y = tf.nn.relu(norm(scope, scope.convolution(y, count, 3, stride=stride, bias=False)))
                y = norm(scope, scope.convolution(y, 4 * count, 1, bias=False), zeros)
                if not block:
                    x = norm(scope, scope.convolution(x, 4 * count, 1, stride=stride, bias=False))
                x = tf.nn.relu(x + y)
        return scope.dense(tf.reduce_mean(x, (1, 2)), outputs)

    return forward


def vgg_11(
    outputs: int, *, widths: Sequence[int] = (64, 128, 256, 256, 512, 512, 512, 512), hidden: int = 4096
) -> Forward:
    """``vgg_11``: configuration A of Simonyan and Zisserman (2015).

    Certain from the name: eight 3×3 convolutions and three fully connected layers.  Chosen here: no
    batch norm and no dropout, so that the curve does not depend on the split of the batch.
    """
    pooled_after = (0, 1, 3, 5, 7)

    def forward(scope: Scope, x: Any) -> Any:
        for i, count in enumerate(widths):
            x = tf.nn.relu(scope.convolution(x, count, 3))
            if i in pooled_after:
                x = tf.nn.max_pool2d(x, 2, 2, "SAME")
        x = _flat(x)
        for _ in range(2):
            x = tf.nn.relu(scope.dense(x, hidden, he_normal))
        return scope.dense(x, outputs)

    return forward


@dataclass(frozen=True, slots=True)
class TransformerSize:
    """Sizes of a Transformer: layers, width of the residual stream, of the hidden layer, and heads."""

    layers: int
    width: int
    hidden: int
    heads: int


TRANSFORMERS: Mapping[str, TransformerSize] = {
    "transformer_base": TransformerSize(6, 512, 2048, 8),
    "transformer_shallow": TransformerSize(2, 512, 2048, 8),
    "transformer_narrow_and_shallow": TransformerSize(2, 256, 1024, 4),
    "transformer_wide": TransformerSize(6, 1024, 4096, 16),
}


def transformer(size: TransformerSize, vocabulary: int) -> Forward:
    """``transformer_*``: a causal language model after Vaswani et al. (2017).

    Certain: base has that paper's base sizes (6 layers, width 512, hidden 2,048, 8 heads), and the
    names say which sizes the others change.  Chosen here: by how much (`TRANSFORMERS`), layer norm
    before each sublayer, sinusoidal positions, input and output embeddings shared, and no dropout, so
    that the curve does not depend on the split of the batch.
    """

    def forward(scope: Scope, tokens: Any) -> Any:
        length, each = tokens.shape[1], size.width // size.heads
        table = scope.weight((vocabulary, size.width), small_normal)
        x = tf.gather(table, tokens) * math.sqrt(size.width) + _positions(length, size.width)
        hidden_future = np.triu(np.full((length, length), -1e9, np.float32), 1)
        for _ in range(size.layers):
            y = scope.layer_norm(x)
            parts = scope.dense(y, 3 * size.width, bias=False)
            parts = tf.reshape(parts, (*_sizes(tokens), 3, size.heads, each))
            query, key, value = (parts[:, :, i] for i in range(3))
            scores = tf.einsum("bqhe,bkhe->bhqk", query, key) / math.sqrt(each) + hidden_future
            mixed = tf.einsum("bhqk,bkhe->bqhe", tf.nn.softmax(scores), value)
            x += scope.dense(tf.reshape(mixed, (*_sizes(tokens), size.width)), size.width, bias=False)
            y = tf.nn.relu(scope.dense(scope.layer_norm(x), size.hidden))
            x += scope.dense(y, size.width)
        flat = tf.reshape(scope.layer_norm(x), (-1, size.width))
        return tf.reshape(tf.matmul(flat, table, transpose_b=True), (*_sizes(tokens), vocabulary))

    return forward


def _positions(length: int, width: int) -> Array:
    rates = np.exp(-math.log(10_000.0) * np.arange(0, width, 2) / width)
    angles = np.arange(length)[:, None] * rates
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)[:, :width].astype(np.float32)


def lstm(layers: int, width: int, vocabulary: int) -> Forward:
    """``lstm``: a recurrent language model of LSTM layers (Hochreiter and Schmidhuber 1997).

    Certain from the name: the kind of layer.  Chosen here: two layers of 512 units, input and output
    embeddings shared, a forget bias of 1, and no dropout.
    """

    def forward(scope: Scope, tokens: Any) -> Any:
        table = scope.weight((vocabulary, width), small_normal)
        x = tf.gather(table, tokens)
        for _ in range(layers):
            inward = scope.dense(x, 4 * width)
            recurrent = scope.weight((width, 4 * width), glorot_uniform)
            x = _recurrence(inward, recurrent, width)
        flat = tf.reshape(x, (-1, width))
        logits = tf.matmul(flat, table, transpose_b=True) + scope.weight((vocabulary,), zeros)
        return tf.reshape(logits, (*_sizes(tokens), vocabulary))

    return forward


def _recurrence(inward: Any, recurrent: Any, width: int) -> Any:
    """States of an LSTM over time, from the inputs' share of its gates (example, time, 4 × width)."""
    length = inward.shape[1]
    by_time = tf.transpose(inward, (1, 0, 2))
    start = tf.zeros_like(by_time[0, :, :width])
    states = tf.TensorArray(tf.float32, length, element_shape=start.shape)

    def body(i: Any, state: Any, cell: Any, seen: Any) -> tuple[Any, ...]:
        gates = by_time[i] + tf.matmul(state, recurrent)
        enter, forget, candidate, leave = tf.split(gates, 4, -1)
        cell = tf.sigmoid(forget + 1.0) * cell + tf.sigmoid(enter) * tf.tanh(candidate)
        state = tf.sigmoid(leave) * tf.tanh(cell)
        return i + 1, state, cell, seen.write(i, state)

    # XLA needs the bound to reserve room for what the backward pass needs.
    *_, states = tf.while_loop(
        lambda i, *_: i < length, body, (tf.constant(0), start, start, states), maximum_iterations=length
    )
    return tf.transpose(states.stack(), (1, 0, 2))


def tanh_network(width: int, outputs: int) -> Forward:
    """``tanh_N``: one hidden layer of N hyperbolic tangents."""

    def forward(scope: Scope, x: Any) -> Any:
        return scope.dense(tf.tanh(scope.dense(_flat(x), width)), outputs)

    return forward


def quadratic(curvatures: Array, noise: Array, start: Array) -> Forward:
    """``quadratic``: the loss of example z at w is Σ (h w² / 2 − √c · z · w), with curvatures h and noise c.

    The output is the loss itself.
    """

    def forward(scope: Scope, z: Any) -> Any:
        w = scope.weight(start.shape, lambda rng, shape: start.astype(np.float32))  # noqa: ARG005
        bowl = 0.5 * tf.reduce_sum(curvatures.astype(np.float32) * w * w)
        return bowl - tf.linalg.matvec(z, np.sqrt(noise).astype(np.float32) * w)

    return forward


def _flat(x: Any) -> Any:
    return x if x.shape.rank == 2 else tf.reshape(x, (-1, math.prod(x.shape[1:])))


def forward_named(name: str, outputs: int) -> Forward:
    """The model of an archive name.

    Parameters
    ----------
    name : str
        ``fc_W_W_…``, ``simple_cnn_base`` (``_narrow``, ``_wide``), ``resnet_8``, ``resnet_50``, ``vgg_11``,
        ``transformer_base`` (``_shallow``, ``_narrow_and_shallow``, ``_wide``), ``lstm``, or ``tanh_W``.
    outputs : int
        Classes, or words of the vocabulary.

    Raises
    ------
    ValueError
        If there is no such model.
    """
    if match := re.fullmatch(r"fc((?:_[1-9]\d*)+)", name):
        return fully_connected([int(width) for width in match[1][1:].split("_")], outputs)
    if match := re.fullmatch(r"tanh_([1-9]\d*)", name):
        return tanh_network(int(match[1]), outputs)
    if name in TRANSFORMERS:
        return transformer(TRANSFORMERS[name], outputs)
    makers: dict[str, Callable[[], Forward]] = {
        "simple_cnn_base": lambda: simple_cnn((32, 64), 1024, outputs),
        "simple_cnn_narrow": lambda: simple_cnn((8, 16), 256, outputs),
        "simple_cnn_wide": lambda: simple_cnn((64, 128), 2048, outputs),
        "resnet_8": lambda: resnet_8(outputs),
        "resnet_50": lambda: resnet_50(outputs),
        "vgg_11": lambda: vgg_11(outputs),
        "lstm": lambda: lstm(2, 512, outputs),
    }
    if name not in makers:
        known = ", ".join(["fc_W[_W…]", "tanh_W", *makers, *TRANSFORMERS])
        raise ValueError(f"model {name!r}: expected one of {known}")
    return makers[name]()
