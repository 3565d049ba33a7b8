"""Steps to goal of trials, steps to result of studies, and what a search of k trials would have found."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from .goals import Budget, Goal
from .layout import COMPLETE, INFEASIBLE

if TYPE_CHECKING:
    from .store import Store

_KEY = ("workload", "batch_size", "trial")
_ARROW_FLOAT = pd.ArrowDtype(pa.float64())

# An untrained model's loss per example hardly depends on the batch size; a sum over the batch at least
# doubles from one size to the next.
_UNLIKE_AT_STEP_0 = 1.8

# Share of the error that either limit of an interval may have for itself.
_LARGEST_TAIL = 0.75


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

    Warns
    -----
    UserWarning
        If the metric is to be minimized and its values at step 0 differ by a large factor between batch
        sizes: a sum over the batch instead of a mean makes the smallest batch size seem the fastest.

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
    table = key_columns(measurements, needed=("batch_size", "trial", "step", goal.metric))
    key = [name for name in _KEY if name in table.columns]
    codes = [_codes(table[name]) for name in key]
    step = table["step"].to_numpy(dtype=np.int64)
    values, measured = _values(table[goal.metric])
    order = None
    starts = _run_starts(codes)
    if not _sorted(codes, step, starts):
        order = _sorting([*codes, step])
        codes = [code[order] for code in codes]
        step, values, measured = step[order], values[order], measured[order]
        starts = _run_starts(codes)
    if not goal.maximize:
        first = starts[(step[starts] == 0) & measured[starts]]
        by_study = dict(zip(key, codes, strict=True))
        studies = [by_study[name][first] for name in key if name != "trial"]
        _warn_of_unlike_objectives(goal.metric, values[first], studies)
    counted = measured
    if budget is not None:
        batch_size = table["batch_size"].to_numpy(dtype=np.int64)
        counted = counted & (step <= budget.last_step(batch_size if order is None else batch_size[order]))
    crossing = _Crossings.of(starts, step, counted, goal.met(values))
    first_rows = starts if order is None else order[starts]
    result = pd.DataFrame(
        {
            **{name: table[name].array.take(first_rows) for name in key},
            "steps": _nullable(crossing.steps),
            "after": _nullable(crossing.after),
            "until": _nullable(crossing.until),
        },
        copy=False,
    )
    if trials is None:
        return result
    everyone = key_columns(trials, needed=key)[key].drop_duplicates()
    if "workload" in key:
        # Categories of the two tables may differ; as text they compare.
        everyone = everyone.assign(workload=everyone["workload"].astype(str))
        result = result.assign(workload=result["workload"].astype(str))
    return everyone.merge(result, on=key, how="left").sort_values(key, ignore_index=True)


def _warn_of_unlike_objectives(
    metric: str, untrained: NDArray[np.float64], studies: list[NDArray[np.int64]]
) -> None:
    """Warn where the values of untrained models differ too much between the batch sizes of a workload.

    The values are sorted by study.
    """
    number = ~np.isnan(untrained)
    values, studies = untrained[number], [code[number] for code in studies]
    study = _run_starts(studies)
    if not len(study):
        return
    medians = _medians(values, study)
    workload = _run_starts([code[study] for code in studies[:-1]] or [np.zeros_like(study)])
    positive = (medians > 0) & np.isfinite(medians)
    lowest = np.minimum.reduceat(np.where(positive, medians, np.inf), workload)
    highest = np.maximum.reduceat(np.where(positive, medians, 0.0), workload)
    ends = np.append(workload[1:], len(study))
    batch_size = studies[-1][study]
    for i in np.flatnonzero(highest > _UNLIKE_AT_STEP_0 * lowest):
        found, sizes = medians[workload[i] : ends[i]], batch_size[workload[i] : ends[i]]
        low, high = sizes[found == lowest[i]][0], sizes[found == highest[i]][0]
        warnings.warn(
            f"{metric} at step 0 is {lowest[i]:.4g} at batch size {low:,} and "
            f"{highest[i]:.4g} at {high:,}; if it is a sum "
            "over the batch and not a mean, steps to one goal do not compare",
            stacklevel=3,
        )


def _medians(values: NDArray[np.float64], starts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The median of each run of values (none of them NaN), given where the runs begin."""
    lengths = np.diff(starts, append=len(values))
    ordered = values[np.lexsort([values, np.repeat(np.arange(len(starts)), lengths)])]
    with np.errstate(invalid="ignore"):  # between infinities of both signs there is no median
        middle: NDArray[np.float64] = (
            ordered[starts + (lengths - 1) // 2] + ordered[starts + lengths // 2]
        ) / 2
    return middle


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
        ends = np.append(starts[1:], len(step)).astype(np.int64)
        result = cls(*(np.full(len(starts), -1, dtype=np.int64) for _ in range(3)))
        kept = None if counted.all() else np.flatnonzero(counted)

        def last_counted(before: NDArray[np.int64], rows_from: NDArray[np.int64]) -> NDArray[np.int64]:
            """The last row that counts before each of some, not before the start of its trial; else −1."""
            if kept is None:
                rows = before - 1
            else:
                place = np.searchsorted(kept, before) - 1
                rows = np.where(place >= 0, kept[np.maximum(place, 0)] if len(kept) else -1, -1)
            return np.where(rows >= rows_from, rows, -1)

        last = last_counted(ends, starts)
        result.until[last >= 0] = step[last[last >= 0]]
        hits = np.flatnonzero(met if kept is None else met & counted)
        first_hit = np.searchsorted(hits, starts)
        reached = np.zeros(len(starts), dtype=bool)
        inside = first_hit < len(hits)
        reached[inside] = hits[first_hit[inside]] < ends[inside]
        rows = hits[first_hit[reached]]
        result.steps[reached] = step[rows]
        before = last_counted(rows, starts[reached])
        result.after[np.flatnonzero(reached)[before >= 0]] = step[before[before >= 0]]
        return result


def steps_to_result(
    trials: pd.DataFrame, *, expected: int | None = None, by: Sequence[str] = ()
) -> pd.DataFrame:
    """The fewest steps to goal in each study.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, as `steps_to_goal` returns it.
    expected : int, optional
        How many trials each study should have.
    by : sequence of str, optional
        Further columns, for example a metaparameter, that split each study into several searches.  A
        missing value is a group of its own, and so is NaN.

    Returns
    -------
    pandas.DataFrame
        A row is a study (or a part of one, by `by`), sorted by key: ``steps`` (Int64, ``<NA>`` = no trial
        reached the goal), the ``trial`` that needed them (of several the lowest number), its ``after`` (the
        crossing lies in (after, steps]), and how many trials ``reached`` the goal out of how many
        ``trials``.

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
    table = key_columns(trials, needed=("batch_size", "trial", "steps", *by))
    study = [*(name for name in _KEY[:2] if name in table.columns), *by]
    keys = [_group_codes(table[name]) for name in study]
    steps, trial = _whole(table["steps"]), _whole(table["trial"])
    after = _whole(table["after"]) if "after" in table.columns else np.full(len(table), -1, dtype=np.int64)
    last = np.where(steps < 0, steps.max(initial=0) + 1, steps)
    order = _sorting([*keys, last, trial])
    starts = _run_starts([key[order] for key in keys])
    counts = np.diff(starts, append=len(order))
    best = order[starts]
    found = steps[best] >= 0
    reached = np.add.reduceat((steps >= 0)[order], starts, dtype=np.int64) if len(starts) else counts
    result = pd.DataFrame(
        {
            **{name: table[name].array.take(best) for name in study},
            "steps": _nullable(steps[best]),
            "trial": _nullable(np.where(found, trial[best], -1)),
            "after": _nullable(np.where(found, after[best], -1)),
            "reached": reached,
            "trials": counts,
        },
        copy=False,
    )
    if not by or expected is not None:
        _warn_of_unequal_searches(result, study, expected)
    return result


def _group_codes(column: pd.Series[Any]) -> NDArray[Any]:
    """Whole numbers that sort and group like the column; what is missing is a group too, the last."""
    if column.name in _KEY:
        return _codes(column)
    codes, _ = pd.factorize(column, sort=True)
    return np.where(codes < 0, len(column), codes).astype(np.int64)


def _whole(column: pd.Series[Any]) -> NDArray[np.int64]:
    """A column of whole numbers from 0; −1 = missing."""
    if not isinstance(column.dtype, pd.Int64Dtype):
        column = column.astype("Int64")
    return column.to_numpy(dtype=np.int64, na_value=-1)


def first_trials(trials: pd.DataFrame, n: int) -> pd.DataFrame:
    """The first n trials of each study, in numeric order.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, with its key.
    n : int
        At least 1.

    Returns
    -------
    pandas.DataFrame
        Some of the rows of `trials`, sorted by key: searches of equal size, whose steps to result compare.

    Examples
    --------
    >>> first_trials(pd.DataFrame({"batch_size": 8, "trial": [10, 2, 3]}), 2)["trial"].tolist()
    [2, 3]
    """
    if n < 1:
        raise ValueError(f"a search has at least one trial, got n = {n}")
    table = key_columns(trials, needed=("batch_size", "trial"))
    key = [name for name in _KEY if name in table.columns]
    ordered = table.sort_values(key, ignore_index=True)
    return ordered[ordered.groupby(key[:-1], observed=True).cumcount() < n].reset_index(drop=True)


def _warn_of_unequal_searches(studies: pd.DataFrame, key: Sequence[str], expected: int | None) -> None:
    """Warn where the ``trials`` of studies, a row each, are too few or differ."""
    counts = studies["trials"].to_numpy()
    if expected is not None:
        short = studies.loc[counts < expected, [*key, "trials"]]
        if not len(short):
            return
        rows = short.head(5).itertuples(index=False, name=None)
        names = ", ".join(f"{'/'.join(map(str, study))}: {n}" for *study, n in rows)
        more = ", …" if len(short) > 5 else ""
        warnings.warn(
            f"{len(short)} of {len(counts)} studies have fewer than {expected} trials ({names}{more}); "
            "a missing trial counts as one that did not reach the goal",
            stacklevel=3,
        )
    elif len(counts) and counts.min() != counts.max():
        warnings.warn(
            f"the studies have between {counts.min()} and {counts.max()} trials; a minimum over more "
            "trials is lower, so take the first N of each, or best_of(k) at one k",
            stacklevel=3,
        )


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
        4.7·k at 95 %), ``high`` is infinite where failure cannot be excluded.
    confidence_level : float
        Of the two limits together.
    reached, trials : int
        How many trials reached the goal, and how many there were.
    after : float
        The evaluation before `steps`, so that the crossing lies in (after, steps]; NaN where it is not
        known or there was none.
    """

    k: int
    steps: float
    low: float
    high: float
    confidence_level: float
    reached: int
    trials: int
    after: float = math.nan


def best_of(
    steps: ArrayLike, k: int, *, confidence_level: float = 0.95, after: ArrayLike | None = None
) -> BestOf:
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
    after : array_like, optional
        The evaluation before the steps to goal of each trial, as `steps_to_goal` gives it.

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
    (110.0, 90.0, 130.0, 8)
    """
    times = as_steps(steps)
    n = len(times)
    if n == 0:
        raise ValueError("best_of needs the trials of a study, got none")
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and the number of trials, {n}; got {k}")
    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level lies between 0 and 1, got {confidence_level}")
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    rank = rank_of_best(k, n)
    low_rank, high_rank = _limit_ranks(k, n, confidence_level)
    low = 0.0 if low_rank is None else float(ordered[low_rank - 1])
    high = np.inf if high_rank is None else float(ordered[high_rank - 1])
    before = math.nan
    if after is not None and np.isfinite(ordered[rank - 1]):
        before = float(as_steps(after)[order[rank - 1]])
    return BestOf(
        k,
        float(ordered[rank - 1]),
        low,
        high,
        confidence_level,
        int(np.isfinite(times).sum()),
        n,
        before if np.isfinite(before) else math.nan,
    )


def rank_of_best(k: int, n: int) -> int:
    """Rank, from 1, of the trial of n whose steps estimate the median steps to result of k trials.

    Examples
    --------
    >>> rank_of_best(10, 100), rank_of_best(1, 9)
    (7, 5)
    """
    # The rank, not an interpolation: one of the two neighbours may be infinite.
    return max(1, int(np.ceil(-n * np.expm1(-np.log(2) / k) - 1e-9)))


@functools.lru_cache(maxsize=4096)
def _limit_ranks(k: int, n: int, confidence_level: float) -> tuple[int | None, int | None]:
    """Ranks, from 1, of the trials whose steps are the limits; None where n trials are too few for one."""
    from scipy.stats import binom

    tail = 1 - confidence_level
    # Of all pairs that miss the quantile with at most this probability the one that comes nearest to
    # it: there are few ranks to choose from, and halving the tail wastes some of each half.
    below = binom.cdf(np.arange(-1, n + 1), n, -np.expm1(-np.log(2) / k))
    lows = [(0, 0.0), *((rank, below[rank]) for rank in range(1, n + 1))]
    highs = [*((rank, 1 - below[rank]) for rank in range(1, n + 1)), (n + 1, 0.0)]
    pairs = [
        (round(missed_low + missed_high, 12), -abs(missed_low - missed_high), low, high)
        for low, missed_low in lows
        if missed_low <= _LARGEST_TAIL * tail
        for high, missed_high in highs
        if missed_high <= _LARGEST_TAIL * tail and missed_low + missed_high <= tail
    ]
    _, _, low, high = max(pairs)
    return low or None, high if high <= n else None


def as_steps(steps: ArrayLike) -> NDArray[np.float64]:
    """Steps as floats; infinite where there are none (missing or NaN).

    Examples
    --------
    >>> as_steps([3, None, float("nan")]).tolist()
    [3.0, inf, inf]
    """
    if not isinstance(steps, (pd.Series, pd.api.extensions.ExtensionArray)):
        steps = np.asarray(steps)
        if steps.dtype.kind == "O":
            steps = pd.array(steps, dtype="Float64")
    if isinstance(steps, np.ndarray):
        times = steps.astype(np.float64)
    else:
        times = steps.to_numpy(dtype=np.float64, na_value=np.inf)
    return np.where(np.isnan(times), np.inf, times)


def best_of_by_study(
    trials: pd.DataFrame, k: int, *, confidence_level: float = 0.95, expected: int | None = None
) -> pd.DataFrame:
    """`best_of` for every study of a table.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, as `steps_to_goal` returns it.
    k : int
        Trials of the search asked about; the same for all studies, so that they compare.
    confidence_level : float, default 0.95
    expected : int, optional
        How many trials each study should have; those that are missing count as not having reached the goal.

    Returns
    -------
    pandas.DataFrame
        A row is a study: ``k``, ``best_of_k`` (the median), ``best_of_low``, ``best_of_high`` (float64,
        infinite = not reached), and ``best_of_after`` (the crossing behind ``best_of_k`` lies in
        (best_of_after, best_of_k]).  All are NaN for a study with fewer than `k` trials.

    Warns
    -----
    UserWarning
        If a study has fewer trials than `expected`.
    """
    table = key_columns(trials, needed=("batch_size", "trial", "steps"))
    study = [name for name in _KEY[:2] if name in table.columns]
    groups = table.groupby(study, observed=True, sort=True)
    if expected is not None:
        _warn_of_unequal_searches(groups.size().reset_index(name="trials"), study, expected)
    rows = []
    for key, group in groups:
        missing = max(0, (expected or 0) - len(group))
        steps = np.append(as_steps(group["steps"]), np.full(missing, np.inf))
        after = as_steps(group["after"]) if "after" in group else np.full(len(group), np.inf)
        after = np.append(after, np.full(missing, np.inf))
        row = dict(zip(study, key, strict=True)) | {"k": k}
        if k <= len(steps):
            found = best_of(steps, k, confidence_level=confidence_level, after=after)
            values = (found.steps, found.low, found.high, found.after)
        else:
            values = (math.nan,) * 4
        rows.append(row | dict(zip(_BEST_OF_COLUMNS, values, strict=True)))
    return pd.DataFrame(rows, columns=[*study, "k", *_BEST_OF_COLUMNS])


_BEST_OF_COLUMNS = ("best_of_k", "best_of_low", "best_of_high", "best_of_after")


def search_of(
    store: Store, workload: str, goal: Goal, *, first: int | None = None, budget: Budget | None = None
) -> pd.DataFrame:
    """The trials of a workload that the published analysis and the uncertainty of a search ask about.

    Parameters
    ----------
    store : Store
    workload : str
    goal : Goal
    first : int, optional
        Of each study only the search up to its `first`-th COMPLETE trial.
    budget : Budget, optional

    Returns
    -------
    pandas.DataFrame
        A row is a COMPLETE or INFEASIBLE trial, as `steps_to_goal` returns it, with its ``status``.  A
        diverged trial has reached no goal, whatever it measured before.
    """
    statuses = (COMPLETE, INFEASIBLE)
    trials = store.trials(workload, status=statuses, first=first)
    curves = store.measurements(workload, metrics=[goal.metric], status=(COMPLETE,), first=first)
    found = steps_to_goal(curves, goal, budget, trials=trials)
    status = trials[[*_KEY, "status"]].astype({"workload": str})
    return found.merge(status, on=list(_KEY), how="left")


def steps_by_batch_size(
    store: Store,
    workload: str,
    goal: Goal,
    *,
    first: int | None = None,
    k: int = 10,
    budget: Budget | None = None,
    confidence_level: float = 0.95,
) -> pd.DataFrame:
    """Steps to result of every study of a workload, with what a search of k trials would have found.

    Parameters
    ----------
    store : Store
    workload : str
    goal : Goal
    first : int, optional
        Of each study only the first so many COMPLETE trials; None takes all.
    k : int, default 10
        Trials of the search asked about.
    budget : Budget, optional
        Measurements after it are not looked at.
    confidence_level : float, default 0.95
        Of the limits of the best of k.

    Returns
    -------
    pandas.DataFrame
        A row is a study: ``workload``, ``batch_size``, then as in `steps_to_result` over the COMPLETE
        trials ``steps``, ``trial``, ``after``, ``reached``, ``trials``, then ``best_of_k``,
        ``best_of_low``, ``best_of_high`` of the search in which those trials were found, its ``diverged``
        trials included as failures, ``k`` and ``best_of_after``.

    Warns
    -----
    UserWarning
        If a study has fewer than `first` COMPLETE trials.
    """
    search = search_of(store, workload, goal, first=first, budget=budget)
    complete = search[search["status"] == COMPLETE]
    result = steps_to_result(complete, expected=first)
    bands = best_of_by_study(search, k, confidence_level=confidence_level)
    diverged = (search["status"] == INFEASIBLE).groupby(search["batch_size"]).sum().rename("diverged")
    # A study in which every trial diverged has a row too.
    table = bands.merge(result, on=list(_KEY[:2]), how="left").merge(diverged, on="batch_size")
    table[["reached", "trials"]] = table[["reached", "trials"]].fillna(0).astype(np.int64)
    columns = ["steps", "trial", "after", "reached", "trials", *_BEST_OF_COLUMNS[:3]]
    return table[[*_KEY[:2], *columns, "k", "best_of_after", "diverged"]]


def key_columns(table: pd.DataFrame, *, needed: Any) -> pd.DataFrame:
    """The table with index levels of the key turned into columns, if all that is needed is there."""
    levels = [name for name in table.index.names if name in (*_KEY, "step")]
    if levels:
        table = table.reset_index(levels)
    missing = [name for name in needed if name not in table.columns]
    if missing:
        found = ", ".join(map(str, table.columns))
        raise KeyError(f"no column {', '.join(map(repr, missing))}; the table has {found}")
    return table


def _codes(column: pd.Series[Any]) -> NDArray[Any]:
    """Whole numbers, of any width, that sort and group like the column."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        names, codes = column.cat.categories.astype(str), column.cat.codes.to_numpy()
        if names.is_monotonic_increasing:
            return codes
        return np.argsort(np.argsort(names))[codes]
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
    if column.dtype == _ARROW_FLOAT:
        stored = pa.chunked_array(column)
        measured = stored.is_valid().to_numpy() if stored.null_count else np.ones(len(column), dtype=bool)
        return stored.to_numpy(), measured
    return column.to_numpy(dtype=np.float64, na_value=np.nan), column.notna().to_numpy(dtype=bool)


def _sorted(codes: list[NDArray[Any]], step: NDArray[np.int64], starts: NDArray[np.int64]) -> bool:
    """Whether rows are sorted by these codes and the step, given where the codes change."""
    if len(step) < 2:
        return True
    falls = step[1:] < step[:-1]
    falls[starts[1:] - 1] = False
    if falls.any():
        return False
    undecided = np.ones(max(len(starts) - 1, 0), dtype=bool)
    for code in codes:
        first = code[starts]
        if np.any(undecided & (first[1:] < first[:-1])):
            return False
        undecided &= first[1:] == first[:-1]
    return True


def _sorting(keys: list[NDArray[Any]]) -> NDArray[np.int64]:
    """The order that sorts by several keys: as one number where they fit, which is many times faster."""
    if not len(keys[0]):
        return np.zeros(0, dtype=np.int64)
    lows = [int(key.min()) for key in keys]
    spans = [int(key.max()) - low + 1 for key, low in zip(keys, lows, strict=True)]
    if math.prod(spans) >= 2**63:
        return np.lexsort(keys[::-1]).astype(np.int64)
    combined = np.zeros(len(keys[0]), dtype=np.int64)
    for key, low, span in zip(keys, lows, spans, strict=True):
        combined *= span
        combined += key.astype(np.int64) - low
    return np.argsort(combined, kind="stable").astype(np.int64)


def _run_starts(codes: list[NDArray[Any]]) -> NDArray[np.int64]:
    if not len(codes[0]):
        return np.zeros(0, dtype=np.int64)
    change = np.zeros(len(codes[0]), dtype=bool)
    change[0] = True
    for code in codes:
        change[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(change).astype(np.int64)


def _nullable(steps: NDArray[np.int64]) -> pd.arrays.IntegerArray:
    return pd.arrays.IntegerArray(steps, mask=steps < 0)
