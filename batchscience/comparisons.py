"""Several workloads side by side: the ratios of their critical and maximum useful batch sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .regimes import Regimes, Transitions


@dataclass(frozen=True, slots=True)
class WorkloadName:
    """The parts of a workload's name.

    Examples
    --------
    >>> WorkloadName.of("mnist_subsets/mnist_6875/simple_cnn_base/sgd")
    WorkloadName(dataset='mnist_subsets/mnist_6875', model='simple_cnn_base', optimizer='sgd')
    """

    dataset: str
    model: str
    optimizer: str

    @classmethod
    def of(cls, workload: str) -> WorkloadName:
        """Split ``[subset/]dataset/model/optimizer``; a shorter name is a model without the rest."""
        parts = workload.split("/")
        if len(parts) < 3:
            return cls("", workload, "")
        return cls("/".join(parts[:-2]), parts[-2], parts[-1])


def compare(answers: Sequence[Regimes], *, reference: int = 0) -> pd.DataFrame:
    """The regimes of several curves against those of one of them.

    Parameters
    ----------
    answers : sequence of Regimes
        At one tolerance and confidence level, with laws.
    reference : int, default 0
        Which of them the others are divided by.

    Returns
    -------
    pandas.DataFrame
        A row is an answer: ``workload``, ``dataset``, ``model``, ``optimizer``, ``series``, ``goal``,
        ``training_set_size`` (missing where it is not known), ``differs_in`` (what distinguishes it from the
        reference: dataset, model, optimizer, goal), ``perfect_to`` and ``useful_to`` measured, then
        ``critical_ratio`` and ``useful_ratio`` (the law's) over the reference's, each with ``_low`` and
        ``_high`` limits, and ``useful_ratio_measured``.  A ratio is missing where either law is not
        determined or, for the measured one, censored; a limit where it rests on batch sizes beyond those
        measured.

    Raises
    ------
    ValueError
        If there is no such reference, or the answers differ in tolerance or confidence level.

    Notes
    -----
    The limits are percentiles of the ratio of independent draws of the two laws.  A ratio whose limits
    include 1 is no evidence of a difference.
    """
    if not 0 <= reference < len(answers):
        raise ValueError(f"reference is the place of one of {len(answers)} answers, got {reference}")
    if len({(one.measured.tolerance, one.confidence_level) for one in answers}) > 1:
        raise ValueError("answers at one tolerance and one confidence level compare, these differ")
    base = answers[reference]
    return pd.DataFrame([_row(one, base) for one in answers])


def _row(one: Regimes, base: Regimes) -> dict[str, object]:
    from .paper import training_set_size

    name, other = WorkloadName.of(one.workload), WorkloadName.of(base.workload)
    differences = [
        part for part in ("dataset", "model", "optimizer") if getattr(name, part) != getattr(other, part)
    ]
    if one.goal != base.goal:
        differences.append("goal")
    row: dict[str, object] = {
        "workload": one.workload,
        "dataset": name.dataset,
        "model": name.model,
        "optimizer": name.optimizer,
        "series": one.series,
        "goal": one.goal.threshold if one.goal else math.nan,
        "training_set_size": training_set_size(one.workload),
        "differs_in": ", ".join(differences),
        "perfect_to": one.measured.perfect_to,
        "useful_to": one.measured.useful_to,
        "useful_censored": one.measured.useful_censored,
    }
    for what in ("critical", "useful"):
        point, low, high = _ratio(one, base, what)
        row |= {f"{what}_ratio": point, f"{what}_ratio_low": low, f"{what}_ratio_high": high}
    row["useful_ratio_measured"] = _known(one.measured) / _known(base.measured)
    return row


def _known(found: Transitions) -> float:
    """The maximum useful batch size; NaN where it is censored or there is none."""
    return math.nan if found.useful_to is None or found.useful_censored else found.useful_to


def _ratio(one: Regimes, base: Regimes, what: str) -> tuple[float, float, float]:
    if one.distribution is None or base.distribution is None or one.law is None or base.law is None:
        return math.nan, math.nan, math.nan
    if one is base:
        return 1.0, 1.0, 1.0
    tolerance = one.measured.tolerance
    if what == "critical":
        points = one.law.critical_batch_size, base.law.critical_batch_size
        draws = one.distribution.critical_batch_size, base.distribution.critical_batch_size
    else:
        points = _known(one.law.transitions(tolerance)), _known(base.law.transitions(tolerance))
        draws = one.distribution.useful_to(tolerance), base.distribution.useful_to(tolerance)
    point = points[0] / points[1] if one.law.determined and base.law.determined else math.nan
    # Beyond the data a draw says only "at least the largest" or "at most the smallest".
    upper = _within(draws[0], one, math.inf), _within(draws[1], base, math.inf)
    lower = _within(draws[0], one, 0.0), _within(draws[1], base, 0.0)
    return point, *_limits(upper, lower, one.confidence_level)


def _within(values: NDArray[np.float64], answer: Regimes, beyond: float) -> NDArray[np.float64]:
    """Draws beyond the largest (or below the smallest) batch size as infinite (or nothing)."""
    assert answer.law is not None
    if beyond > 1:
        return np.where(values > answer.law.largest, np.inf, np.maximum(values, answer.law.smallest))
    return np.where(values < answer.law.smallest, 0.0, np.minimum(values, answer.law.largest))


def _limits(
    upper: tuple[NDArray[np.float64], NDArray[np.float64]],
    lower: tuple[NDArray[np.float64], NDArray[np.float64]],
    confidence_level: float,
) -> tuple[float, float]:
    n = min(len(upper[0]), len(upper[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        largest = upper[0][:n] / lower[1][:n]
        smallest = lower[0][:n] / upper[1][:n]
    tail = (1 - confidence_level) / 2
    high = float(np.quantile(largest, 1 - tail, method="higher"))
    low = float(np.quantile(smallest, tail, method="lower"))
    return low if low > 0 else math.nan, high if math.isfinite(high) else math.nan
