"""The gradient noise scale: the batch size at which noise and gradient are of one size, with its interval."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .rules import NoiseRule

if TYPE_CHECKING:
    from .loop import State, Trainer


@dataclass(frozen=True, slots=True)
class NoiseScale:
    """An estimate of tr(Σ) / |G|².

    Parameters
    ----------
    noise_scale : float or None
        In examples; None if it is not identified, because the estimate of |G|² is not positive.
    low, high : float or None
        Limits of the confidence interval; None for one that does not exist (`high`: any larger value is
        possible).
    gradient_squared : float
        Unbiased estimate of |G|², the squared length of the expected gradient; may be negative.
    trace : float
        Unbiased estimate of tr(Σ), Σ being the covariance of one example's gradient.
    """

    noise_scale: float | None
    low: float | None
    high: float | None
    gradient_squared: float
    trace: float


def noise_scale_of_sizes(
    small_batch: int,
    big_batch: int,
    small_squares: ArrayLike,
    big_squares: ArrayLike,
    *,
    confidence_level: float = 0.95,
) -> NoiseScale:
    """The noise scale from squared gradient lengths at two batch sizes.

    Parameters
    ----------
    small_batch, big_batch : int
        Two different batch sizes.
    small_squares, big_squares : array_like (repeats,)
        Squared lengths of the mean gradient over a batch of each size, in independent repeats; for example
        a replica's own gradient and the gradient after the all-reduce.
    confidence_level : float, default 0.95
        Of the interval.

    Returns
    -------
    NoiseScale

    Raises
    ------
    ValueError
        If the sizes are equal (the estimator would divide by zero), the arrays differ in length, or there
        are fewer than 3 repeats.

    Notes
    -----
    |G|² ≈ (B |g_B|² − b |g_b|²) / (B − b) and tr(Σ) ≈ (|g_b|² − |g_B|²) / (1/b − 1/B) are unbiased
    [1]_.  Each is averaged over the repeats before they are divided, since the mean of ratios would be
    biased; the interval is Fieller's for the ratio of two means.

    References
    ----------
    .. [1] McCandlish et al. (2018), An empirical model of large-batch training, appendix A.1.

    Examples
    --------
    >>> estimate = noise_scale_of_sizes(1, 2, [3.0, 3.1, 2.9], [2.0, 2.1, 1.9])
    >>> round(estimate.noise_scale, 6)
    2.0
    """
    if small_batch == big_batch:
        raise ValueError(
            f"the noise scale needs two different batch sizes, got {small_batch} twice: "
            "the same size shows the same noise, and the estimator would divide by zero"
        )
    small, big = np.asarray(small_squares, np.float64), np.asarray(big_squares, np.float64)
    if small.shape != big.shape or small.ndim != 1 or len(small) < 3:
        raise ValueError(
            f"expected two arrays of at least 3 repeats each, got shapes {small.shape} and {big.shape}"
        )
    squares = (big_batch * big - small_batch * small) / (big_batch - small_batch)
    traces = (small - big) / (1.0 / small_batch - 1.0 / big_batch)
    return _ratio(traces, squares, confidence_level)


def noise_scale_of_batches(
    squares: ArrayLike, dots: ArrayLike, batch: int, *, confidence_level: float = 0.95
) -> NoiseScale:
    """The noise scale from the gradients of M independent small batches of one size.

    Parameters
    ----------
    squares : array_like (M,)
        Squared length of each small batch's mean gradient g_i.
    dots : array_like (M,)
        Inner product of each g_i with the sum of all of them.
    batch : int
        Examples of a small batch.
    confidence_level : float, default 0.95
        Of the interval.

    Returns
    -------
    NoiseScale

    Raises
    ------
    ValueError
        If there are fewer than 3 batches.

    Notes
    -----
    The estimator of `noise_scale_of_sizes` with the small batches and the one big batch of all of them:
    |G|² is the mean of g_i · g_j over i ≠ j, tr(Σ) is `batch` times the sample variance of the g_i.
    All pairs take part, so |G|² is known far better than from pairs of one small and one big batch; its
    error comes from the jackknife over the batches, the interval of the ratio is Fieller's.
    """
    q, d = np.asarray(squares, np.float64), np.asarray(dots, np.float64)
    if q.shape != d.shape or q.ndim != 1 or len(q) < 3:
        raise ValueError(
            f"expected squares and dots of at least 3 batches, got shapes {q.shape} and {d.shape}"
        )
    count = len(q)

    def estimates(total: Any, own: Any, m: int) -> tuple[Any, Any]:
        return batch * (own - total / m) / (m - 1), (total - own) / (m * (m - 1))

    total, own = d.sum(), q.sum()
    trace, square = estimates(total, own, count)
    without = estimates(total - 2 * d + q, own - q, count - 1)
    pseudo_trace = count * trace - (count - 1) * without[0]
    pseudo_square = count * square - (count - 1) * without[1]
    return _ratio(pseudo_trace, pseudo_square, confidence_level)


def _ratio(traces: NDArray[np.float64], squares: NDArray[np.float64], confidence_level: float) -> NoiseScale:
    """The ratio of the means with Fieller's limits."""
    from scipy.stats import t as student

    count = len(traces)
    trace, square = float(traces.mean()), float(squares.mean())
    (v_trace, c), (_, v_square) = np.cov(traces, squares) / count
    if not square > 0:
        return NoiseScale(None, None, None, square, trace)
    quantile = float(student.ppf(0.5 + confidence_level / 2, count - 1)) ** 2
    # Where (trace − r · square)² equals the squared quantile times its variance.
    a = square**2 - quantile * v_square
    b = trace * square - quantile * c
    e = trace**2 - quantile * v_trace
    a, b, e = float(a), float(b), float(e)
    spread = math.sqrt(max(b * b - a * e, 0.0))
    low: float | None
    high: float | None
    if a > 0:
        low, high = max((b - spread) / a, 0.0), (b + spread) / a
    else:
        # |G|² is not told from zero: the ratio has no upper limit.
        high = None
        low = max(e / (b + spread), 0.0) if b + spread > 0 else 0.0
    return NoiseScale(trace / square, low, high, square, trace)


def measured_noise(
    trainer: Trainer, state: State, step: int, rule: NoiseRule, *, seed: Sequence[int]
) -> dict[str, Any]:
    """The noise scale at a step of a trial, as a row of its ``noise.csv``.

    The small batches are drawn with replacement, each example on its own.  Their gradients are computed
    twice, first for the sum and then for the products with it, so that no more than two are held at a time.
    """
    import tensorflow as tf

    gradient = trainer.noise_gradient
    rng = np.random.default_rng([*seed, step])
    examples = rng.integers(trainer.data_set.train.size, size=(rule.batches, rule.batch), dtype=np.int32)
    total: Any = 0.0
    squares, dots = [], []
    for few in examples:
        g = gradient(state, tf.constant(few))
        total = total + g
        squares.append(float(tf.reduce_sum(g * g)))
    for few in examples:
        dots.append(float(tf.reduce_sum(gradient(state, tf.constant(few)) * total)))
    estimate = noise_scale_of_batches(squares, dots, rule.batch, confidence_level=rule.confidence_level)
    return {"step": step, **asdict(estimate), "batch": rule.batch, "batches": rule.batches}


def noise_table(rows: Iterable[dict[str, Any]]) -> str:
    """Rows as the text of a CSV file; an empty cell is a number that does not exist."""
    rows = list(rows)
    lines = [",".join(rows[0])] if rows else []
    for row in rows:
        lines.append(",".join("" if v is None else repr(v) for v in row.values()))
    return "\n".join(lines) + "\n"
