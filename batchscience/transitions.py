"""Transition points of a measured curve of steps to result against batch size, without a model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .results import as_steps

TOLERANCE = 0.2
"""By how much steps may exceed perfect scaling, or the floor, and still count as there."""

TOLERANCES = (0.1, 0.15, 0.2, 0.3, 0.5)
"""Tolerances to look at beside the one chosen: the points of a search are noisy."""

# Steps that should be equal come from divisions: a curve exactly on the tolerance is within it.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Transitions:
    """Where perfect scaling ends, and up to where a larger batch size is useful.

    Attributes
    ----------
    tolerance : float
        By how much steps may exceed perfect scaling, or the lowest steps.
    perfect_to : float or None
        Largest batch size up to which perfect scaling from the smallest one holds within the tolerance;
        None where no batch size reached the goal.
    perfect_censored : bool
        Whether it holds to the largest batch size measured, so that the answer is "at least".
    useful_to : float or None
        Smallest batch size whose steps are within the tolerance of the lowest.
    useful_censored : bool
        Whether the steps still fall by more than the tolerance at the largest batch size measured.
    smallest, largest : float or None
        Batch sizes measured: the first and the last at which the goal was reached.
    not_reached : tuple of float
        Batch sizes at which no trial reached the goal.
    perfect_crossing, useful_crossing : float or None
        Batch size at which the curve, interpolated in logarithms between those measured, leaves the
        tolerance of perfect scaling, or comes within the tolerance of its lowest; None where censored.
    grid : float or None
        Largest ratio of the steps to the evaluation before them: how coarsely the steps are known.
        Infinite where a first evaluation already met the goal; None where it is not known.
    warnings : tuple of str
        What a reader of the two numbers must know.
    """

    tolerance: float
    perfect_to: float | None
    perfect_censored: bool
    useful_to: float | None
    useful_censored: bool
    smallest: float | None
    largest: float | None
    not_reached: tuple[float, ...] = ()
    perfect_crossing: float | None = None
    useful_crossing: float | None = None
    grid: float | None = None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.perfect_to is None or self.useful_to is None:
            return "no batch size reached the goal"
        if self.perfect_censored:
            perfect = f"perfect scaling to at least {self.perfect_to:,.0f}, the largest measured"
        elif self.perfect_to == self.smallest:
            perfect = f"no perfect scaling beyond {self.perfect_to:,.0f}, the smallest measured"
        else:
            perfect = f"perfect scaling to {self.perfect_to:,.0f}"
        if self.useful_censored:
            useful = f"useful to at least {self.useful_to:,.0f}" + (
                "" if self.perfect_censored else ", the largest measured"
            )
        elif self.useful_to == self.smallest:
            useful = f"not useful beyond {self.useful_to:,.0f}, the smallest measured"
        else:
            useful = f"useful to {self.useful_to:,.0f}"
        return f"{perfect}; {useful} (tolerance {100 * self.tolerance:g} %)"


def transitions(curve: pd.DataFrame, *, tolerance: float = TOLERANCE) -> Transitions:
    """The two transition points of a measured curve.

    Parameters
    ----------
    curve : pandas.DataFrame
        A row is a study of one workload: ``batch_size`` and ``steps`` (missing or infinite = no trial
        reached the goal), in any unit and order, and where it is known ``after``, the evaluation before.
    tolerance : float, default 0.2
        By how much steps may exceed perfect scaling, or the lowest steps.

    Returns
    -------
    Transitions

    Raises
    ------
    ValueError
        If the tolerance is not positive, a batch size stands there twice, or steps or batch sizes are not
        positive.

    Notes
    -----
    The curve is made monotone first, by isotonic regression of log steps on log batch size, because the
    points of a search are noisy minima.  Perfect scaling is the line of constant examples to result
    (steps times batch size) through the smallest batch size, the dashed line of the paper [1]_.  A curve
    that still falls by more than the tolerance at its end has no maximum useful batch size: the answer is
    then "at least the largest measured", never a number beyond the data.  Where the last batch sizes lie
    closer than a factor of two, its fall is taken for a whole doubling.

    References
    ----------
    .. [1] Shallue et al. (2019), Measuring the effects of data parallelism on neural network training,
       JMLR 20(112), section 4.1 and Figure 1.

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": [1, 2, 4, 8, 16], "steps": [800, 400, 210, 150, 140]})
    >>> found = transitions(curve)
    >>> found.perfect_to, found.useful_to
    (4.0, 8.0)
    >>> print(found)
    perfect scaling to 4; useful to 8 (tolerance 20 %)
    """
    if not tolerance > 0:
        raise ValueError(f"a tolerance must be positive, got {tolerance}")
    sizes, steps, after = _columns(curve)
    reached = np.isfinite(steps)
    missed = tuple(float(size) for size in sizes[~reached])
    if not reached.any():
        notes = ("no trial reached the goal at any batch size",)
        return Transitions(tolerance, None, False, None, False, None, None, missed, warnings=notes)
    sizes, raw, after = sizes[reached], steps[reached], after[reached]
    smooth = monotone(raw)
    within = np.log1p(tolerance) + _ROUNDING
    excess = np.log(sizes * smooth) - np.log(sizes[0] * smooth[0])
    above = np.log(smooth) - np.log(smooth[-1])
    last = len(sizes) - 1
    leaves = np.flatnonzero(excess > within)
    perfect = int(leaves[0]) - 1 if len(leaves) else last
    useful = int(np.flatnonzero(above <= within)[0])
    doublings = np.log2(sizes[last] / sizes[useful])
    if 0 < doublings < 1 and above[useful] / doublings > within:
        useful = last
    edge = np.log1p(tolerance)
    return Transitions(
        tolerance,
        float(sizes[perfect]),
        perfect == last,
        float(sizes[useful]),
        useful == last,
        float(sizes[0]),
        float(sizes[last]),
        missed,
        _crossing(sizes, excess, perfect, edge) if perfect < last else None,
        _crossing(sizes, above, useful - 1, edge) if 0 < useful < last else None,
        _grid(raw, after),
        tuple(_warnings(sizes, raw, after, smooth, missed, tolerance)),
    )


def sensitivity(curve: pd.DataFrame, tolerances: Sequence[float] = TOLERANCES) -> pd.DataFrame:
    """How the transition points of a curve move with the tolerance.

    Parameters
    ----------
    curve : pandas.DataFrame
        As in `transitions`.
    tolerances : sequence of float

    Returns
    -------
    pandas.DataFrame
        A row is a ``tolerance``, with ``perfect_to``, ``perfect_censored``, ``useful_to`` and
        ``useful_censored``.
    """
    found = [transitions(curve, tolerance=tolerance) for tolerance in tolerances]
    names = ("tolerance", "perfect_to", "perfect_censored", "useful_to", "useful_censored")
    return pd.DataFrame([{name: getattr(one, name) for name in names} for one in found], columns=[*names])


def monotone(steps: ArrayLike) -> NDArray[np.float64]:
    """Steps that never rise with the batch size: the isotonic regression of their logarithms.

    Parameters
    ----------
    steps : array_like of float
        Positive and finite, in order of the batch size.

    Examples
    --------
    >>> monotone([400, 90, 160, 100]).round(6).tolist()
    [400.0, 120.0, 120.0, 100.0]
    """
    from scipy.optimize import isotonic_regression

    return np.exp(isotonic_regression(np.log(np.asarray(steps, dtype=np.float64)), increasing=False).x)


def _columns(curve: pd.DataFrame) -> tuple[NDArray[np.float64], ...]:
    """Batch sizes in order, their steps, and the evaluation before (NaN where it is not known)."""
    if "batch_size" in curve.index.names:
        curve = curve.reset_index()
    missing = [name for name in ("batch_size", "steps") if name not in curve.columns]
    if missing:
        raise KeyError(f"no column {', '.join(map(repr, missing))}; the curve has {list(curve.columns)}")
    curve = curve.sort_values("batch_size")
    sizes = curve["batch_size"].to_numpy(dtype=np.float64)
    if len(np.unique(sizes)) < len(sizes):
        raise ValueError("a curve has each batch size once; are there several workloads or series in it?")
    steps = as_steps(curve["steps"])
    if np.any(sizes <= 0) or np.any(steps <= 0):
        raise ValueError("batch sizes and steps must be positive: the regimes live on logarithmic axes")
    after = np.full(len(sizes), np.nan)
    if "after" in curve.columns:
        after = as_steps(curve["after"])
        # Known to be nothing: the first evaluation met the goal.
        after = np.where(np.isfinite(after), after, 0.0)
    return sizes, steps, after


def _crossing(sizes: NDArray[np.float64], height: NDArray[np.float64], i: int, level: float) -> float:
    """Where a height over the batch size passes a level between the i-th and the next."""
    share = (level - height[i]) / (height[i + 1] - height[i])
    return float(sizes[i] * (sizes[i + 1] / sizes[i]) ** min(max(share, 0.0), 1.0))


def _grid(steps: NDArray[np.float64], after: NDArray[np.float64]) -> float | None:
    if np.isnan(after).all():
        return None
    with np.errstate(divide="ignore"):
        return float(np.nanmax(steps / after))


def _warnings(
    sizes: NDArray[np.float64],
    raw: NDArray[np.float64],
    after: NDArray[np.float64],
    smooth: NDArray[np.float64],
    missed: tuple[float, ...],
    tolerance: float,
) -> list[str]:
    found = []
    if missed:
        found.append(f"no trial reached the goal at batch size {_listed(missed)}")
    if len(sizes) < 3:
        found.append(f"only {len(sizes)} batch sizes reached the goal")
    gaps = np.diff(np.log(sizes))
    nearest = np.minimum(np.append(gaps, np.inf), np.append(np.inf, gaps))
    with np.errstate(divide="ignore", invalid="ignore"):
        coarse = np.log(raw / after) > nearest
    if coarse.any():
        found.append(
            f"the steps at batch size {_listed(sizes[coarse])} are known less well than the batch sizes are "
            "apart (the evaluation before the goal was much earlier), so a transition there means little"
        )
    noise = float(np.abs(np.log(raw / smooth)).max())
    if noise > math.log1p(tolerance):
        worst = sizes[int(np.abs(np.log(raw / smooth)).argmax())]
        found.append(
            f"the steps rise with the batch size: near {worst:,.0f} they lie {100 * math.expm1(noise):.0f} % "
            "off a falling curve, more than the tolerance"
        )
    return found


def _listed(sizes: Sequence[float] | NDArray[np.float64]) -> str:
    names = [f"{size:,.0f}" for size in sizes]
    if len(names) > 6:
        names = [*names[:5], f"… {names[-1]}"]
    return ", ".join(names)
