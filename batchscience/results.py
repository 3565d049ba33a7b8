"""Steps to goal of trials, steps to result of studies, and what a search of k trials would have found."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from .goals import Budget, Goal
from .layout import COMPLETE, INFEASIBLE

if TYPE_CHECKING:
    from .store import Store

_KEY = ("workload", "batch_size", "trial")


def steps_to_goal(
    measurements: pd.DataFrame,
    goal: Goal,
    budget: Budget | None = None,
    *,
    trials: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The first measured step of each trial that meets a goal.

    Parameters
    ----------
    measurements : pandas.DataFrame
        A row is a measurement: ``batch_size``, ``trial``, ``step`` (and ``workload`` where there are
        several), as columns or index levels, and the goal's metric.  In any order.
    goal : Goal
        What to reach.
    budget : Budget, optional
        Measurements after it are not looked at.
    trials : pandas.DataFrame, optional
        Trials that must each have a row in the result, with the same key columns: those without any
        measurement did not reach the goal, which is not the same as not having been tried.

    Returns
    -------
    pandas.DataFrame
        A row is a trial, sorted by key.  ``steps`` (Int64) is the first step that meets the goal, ``<NA>``
        where none does; the true crossing lies in (``after``, ``steps``], where ``after`` is the last
        evaluation before it, ``<NA>`` when the first evaluation already meets the goal.  ``until`` is
        the last step at which the metric was measured (within the budget).

    Raises
    ------
    KeyError
        If a key column or the metric is missing.

    Notes
    -----
    Later measurements that miss the goal again do not matter, nor does a missing value or NaN.

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": 8, "trial": 1, "step": [0, 10, 20, 30],
    ...                       "val/classification_error": [0.9, 0.3, 0.1, 0.2]})
    >>> steps_to_goal(curve, Goal("val/classification_error", 0.25)).iloc[0].to_dict()
    {'batch_size': 8, 'trial': 1, 'steps': 20, 'after': 10, 'until': 30}
    """
    table = _with_key_columns(measurements, needed=("batch_size", "trial", "step", goal.metric))
    key = [name for name in _KEY if name in table.columns]
    codes = [_codes(table[name]) for name in key]
    step = table["step"].to_numpy(dtype=np.int64)
    values, measured = _values(table[goal.metric])
    order = _order([*codes, step])
    if order is not None:
        codes = [code[order] for code in codes]
        step, values, measured = step[order], values[order], measured[order]

    starts = _run_starts(codes)
    counted = measured
    if budget is not None:
        batch_size = table["batch_size"].to_numpy(dtype=np.int64)
        counted = counted & (step <= budget.last_step(batch_size if order is None else batch_size[order]))
    crossing = _Crossings.of(starts, step, counted, goal.met(values))
    first_rows = starts if order is None else order[starts]
    result = table[key].iloc[first_rows].reset_index(drop=True)
    result = result.assign(
        steps=_nullable(crossing.steps), after=_nullable(crossing.after), until=_nullable(crossing.until)
    )
    if trials is None:
        return result
    everyone = _with_key_columns(trials, needed=key)[key].drop_duplicates()
    if "workload" in key:
        # Categories of the two tables may differ; as text they compare.
        everyone = everyone.assign(workload=everyone["workload"].astype(str))
        result = result.assign(workload=result["workload"].astype(str))
    return everyone.merge(result, on=key, how="left").sort_values(key, ignore_index=True)


@dataclass(frozen=True, slots=True)
class _Crossings:
    """Per trial: first step that meets the goal, the evaluation before it, the last one; −1 = none."""

    steps: NDArray[np.int64]
    after: NDArray[np.int64]
    until: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        starts: NDArray[np.int64],
        step: NDArray[np.int64],
        counted: NDArray[np.bool_],
        met: NDArray[np.bool_],
    ) -> _Crossings:
        if not counted.all():
            kept = np.flatnonzero(counted)
            starts = np.searchsorted(kept, starts).astype(np.int64)
            step, met = step[kept], met[kept]
        ends = np.append(starts[1:], len(step)).astype(np.int64)
        result = cls(*(np.full(len(starts), -1, dtype=np.int64) for _ in range(3)))
        some = ends > starts
        result.until[some] = step[ends[some] - 1]
        hits = np.flatnonzero(met)
        first_hit = np.searchsorted(hits, starts)
        reached = np.zeros(len(starts), dtype=bool)
        inside = first_hit < len(hits)
        reached[inside] = hits[first_hit[inside]] < ends[inside]
        rows = hits[first_hit[reached]]
        result.steps[reached] = step[rows]
        before = np.flatnonzero(reached)[rows > starts[reached]]
        result.after[before] = step[rows[rows > starts[reached]] - 1]
        return result


def steps_to_result(trials: pd.DataFrame, *, expected: int | None = None) -> pd.DataFrame:
    """The fewest steps to goal in each study.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, as `steps_to_goal` returns it.
    expected : int, optional
        How many trials each study should have.

    Returns
    -------
    pandas.DataFrame
        A row is a study, sorted by key: ``steps`` (Int64, ``<NA>`` = no trial reached the goal), the
        ``trial`` that needed them (of several the lowest number), its ``after`` (the crossing lies in
        (after, steps]), and how many trials ``reached`` the goal out of how many ``trials``.

    Warns
    -----
    UserWarning
        If a study has fewer trials than `expected`, or, without `expected`, if the studies differ in
        their number of trials: a minimum over more trials is lower.

    Examples
    --------
    >>> found = pd.DataFrame({"batch_size": [8, 8], "trial": [1, 2], "after": [10, 20],
    ...                       "steps": [30, 30]}).astype("Int64")
    >>> steps_to_result(found).iloc[0].to_dict()
    {'batch_size': 8, 'steps': 30, 'trial': 1, 'after': 10, 'reached': 2, 'trials': 2}
    """
    table = _with_key_columns(trials, needed=("batch_size", "trial", "steps"))
    study = [name for name in _KEY[:2] if name in table.columns]
    if "after" not in table.columns:
        table = table.assign(after=pd.array([pd.NA] * len(table), dtype="Int64"))
    table = table.sort_values([*study, "steps", "trial"], na_position="last")
    groups = table.groupby(study, observed=True, sort=True)
    result = groups.head(1).set_index(study)[["steps", "trial", "after"]].astype("Int64")
    reached = table["steps"].notna().groupby([table[name] for name in study], observed=True).sum()
    result = result.assign(reached=reached.astype(np.int64), trials=groups.size().astype(np.int64))
    result.loc[result["reached"] == 0, ["trial", "after"]] = pd.NA
    _warn_of_unequal_searches(result["trials"], expected)
    return result.reset_index()


def _warn_of_unequal_searches(trials: pd.Series[int], expected: int | None) -> None:
    if expected is not None:
        short = trials[trials < expected]
        if len(short):
            names = ", ".join(f"{_name(study)}: {n}" for study, n in list(short.items())[:5])
            warnings.warn(
                f"{len(short)} of {len(trials)} studies have fewer than {expected} trials ({names}…)",
                stacklevel=3,
            )
    elif len(trials) and trials.min() != trials.max():
        warnings.warn(
            f"the studies have between {trials.min()} and {trials.max()} trials; a minimum over more "
            "trials is lower, so take the first N of each, or best_of(k) at one k",
            stacklevel=3,
        )


def _name(study: Any) -> str:
    return "/".join(str(part) for part in study) if isinstance(study, tuple) else str(study)


@dataclass(frozen=True, slots=True)
class BestOf:
    """What a search of k trials would have found: the median of its steps to result, with limits.

    Attributes
    ----------
    k : int
        Number of trials of the search.
    steps : float
        Median of the steps to result; infinite when a search of k trials more likely fails.
    low, high : float
        Confidence limits; ``low`` is 0 where the trials are too few for a finite lower limit (fewer than
        5.3·k at 95 %), ``high`` is infinite where failure cannot be excluded.
    confidence_level : float
        Of the two limits together.
    reached, trials : int
        How many trials reached the goal, and how many there were.
    """

    k: int
    steps: float
    low: float
    high: float
    confidence_level: float
    reached: int
    trials: int


def best_of(steps: ArrayLike, k: int, *, confidence_level: float = 0.95) -> BestOf:
    """Estimate the steps to result of a search of k trials from the trials of one study.

    Parameters
    ----------
    steps : array_like
        Steps to goal of each trial of the study; NaN, ``<NA>`` or infinity where it was not reached
        (also where the trial diverged).  None may be left out: a failed trial is a result.
    k : int
        Number of trials of the search asked about, from 1 to the number of trials.
    confidence_level : float, default 0.95
        Coverage of the limits, between 0 and 1.

    Returns
    -------
    BestOf

    Raises
    ------
    ValueError
        If there is no trial, or `k` or `confidence_level` is out of range.

    Notes
    -----
    The minimum of k independent trials lies below x with probability 1 − (1 − F(x))^k, so its median is
    the 1 − 2^(−1/k) quantile of one trial, for which order statistics give limits that hold for every
    distribution [1]_.  A bootstrap of the minimum does not: its nominal 95 % interval covers about half.

    References
    ----------
    .. [1] Conover (1999), Practical Nonparametric Statistics, 3rd edition, section 3.2.

    Examples
    --------
    >>> found = best_of([120, 90, 200, None, 150, 110, 95, 300, None, 130], k=2, confidence_level=0.8)
    >>> found.steps, found.low, found.high, found.reached
    (110.0, 90.0, 150.0, 8)
    """
    from scipy.stats import quantile_test

    times = pd.array(np.asarray(steps, dtype=object), dtype="Float64").to_numpy(np.float64, na_value=np.inf)
    n = len(times)
    if n == 0:
        raise ValueError("best_of needs the trials of a study, got none")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of trials, {n}; got {k}")
    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level lies between 0 and 1, got {confidence_level}")
    probability = -np.expm1(-np.log(2) / k)
    ordered = np.sort(times)
    # The rank, not an interpolation: one of the two neighbours may be infinite.
    rank = int(np.ceil(n * probability - 1e-9))
    # The test only ranks the sample, so ranks stand in for the (possibly infinite) steps.
    test = quantile_test(np.arange(1.0, n + 1), q=0.5, p=probability)
    limits: Any = test.confidence_interval(confidence_level)  # the stubs take it for a float
    low = 0.0 if np.isnan(limits.low) else float(ordered[int(limits.low) - 1])
    high = np.inf if np.isnan(limits.high) else float(ordered[int(limits.high) - 1])
    return BestOf(k, float(ordered[rank - 1]), low, high, confidence_level, int(np.isfinite(times).sum()), n)


def best_of_by_study(trials: pd.DataFrame, k: int, *, confidence_level: float = 0.95) -> pd.DataFrame:
    """`best_of` for every study of a table.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, as `steps_to_goal` returns it.
    k : int
        Trials of the search asked about; the same for all studies, so that they compare.
    confidence_level : float, default 0.95

    Returns
    -------
    pandas.DataFrame
        A row is a study: ``k``, ``best_of_k`` (the median), ``best_of_low``, ``best_of_high`` (float64,
        infinite = not reached).  All are NaN for a study with fewer than `k` trials.
    """
    table = _with_key_columns(trials, needed=("batch_size", "trial", "steps"))
    study = [name for name in _KEY[:2] if name in table.columns]
    rows = []
    for key, steps in table.groupby(study, observed=True, sort=True)["steps"]:
        found = best_of(steps, k, confidence_level=confidence_level) if k <= len(steps) else None
        rows.append(
            dict(zip(study, key, strict=True))
            | {
                "k": k,
                "best_of_k": found.steps if found else np.nan,
                "best_of_low": found.low if found else np.nan,
                "best_of_high": found.high if found else np.nan,
            }
        )
    return pd.DataFrame(rows, columns=[*study, "k", "best_of_k", "best_of_low", "best_of_high"])


def steps_by_batch_size(
    store: Store,
    workload: str,
    goal: Goal,
    *,
    first: int | None = 100,
    k: int = 10,
    budget: Budget | None = None,
    confidence_level: float = 0.95,
) -> pd.DataFrame:
    """Steps to result of a workload at each batch size, beside what a search of k trials would find.

    Parameters
    ----------
    store : Store
        Where the workload's tables are.
    workload : str
        Name of the workload.
    goal : Goal
        What to reach.
    first : int, optional
        Look at the first so many COMPLETE trials of each study, as the paper does; None for all.
    k : int, default 10
        Trials of the search asked about.
    budget : Budget, optional
        Limit on each trial.
    confidence_level : float, default 0.95
        Of the limits of the best of k.

    Returns
    -------
    pandas.DataFrame
        A row is a study: workload, batch_size, and the columns of `steps_to_result` (of the COMPLETE
        trials) and of `best_of_by_study`.

    Notes
    -----
    A search also pays for the trials that diverge, so the best of k counts the INFEASIBLE trials
    among the first COMPLETE ones as trials that did not reach the goal.
    """
    launched = store.trials(workload, status=(COMPLETE, INFEASIBLE), first=first)
    measurements = store.measurements(workload, metrics=[goal.metric], first=first)
    found = steps_to_goal(measurements, goal, budget, trials=launched)
    complete = found[(launched["status"] == COMPLETE).to_numpy()]
    result = steps_to_result(complete, expected=first)
    best = best_of_by_study(found, k, confidence_level=confidence_level)
    return result.merge(best, on=["workload", "batch_size"], how="left")


def _with_key_columns(table: pd.DataFrame, *, needed: Any) -> pd.DataFrame:
    """The table with index levels of the key turned into columns, if all that is needed is there."""
    levels = [name for name in table.index.names if name in (*_KEY, "step")]
    if levels:
        table = table.reset_index(levels)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        found = ", ".join(map(str, table.columns))
        raise KeyError(f"no column {', '.join(map(repr, missing))}; the table has {found}")
    return table


def _codes(column: pd.Series[Any]) -> NDArray[np.int64]:
    """Numbers that sort and group like the column."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        rank = np.argsort(np.argsort(column.cat.categories.astype(str)))
        return rank[column.cat.codes.to_numpy()].astype(np.int64)
    if pd.api.types.is_integer_dtype(column.dtype):
        return column.to_numpy(dtype=np.int64)
    codes, _ = pd.factorize(column, sort=True)
    return codes.astype(np.int64)


def _values(column: pd.Series[Any]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values (NaN where missing) and whether each was measured (a measured NaN is)."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind == "f":
        # Plain floats cannot tell a missing value from NaN; both count as not measured.
        values = column.to_numpy(dtype=np.float64)
        return values, ~np.isnan(values)
    return column.to_numpy(dtype=np.float64, na_value=np.nan), column.notna().to_numpy(dtype=bool)


def _order(keys: list[NDArray[np.int64]]) -> NDArray[np.int64] | None:
    """The order that sorts rows by these keys; None when they are sorted."""
    if len(keys[0]) < 2:
        return None
    undecided = np.ones(len(keys[0]) - 1, dtype=bool)
    for key in keys:
        if np.any(undecided & (key[1:] < key[:-1])):
            return np.lexsort(keys[::-1]).astype(np.int64)
        undecided &= key[1:] == key[:-1]
        if not undecided.any():
            return None
    return None


def _run_starts(codes: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    if not len(codes[0]):
        return np.zeros(0, dtype=np.int64)
    change = np.zeros(len(codes[0]), dtype=bool)
    change[0] = True
    for code in codes:
        change[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(change).astype(np.int64)


def _nullable(steps: NDArray[np.int64]) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(steps, mask=steps < 0)
