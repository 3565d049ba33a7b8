"""Scaling laws of steps to result against batch size: fits, their comparison, and their limits."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .results import as_steps, rank_of_best
from .transitions import TOLERANCE, Transitions

Floats = NDArray[np.float64]
Law = Literal["knee", "hyperbola", "pieces"]

LAWS: tuple[Law, ...] = ("knee", "hyperbola", "pieces")

_BEYOND = 4 * math.log(2)
"""How far beyond the batch sizes measured a fit looks for its critical batch size."""

_EXPONENTS = (0.25, 16.0)
"""Limits of a knee's sharpness: less is no knee within any data, more is a corner."""


_LARGEST_EXTRAPOLATION = 1.5
"""How far below anything measured an asymptote may lie and still count as seen."""


class Regime(enum.Enum):
    """The three regimes of the paper."""

    PERFECT_SCALING = "perfect scaling"
    DIMINISHING_RETURNS = "diminishing returns"
    MAXIMAL_DATA_PARALLELISM = "maximal data parallelism"


# --------------------------------------------------------------------------------------------------
# Shapes.  A law is log steps = log floor + shape(log batch size; parameters), with arrays of parameters, so
# that a thousand resampled curves are fitted in a few matrix products.


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the code needs to know of a law; parameters are arrays of shape (curves, parameters)."""

    parameters: tuple[str, ...]
    value: Callable[[Floats, Floats], Floats]
    critical: Callable[[Floats], Floats]
    perfect: Callable[[Floats, float, float], Floats]
    useful: Callable[[Floats, float], Floats]
    fit: Callable[[Floats, Floats, Floats], Floats]

    @property
    def free(self) -> int:
        """Parameters to be estimated, the floor included."""
        return len(self.parameters) + 1


def _knee(p: Floats, x: Floats) -> Floats:
    u, a = p[..., 0:1], np.exp(p[..., 1:2])
    return np.logaddexp(0.0, a * (u - x)) / a


def _knee_perfect(p: Floats, reference: float, tolerance: float) -> Floats:
    """Where examples, in logarithms (a(x) = log(B^a + B_c^a) / a), exceed those at the reference."""
    u, a = p[:, 0], np.exp(p[:, 1])
    excess = a * math.log1p(tolerance)
    with np.errstate(divide="ignore", over="ignore"):
        # log(expm1(t)) = t + log(-expm1(-t)), which does not overflow.
        log_expm1 = excess + np.log(-np.expm1(-excess))
    return np.logaddexp(excess + a * reference, a * u + log_expm1) / a


def _knee_useful(p: Floats, tolerance: float) -> Floats:
    u, a = p[:, 0], np.exp(p[:, 1])
    excess = a * math.log1p(tolerance)
    return u - (excess + np.log(-np.expm1(-excess))) / a


def _as_knee(p: Floats) -> Floats:
    return np.concatenate([p, np.zeros_like(p)], axis=-1)


def _pieces(p: Floats, x: Floats) -> Floats:
    x1, x2, slope = p[..., 0:1], p[..., 1:2], p[..., 2:3]
    return slope * (np.clip(x, x1, x2) - x2) - (np.minimum(x, x1) - x1)


def _pieces_perfect(p: Floats, reference: float, tolerance: float) -> Floats:
    """Log examples are x + log steps: flat up to x1, then of slope 1 + s, then of slope 1."""
    x1, x2, slope = p[:, 0], p[:, 1], p[:, 2]
    rise = math.log1p(tolerance)
    start = np.maximum(reference, x1)
    middle = (1 + slope) * np.maximum(x2 - start, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        within = start + rise / (1 + slope)
    return np.where(rise <= middle, within, np.maximum(start, x2) + rise - middle)


def _pieces_useful(p: Floats, tolerance: float) -> Floats:
    x1, x2, slope = p[:, 0], p[:, 1], p[:, 2]
    rise = math.log1p(tolerance)
    middle = -slope * (x2 - x1)
    with np.errstate(divide="ignore", invalid="ignore"):
        within = x2 + rise / slope
    return np.where(rise <= middle, within, x1 - (rise - middle))


def _total(weights: Floats) -> Floats:
    return np.asarray(weights.sum(axis=1, keepdims=True))


def _residuals(value: Floats, y: Floats, w: Floats) -> tuple[Floats, Floats, Floats]:
    """Residuals from a shape whose floor is the best one, the log floor, and the sum of their squares."""
    floor = (w * (y - value)).sum(axis=-1, keepdims=True) / _total(w)
    left = y - value - floor
    return left, floor[..., 0], (w * left * left).sum(axis=-1)


def _best_of_grid(shapes: Floats, y: Floats, w: Floats) -> NDArray[np.intp]:
    """For each curve the row of `shapes` (shapes × batch sizes) with the least sum of squares."""
    if w.all():
        about_mean = shapes - shapes.mean(axis=1, keepdims=True)
        return _first_least((about_mean**2).sum(axis=1) - 2 * y @ about_mean.T)
    first = (w * y).sum(axis=1, keepdims=True) - w @ shapes.T
    squares = -2 * (w * y) @ shapes.T + w @ (shapes * shapes).T - first * first / _total(w)
    return _first_least(squares)


def _first_least(squares: Floats) -> NDArray[np.intp]:
    """The first of those that are least within rounding: flat directions must not be decided by it."""
    least = squares.min(axis=1, keepdims=True)
    return np.asarray((squares <= least + 1e-9 * (1 + np.abs(least))).argmax(axis=1))


def _span(x: Floats, per_octave: float) -> Floats:
    low, high = float(x[0]) - _BEYOND, float(x[-1]) + _BEYOND
    return np.linspace(low, high, math.ceil((high - low) / math.log(2) * per_octave) + 1)


def _fit_knee(x: Floats, y: Floats, w: Floats, *, sharpness: Floats | None = None) -> Floats:
    """Least squares by a grid over (critical batch size, sharpness), refined by Levenberg–Marquardt steps."""
    limits = [math.log(limit) for limit in _EXPONENTS]
    exponents = np.linspace(limits[0], limits[1], 14) if sharpness is None else sharpness
    grid = np.stack(np.meshgrid(_span(x, 3), exponents, indexing="ij"), axis=-1).reshape(-1, 2)
    p = grid[_best_of_grid(_knee(grid, x), y, w)].copy()
    lower = np.array([x[0] - _BEYOND, limits[0] if sharpness is None else sharpness[0]])
    upper = np.array([x[-1] + _BEYOND, limits[1] if sharpness is None else sharpness[0]])
    damping = np.full(len(y), 1e-3)
    left, _, squares = _residuals(_knee(p, x), y, w)
    # One curve to the last digit; of a thousand draws only the quantiles matter.
    enough = 1e-10 if len(y) == 1 else 1e-5
    active = np.arange(len(y))
    for _ in range(40):
        slopes = _knee_slopes(p[active], x)
        if sharpness is not None:
            slopes[..., 1] = 0.0
        step = _damped_step(slopes, left[active], w[active], damping[active])
        tried = np.clip(p[active] + np.clip(step, -0.7, 0.7), lower, upper)
        moved = np.abs(tried - p[active]).max(axis=1)
        left_there, _, squares_there = _residuals(_knee(tried, x), y[active], w[active])
        better = squares_there <= squares[active]
        taken = active[better]
        p[taken], left[taken], squares[taken] = tried[better], left_there[better], squares_there[better]
        damping[active] *= np.where(better, 0.2, 10.0)
        active = active[(moved > enough) & (damping[active] < 1e6)]
        if not len(active):
            break
    return p


def _damped_step(slopes: Floats, left: Floats, w: Floats, damping: Floats) -> Floats:
    """The Levenberg–Marquardt step of two parameters beside a floor that is always the best one."""
    by_size, by_sharpness = (
        slope - (w * slope).sum(axis=1, keepdims=True) / _total(w)
        for slope in (slopes[..., 0], slopes[..., 1])
    )
    grow = 1 + damping
    first = (w * by_size**2).sum(axis=1) * grow + 1e-12
    second = (w * by_sharpness**2).sum(axis=1) * grow + 1e-12
    mixed = (w * by_size * by_sharpness).sum(axis=1)
    pull = (w * by_size * left).sum(axis=1), (w * by_sharpness * left).sum(axis=1)
    determinant = first * second - mixed**2
    step = np.stack([second * pull[0] - mixed * pull[1], first * pull[1] - mixed * pull[0]], axis=1)
    return np.asarray(step / determinant[:, None])


def _knee_slopes(p: Floats, x: Floats) -> Floats:
    """Derivatives of the knee by log critical batch size and log sharpness."""
    a, ahead = np.exp(p[:, 1:2]), p[:, 0:1] - x
    with np.errstate(over="ignore"):
        share = 1 / (1 + np.exp(-a * ahead))
    return np.stack([share, ahead * share - _knee(p, x)], axis=-1)


def _fit_hyperbola(x: Floats, y: Floats, w: Floats) -> Floats:
    return _fit_knee(x, y, w, sharpness=np.zeros(1))[:, :1]


def _fit_pieces(x: Floats, y: Floats, w: Floats) -> Floats:
    """Least squares by a grid over both corners, made finer around the best; the slope is linear in it."""
    corners = _span(x, 3)
    first, second = np.triu_indices(len(corners))
    grid = np.stack([corners[first], corners[second]], axis=1)
    steep = _pieces(np.column_stack([grid, np.zeros(len(grid))]), x)
    along = np.clip(x, grid[:, :1], grid[:, 1:]) - grid[:, 1:]
    total = _total(w)
    # Sums of squares and products about the means, for every curve and every pair of corners.
    sa, sy = w @ along.T, (w * y).sum(axis=1, keepdims=True) - w @ steep.T
    saa = w @ (along * along).T - sa * sa / total
    say = (w * y) @ along.T - w @ (along * steep).T - sa * sy / total
    syy = (
        (w * y * y).sum(axis=1, keepdims=True)
        - 2 * (w * y) @ steep.T
        + w @ (steep * steep).T
        - sy * sy / total
    )
    slope = np.clip(say / np.where(saa > 1e-12, saa, np.inf), -1.0, 0.0)
    best = _first_least(syy - 2 * slope * say + slope * slope * saa)
    p = np.column_stack([grid[best], slope[np.arange(len(y)), best]])
    width = corners[1] - corners[0]
    moves = np.stack(np.meshgrid(*[np.linspace(-1, 1, 7)] * 2), axis=-1).reshape(-1, 2)
    for _ in range(9):
        tried = np.clip(p[:, None, :2] + width * moves, corners[0], corners[-1])
        tried.sort(axis=2)
        flat = np.concatenate([tried, np.zeros((*tried.shape[:2], 1))], axis=2)
        target = y[:, None, :] - _pieces(flat, x)
        along = np.clip(x, tried[..., :1], tried[..., 1:]) - tried[..., 1:]
        weight = w[:, None, :]
        along = along - (weight * along).sum(axis=2, keepdims=True) / total[:, None]
        target = target - (weight * target).sum(axis=2, keepdims=True) / total[:, None]
        saa = (weight * along * along).sum(axis=2)
        say = (weight * along * target).sum(axis=2)
        slope = np.clip(say / np.where(saa > 1e-12, saa, np.inf), -1.0, 0.0)
        best = _first_least((weight * target * target).sum(axis=2) - 2 * slope * say + slope * slope * saa)
        every = np.arange(len(y))
        p = np.column_stack([tried[every, best], slope[every, best]])
        width *= 0.45
    return p


_SHAPES: dict[Law, _Shape] = {
    "knee": _Shape(
        ("log_critical_batch_size", "log_sharpness"),
        _knee,
        lambda p: p[:, 0],
        _knee_perfect,
        _knee_useful,
        _fit_knee,
    ),
    "hyperbola": _Shape(
        ("log_critical_batch_size",),
        lambda p, x: _knee(_as_knee(p), x),
        lambda p: p[:, 0],
        lambda p, reference, tolerance: _knee_perfect(_as_knee(p), reference, tolerance),
        lambda p, tolerance: _knee_useful(_as_knee(p), tolerance),
        _fit_hyperbola,
    ),
    "pieces": _Shape(
        ("log_first_corner", "log_second_corner", "slope"),
        _pieces,
        lambda p: p[:, 0] + p[:, 2] * (p[:, 0] - p[:, 1]),
        _pieces_perfect,
        _pieces_useful,
        _fit_pieces,
    ),
}


# --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScalingLaw:
    """A law fitted to one curve.

    Attributes
    ----------
    law : {"knee", "hyperbola", "pieces"}
        Which law.
    floor : float
        Steps that no batch size goes below, in the unit of the steps fitted.
    parameters : dict of str to float
        The other parameters, by name.
    batch_sizes, fitted_to : tuple of float
        The points fitted: batch sizes at which the goal was reached, and their steps.
    scatter : float
        Standard deviation of the log steps about the law (degrees of freedom counted); 0.1 is 10 %.
    aicc : float
        Akaike's criterion, corrected for few points; infinite where there are too few to correct.
    outliers : tuple of float
        Batch sizes whose steps do not belong to the curve that the others make.
    warnings : tuple of str
        What a reader of the fit must know.
    """

    law: Law
    floor: float
    parameters: dict[str, float]
    batch_sizes: tuple[float, ...]
    fitted_to: tuple[float, ...]
    scatter: float
    aicc: float
    outliers: tuple[float, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def smallest(self) -> float:
        """Smallest batch size fitted."""
        return self.batch_sizes[0]

    @property
    def largest(self) -> float:
        """Largest batch size fitted."""
        return self.batch_sizes[-1]

    @property
    def critical_batch_size(self) -> float:
        """Where the two asymptotes of the law cross: perfect scaling and the floor."""
        return float(np.exp(self._shape.critical(self._p)[0]))

    @property
    def determined(self) -> bool:
        """Whether the points show both asymptotes of the law, and the crossing lies between them."""
        inside = self.smallest <= self.critical_batch_size <= self.largest
        return inside and max(self._unseen) <= _LARGEST_EXTRAPOLATION

    @property
    def _unseen(self) -> tuple[float, float]:
        """How far the law lies above its asymptotes at the smallest and at the largest batch size."""
        first, last = self.floor * np.exp(
            self._shape.value(self._p, np.log([self.smallest, self.largest]))[0]
        )
        return (
            float(first * self.smallest / (self.floor * self.critical_batch_size)),
            float(last / self.floor),
        )

    @property
    def _shape(self) -> _Shape:
        return _SHAPES[self.law]

    @property
    def _p(self) -> Floats:
        return np.array([list(self.parameters.values())])

    def steps(self, batch_size: ArrayLike, *, extrapolate: bool = False) -> Floats:
        """The law's steps at batch sizes.

        Parameters
        ----------
        batch_size : array_like of float
            Of any shape.
        extrapolate : bool, default False
            Whether batch sizes outside those measured are allowed.

        Raises
        ------
        ValueError
            If a batch size lies outside those measured and `extrapolate` is not given.
        """
        sizes = np.asarray(batch_size, dtype=np.float64)
        if not extrapolate and np.any((sizes < self.smallest) | (sizes > self.largest)):
            raise ValueError(
                f"batch sizes were measured from {self.smallest:,.0f} to {self.largest:,.0f}; beyond them "
                "the law is a guess, which extrapolate=True allows"
            )
        return np.asarray(self.floor * np.exp(self._shape.value(self._p, np.log(sizes).ravel())[0])).reshape(
            sizes.shape
        )

    def batch_size_at_overhead(
        self, overhead: float, *, reference: float | None = None, extrapolate: bool = False
    ) -> float:
        """The batch size that needs so many more examples than the reference does.

        Parameters
        ----------
        overhead : float
            For example 0.2 for 20 % more examples to result.
        reference : float, optional
            Batch size to compare with; by default the smallest measured.
        extrapolate : bool, default False
            Whether the answer may lie beyond the largest batch size measured.

        Raises
        ------
        ValueError
            If the overhead is not positive, or the answer is an extrapolation that was not allowed.

        Notes
        -----
        For the hyperbola steps = a + b/B this is (1 + overhead) · reference + overhead · b/a, the critical
        batch size of Zhang et al. (2025) [1]_ with overhead 0.2 and reference 256.

        References
        ----------
        .. [1] Zhang et al. (2025), How does critical batch size scale in pre-training?, ICLR,
           arXiv 2410.21676.
        """
        if not overhead > 0:
            raise ValueError(f"an overhead must be positive, got {overhead}")
        start = self.smallest if reference is None else reference
        found = float(np.exp(self._shape.perfect(self._p, math.log(start), overhead)[0]))
        if found > self.largest and not extrapolate:
            raise ValueError(
                f"the law puts it at {found:,.0f}, beyond the largest batch size measured, "
                f"{self.largest:,.0f}; extrapolate=True allows that"
            )
        return found

    def transitions(self, tolerance: float = TOLERANCE) -> Transitions:
        """The transition points of the law, at batch sizes between those measured.

        Parameters
        ----------
        tolerance : float, default 0.2
            By how much steps may exceed perfect scaling from the smallest batch size, or the floor.

        Returns
        -------
        Transitions
            Never beyond the batch sizes measured: there it is censored.
        """
        if not tolerance > 0:
            raise ValueError(f"a tolerance must be positive, got {tolerance}")
        perfect = float(np.exp(self._shape.perfect(self._p, math.log(self.smallest), tolerance)[0]))
        useful = float(np.exp(self._shape.useful(self._p, tolerance)[0]))
        beyond = (perfect >= self.largest, useful >= self.largest)
        return Transitions(
            tolerance,
            min(perfect, self.largest),
            beyond[0],
            min(max(useful, self.smallest), self.largest),
            beyond[1],
            self.smallest,
            self.largest,
            perfect_crossing=None if beyond[0] else perfect,
            useful_crossing=None if beyond[1] else max(useful, self.smallest),
            warnings=self.warnings,
        )

    def regime(self, batch_size: float, tolerance: float = TOLERANCE) -> Regime:
        """The regime that a batch size is in.

        Raises
        ------
        ValueError
            If it lies outside the batch sizes measured.
        """
        self.steps(batch_size)
        found = self.transitions(tolerance)
        assert found.perfect_to is not None
        assert found.useful_to is not None
        if batch_size <= found.perfect_to:
            return Regime.PERFECT_SCALING
        if found.useful_censored or batch_size < found.useful_to:
            return Regime.DIMINISHING_RETURNS
        return Regime.MAXIMAL_DATA_PARALLELISM


def fit_scaling_law(batch_sizes: ArrayLike, steps: ArrayLike, *, law: Law = "knee") -> ScalingLaw:
    """Fit a scaling law to a curve of steps to result.

    Parameters
    ----------
    batch_sizes : array_like of float
        Distinct and positive, in any order.
    steps : array_like of float
        Steps at each, in any unit; those that are missing or infinite (goal not reached) are left out.
    law : {"knee", "hyperbola", "pieces"}
        ``"knee"``: S·(1 + (B_c/B)^a)^(1/a).  ``"hyperbola"``: S·(1 + B_c/B), a knee with a = 1 [1]_, which is
        log(a + b/B) with S = a and B_c = b/a [2]_.  ``"pieces"``: three straight lines in log–log of slopes
        −1, between −1 and 0, and 0.

    Returns
    -------
    ScalingLaw

    Raises
    ------
    ValueError
        If the law is not known, fewer batch sizes reached the goal than the law has parameters and one
        more, or a batch size repeats or is not positive.

    Notes
    -----
    Least squares in log steps.  The critical batch size is looked for up to a factor of 16 beyond the batch
    sizes measured; a fit that puts it outside them says so in its warnings and is not `determined`.

    References
    ----------
    .. [1] McCandlish, Kaplan, Amodei et al. (2018), An empirical model of large-batch training, arXiv
       1812.06162.
    .. [2] Zhang et al. (2025), How does critical batch size scale in pre-training?, ICLR, arXiv 2410.21676.

    Examples
    --------
    >>> sizes = [16, 64, 256, 1024, 4096]
    >>> fit = fit_scaling_law(sizes, [100 * (1 + 300 / size) for size in sizes], law="hyperbola")
    >>> round(fit.critical_batch_size, 3), round(fit.floor, 3)
    (300.0, 100.0)
    """
    shape = _shape_of(law)
    sizes, values = np.asarray(batch_sizes, dtype=np.float64), as_steps(steps)
    if sizes.shape != values.shape or sizes.ndim != 1:
        raise ValueError(f"expected as many batch sizes as steps, got {sizes.shape} and {values.shape}")
    if np.any(sizes <= 0) or np.any(values <= 0) or len(np.unique(sizes)) < len(sizes):
        raise ValueError("batch sizes must be distinct, and they and the steps positive")
    order = np.argsort(sizes)
    order = order[np.isfinite(values[order])]
    sizes, values = sizes[order], values[order]
    n = len(sizes)
    if n <= shape.free:
        raise ValueError(
            f"a {law} has {shape.free} parameters and needs more batch sizes that reached the goal; got {n}"
        )
    x, y = np.log(sizes), np.log(values)
    # The unit of the steps decides nothing, not even the last digit.
    unit = y.mean()
    y = y - unit
    weight = np.ones((1, n))
    p = shape.fit(x, y[None], weight)
    left, log_floor, squares = _residuals(shape.value(p, x), y[None], weight)
    scatter = math.sqrt(float(squares[0]) / (n - shape.free))
    outliers = _outliers(shape, p, x, left[0], float(squares[0]))
    fitted = ScalingLaw(
        law,
        float(np.exp(log_floor[0] + unit)),
        dict(zip(shape.parameters, p[0].tolist(), strict=True)),
        tuple(sizes.tolist()),
        tuple(values.tolist()),
        scatter,
        _aicc(n, shape.free, float(squares[0])),
        tuple(sizes[outliers].tolist()),
    )
    # The warnings speak of what the law itself computes.
    object.__setattr__(fitted, "warnings", tuple(_warnings(fitted, values[outliers], left[0][outliers])))
    return fitted


def _shape_of(law: str) -> _Shape:
    for name, shape in _SHAPES.items():
        if name == law:
            return shape
    raise ValueError(f"the laws are {', '.join(LAWS)}; got {law!r}")


def _aicc(n: int, free: int, squares: float) -> float:
    k = free + 1  # and the scatter
    if n <= k + 1:
        return math.inf
    # Numbers read back from text agree to about nine digits; less is no better fit.
    variance = max(squares / n, 1e-18)
    return n * math.log(variance) + 2 * k + 2 * k * (k + 1) / (n - k - 1)


def _outliers(shape: _Shape, p: Floats, x: Floats, left: Floats, squares: float) -> NDArray[np.bool_]:
    """Points whose deleted residuals are beyond chance (1 % for the whole curve) and beyond a factor 1.5."""
    from scipy.stats import t

    n, free = len(x), shape.free
    if n <= free + 1:
        return np.zeros(n, dtype=bool)
    nudge = 1e-5
    slopes = [np.ones(n)]
    for j in range(p.shape[1]):
        step = np.zeros_like(p)
        step[0, j] = nudge
        slopes.append(((shape.value(p + step, x) - shape.value(p - step, x)) / (2 * nudge))[0])
    q, _ = np.linalg.qr(np.column_stack(slopes))
    room = np.clip(1 - (q * q).sum(axis=1), 1e-6, None)
    others = np.clip(squares - left * left / room, 1e-24, None) / (n - free - 1)
    beyond = np.abs(left) / np.sqrt(others * room) > t.isf(0.005 / n, n - free - 1)
    return np.asarray(beyond & (np.abs(left) > math.log(1.5)))


def _warnings(fitted: ScalingLaw, outlying: Floats, left: Floats) -> list[str]:
    found = []
    critical, name = fitted.critical_batch_size, fitted.law
    if not fitted.smallest <= critical <= fitted.largest:
        side = "beyond the largest" if critical > fitted.largest else "below the smallest"
        end = fitted.largest if critical > fitted.largest else fitted.smallest
        found.append(f"the {name} law puts its critical batch size {side} measured, {end:,.0f}")
    first, last = fitted._unseen
    if first > _LARGEST_EXTRAPOLATION:
        found.append(
            f"the {name} law is {first:.1f} times above its own perfect scaling at the smallest batch size "
            "measured, so that perfect scaling is an extrapolation"
        )
    if last > _LARGEST_EXTRAPOLATION:
        found.append(
            f"the {name} law's floor lies {last:.1f} times below its steps at the largest batch size "
            "measured, so the floor is an extrapolation"
        )
    for size, steps, off in zip(fitted.outliers, outlying, left, strict=True):
        found.append(
            f"the steps at batch size {size:,.0f}, {steps:,.6g}, lie {math.exp(abs(off)):.1f} times "
            f"{'above' if off > 0 else 'below'} the {name} law; they were not left out"
        )
    return found


def compare_laws(batch_sizes: ArrayLike, steps: ArrayLike) -> pd.DataFrame:
    """How well each law describes one curve.

    Parameters
    ----------
    batch_sizes, steps : array_like of float
        As in `fit_scaling_law`.

    Returns
    -------
    pandas.DataFrame
        A row is a ``law`` that the points suffice for, the best first: ``aicc``, ``difference`` from the
        best, ``weight`` (Akaike's, of 1 in all), ``scatter``, ``critical_batch_size``, ``determined``.

    Notes
    -----
    Differences of Akaike's criterion [1]_ below about 2 mean that the data do not tell the laws apart;
    above about 10 that the worse one is out of the question.

    References
    ----------
    .. [1] Burnham and Anderson (2002), Model selection and multimodel inference, 2nd edition, section 2.6.
    """
    names = ["law", "aicc", "difference", "weight", "scatter", "critical_batch_size", "determined"]
    reached = int(np.isfinite(as_steps(steps)).sum())
    fits = [fit_scaling_law(batch_sizes, steps, law=law) for law in LAWS if reached > _SHAPES[law].free + 2]
    if not fits:
        return pd.DataFrame(columns=names)
    table = pd.DataFrame(
        {
            "law": [fit.law for fit in fits],
            "aicc": [fit.aicc for fit in fits],
            "scatter": [fit.scatter for fit in fits],
            "critical_batch_size": [fit.critical_batch_size for fit in fits],
            "determined": [fit.determined for fit in fits],
        }
    ).sort_values("aicc", ignore_index=True)
    difference = table["aicc"] - table["aicc"].iloc[0]
    weight = np.exp(-difference / 2)
    return table.assign(difference=difference, weight=weight / weight.sum())[names]


@dataclass(frozen=True, slots=True)
class Limits:
    """An interval of batch sizes; None at an end that lies beyond the batch sizes measured."""

    low: float | None
    high: float | None
    confidence_level: float


@dataclass(frozen=True, slots=True)
class LawDistribution:
    """A law refitted to many curves that the same measurements might have given.

    Attributes
    ----------
    fitted : ScalingLaw
        The law of the curve itself.
    source : {"trials", "scatter"}
        Whether trials were resampled within studies, or only the scatter about the law was.
    parameters : numpy.ndarray
        Of shape (draws, parameters).
    log_floor : numpy.ndarray
        Of shape (draws,).
    study_scatter : float or None
        Standard deviation of log steps between studies beyond what their trials explain.
    """

    fitted: ScalingLaw
    source: Literal["trials", "scatter"]
    parameters: Floats = field(repr=False)
    log_floor: Floats = field(repr=False)
    study_scatter: float | None = None

    @property
    def draws(self) -> int:
        """Number of curves that were refitted."""
        return len(self.parameters)

    @property
    def critical_batch_size(self) -> Floats:
        """The critical batch size of each draw."""
        return np.exp(_SHAPES[self.fitted.law].critical(self.parameters))

    @property
    def floor(self) -> Floats:
        """The floor of each draw."""
        return np.exp(self.log_floor)

    def perfect_to(self, tolerance: float = TOLERANCE) -> Floats:
        """The end of perfect scaling of each draw."""
        reference = math.log(self.fitted.smallest)
        return np.exp(_SHAPES[self.fitted.law].perfect(self.parameters, reference, tolerance))

    def useful_to(self, tolerance: float = TOLERANCE) -> Floats:
        """The maximum useful batch size of each draw."""
        return np.exp(np.minimum(_SHAPES[self.fitted.law].useful(self.parameters, tolerance), 700.0))

    def limits(self, values: Floats, *, confidence_level: float = 0.9) -> Limits:
        """Percentile limits of one of the above, open where they leave the batch sizes measured.

        Parameters
        ----------
        values : numpy.ndarray
            Of shape (draws,).
        confidence_level : float, default 0.9
        """
        if not 0 < confidence_level < 1:
            raise ValueError(f"confidence_level lies between 0 and 1, got {confidence_level}")
        tail = (1 - confidence_level) / 2
        low, high = (float(value) for value in np.quantile(values, [tail, 1 - tail]))
        return Limits(
            low if low >= self.fitted.smallest else None,
            high if high <= self.fitted.largest else None,
            confidence_level,
        )


def bootstrap_law(
    trials: pd.DataFrame,
    *,
    k: int = 10,
    draws: int = 999,
    law: Law = "knee",
    rng: np.random.Generator,
) -> LawDistribution:
    """Fit a law to the best-of-k curve of a workload, and refit it to resampled trials.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial of one workload: ``batch_size`` and ``steps`` to the goal (missing = not reached;
        diverged trials too), as `steps_to_goal` returns it.
    k : int, default 10
        Trials of the search whose median steps to result make the curve.
    draws : int, default 999
        Number of resampled curves.
    law : {"knee", "hyperbola", "pieces"}
    rng : numpy.random.Generator

    Returns
    -------
    LawDistribution

    Raises
    ------
    ValueError
        If there are several workloads, or fewer batch sizes with k trials of which a search of k more
        likely than not reaches the goal than the law needs.

    Notes
    -----
    Trials are resampled within each study.  The best-of-k estimate is an order statistic, and that of a
    resampled study is the order statistic whose position is a Beta variate, so no trial has to be drawn.
    Two corrections make the limits of the critical batch size honest.  An order statistic of resampled
    trials varies too much, because the spacings between trials are themselves random: by about
    1/√(πr) of its variance at rank r.  And studies differ by more than their trials explain: each has its
    own search space and evaluation grid.  The scatter about the law beyond what the trials explain is
    drawn anew for each study, and its size for each draw, from the χ² distribution of the residuals.  A
    plain resampling of trials covers the true critical batch size far too seldom where studies differ.
    """
    if "workload" in trials.columns and len(trials["workload"].unique()) > 1:
        raise ValueError("a law is fitted to one workload; the table has several")
    shape = _shape_of(law)
    sizes, point, drawn = [], [], []
    batch_size, steps = trials["batch_size"].to_numpy(dtype=np.float64), as_steps(trials["steps"])
    for size in np.unique(batch_size):
        times = np.sort(steps[batch_size == size])
        n = len(times)
        if n < k:
            continue
        rank = rank_of_best(k, n)
        if not np.isfinite(times[rank - 1]):
            continue
        position = (n * rng.beta(rank, n - rank + 1, draws)).astype(np.int64)
        log_times = np.log(times)
        spread = log_times[position] - log_times[rank - 1]
        sizes.append(float(size))
        point.append(log_times[rank - 1])
        drawn.append(log_times[rank - 1] + spread / math.sqrt(1 + 1 / math.sqrt(math.pi * rank)))
    if len(sizes) <= shape.free:
        raise ValueError(
            f"a {law} has {shape.free} parameters and needs more studies in which a search of {k} trials "
            f"reaches the goal; got {len(sizes)}"
        )
    fitted = fit_scaling_law(sizes, np.exp(point), law=law)
    curves = np.column_stack(drawn)
    weight = np.isfinite(curves).astype(np.float64)
    curves = np.where(weight > 0, curves, 0.0)
    count = weight.sum(axis=0)
    mean = (weight * curves).sum(axis=0) / count
    explained = float(((weight * (curves - mean) ** 2).sum(axis=0) / count).mean())
    freedom = len(sizes) - shape.free
    squares = fitted.scatter**2 * freedom
    unexplained = np.maximum(0.0, squares / rng.chisquare(freedom, draws) - explained)
    curves = curves + rng.normal(size=curves.shape) * np.sqrt(unexplained)[:, None]
    enough = weight.sum(axis=1) > shape.free
    between = math.sqrt(max(0.0, squares / freedom - explained))
    return _refitted(fitted, "trials", curves[enough], weight[enough], study_scatter=between)


def scatter_law(fitted: ScalingLaw, *, draws: int = 999, rng: np.random.Generator) -> LawDistribution:
    """Refit a law to curves that scatter about it as the points fitted do.

    Parameters
    ----------
    fitted : ScalingLaw
    draws : int, default 999
    rng : numpy.random.Generator

    Returns
    -------
    LawDistribution

    Notes
    -----
    For curves whose trials are not known, such as published points.  The scatter of each draw is drawn
    from its χ² distribution, so that few points give wide limits.
    """
    shape = _SHAPES[fitted.law]
    n = len(fitted.batch_sizes)
    x = np.log(np.array(fitted.batch_sizes))
    freedom = n - shape.free
    spread = fitted.scatter * np.sqrt(freedom / rng.chisquare(freedom, draws))
    noise = rng.normal(size=(draws, n)) * spread[:, None]
    curves = math.log(fitted.floor) + shape.value(fitted._p, x) + noise
    return _refitted(fitted, "scatter", curves, np.ones_like(curves))


def _refitted(
    fitted: ScalingLaw,
    source: Literal["trials", "scatter"],
    curves: Floats,
    weight: Floats,
    *,
    study_scatter: float | None = None,
) -> LawDistribution:
    shape, x = _SHAPES[fitted.law], np.log(np.array(fitted.batch_sizes))
    unit = math.log(fitted.floor)
    p = shape.fit(x, curves - unit, weight)
    _, log_floor, _ = _residuals(shape.value(p, x), curves - unit, weight)
    return LawDistribution(fitted, source, p, log_floor + unit, study_scatter)
