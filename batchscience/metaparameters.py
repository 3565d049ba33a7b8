"""The best trial's metaparameters by batch size, and how much of the search space would have done."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .goals import Budget, Goal
from .layout import INFEASIBLE
from .results import key_columns, search_of, steps_to_result
from .schemas import RESERVED
from .spaces import Parameter

if TYPE_CHECKING:
    from .store import Store

NEAR_EDGE = 0.05
"""Distance to a limit of the search space, as a share of the parameter's own scale, that is near."""

_STUDY = ("workload", "batch_size")
_FOUND = frozenset({"after", "until", "reached", "trials", "effective_learning_rate"})


def effective_learning_rate(trials: pd.DataFrame) -> pd.Series[float]:
    """The effective learning rate of each trial, learning_rate / (1 − momentum).

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial, with ``learning_rate`` and, where the optimizer has one, ``momentum``.

    Returns
    -------
    pandas.Series
        Missing where there is no learning rate; the learning rate itself where there is no momentum.

    Raises
    ------
    KeyError
        If there is no column ``learning_rate``.

    Examples
    --------
    >>> trials = pd.DataFrame({"learning_rate": [0.5, 0.5], "momentum": [0.75, 0.0]})
    >>> effective_learning_rate(trials).tolist()
    [2.0, 0.5]
    """
    if "learning_rate" not in trials.columns:
        raise KeyError(f"no column 'learning_rate'; the trials have {', '.join(map(str, trials.columns))}")
    rate = trials["learning_rate"].to_numpy(dtype=np.float64, na_value=np.nan)
    momentum = np.zeros(len(trials))
    if "momentum" in trials.columns:
        momentum = trials["momentum"].to_numpy(dtype=np.float64, na_value=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return pd.Series(rate / (1 - momentum), index=trials.index, name="effective_learning_rate")


def best_trials(found: pd.DataFrame, trials: pd.DataFrame, *, expected: int | None = None) -> pd.DataFrame:
    """The trial of each study that needed the fewest steps, with its metaparameters.

    Parameters
    ----------
    found : pandas.DataFrame
        A row is a trial, as `steps_to_goal` returns it.
    trials : pandas.DataFrame
        A row is a trial with its key and a column for each metaparameter, as `Store.trials` returns it.
    expected : int, optional
        How many trials each study should have.

    Returns
    -------
    pandas.DataFrame
        A row is a study, sorted by key: as in `steps_to_result`, then the metaparameters of its best trial
        and, where there is a learning rate, ``effective_learning_rate``.  All are missing in a study that
        did not reach the goal.
    """
    best = steps_to_result(found, expected=expected)
    settings = key_columns(trials, needed=("batch_size", "trial"))
    names = metaparameters_in(settings)
    key = [name for name in (*_STUDY, "trial") if name in best.columns]
    settings = settings[[*key, *names]].astype({"trial": "Int64"})
    if "workload" in key:
        best = best.assign(workload=best["workload"].astype(str))
        settings = settings.assign(workload=settings["workload"].astype(str))
    table = best.merge(settings, on=key, how="left")
    if "learning_rate" in names:
        table = table.assign(effective_learning_rate=effective_learning_rate(table))
    return table


def metaparameters_in(trials: pd.DataFrame) -> list[str]:
    """The columns of a trials table that are metaparameters."""
    return [name for name in trials.columns if name not in RESERVED and name not in _FOUND]


def heuristics(best: pd.DataFrame, *, reference: int | None = None) -> pd.DataFrame:
    """What the linear and the square-root heuristic say of the learning rate, and how far off they are.

    Parameters
    ----------
    best : pandas.DataFrame
        A row is a study of one workload: ``batch_size`` and ``effective_learning_rate`` of its best trial.
    reference : int, optional
        Batch size whose effective learning rate both start from; by default the smallest that has one.

    Returns
    -------
    pandas.DataFrame
        A row is a study: ``batch_size``, ``effective_learning_rate``, ``linear`` and ``square_root`` (the
        effective learning rate each predicts), ``linear_off`` and ``square_root_off`` (the factor between
        what it predicts and what was best; 2 = twice too large, 0.5 = half as large).

    Raises
    ------
    ValueError
        If there are several workloads, or no learning rate at the reference.

    References
    ----------
    .. [1] Shallue et al. (2019), JMLR 20(112), section 4.7 and Figure 8.

    Examples
    --------
    >>> best = pd.DataFrame({"batch_size": [16, 64], "effective_learning_rate": [0.1, 0.2]})
    >>> heuristics(best)[["linear_off", "square_root_off"]].iloc[1].tolist()
    [2.0, 1.0]
    """
    table = best.sort_values("batch_size", ignore_index=True)
    if table["batch_size"].duplicated().any():
        raise ValueError("the heuristics take one workload; a batch size stands there twice")
    sizes = table["batch_size"].to_numpy(dtype=np.float64)
    rates = table["effective_learning_rate"].to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(rates) & (rates > 0)
    if reference is not None:
        known &= sizes == reference
    if not known.any():
        at = "any batch size" if reference is None else f"batch size {reference:,}"
        raise ValueError(f"the best trial has no learning rate at {at}, where the heuristics start")
    start = int(np.flatnonzero(known)[0])
    ratio = sizes / sizes[start]
    linear, root = rates[start] * ratio, rates[start] * np.sqrt(ratio)
    with np.errstate(divide="ignore"):
        return pd.DataFrame(
            {
                "batch_size": table["batch_size"],
                "effective_learning_rate": rates,
                "linear": linear,
                "linear_off": linear / rates,
                "square_root": root,
                "square_root_off": root / rates,
            }
        )


@dataclass(frozen=True, slots=True)
class LearningRateTrend:
    """How the best effective learning rate grows with the batch size: a power law.

    Attributes
    ----------
    slope : float
        Of log effective learning rate against log batch size: 1 is the linear heuristic, 0.5 the square
        root; NaN where fewer than two batch sizes have one.
    low, high : float
        Limits of the slope; infinite where there are fewer than three.
    confidence_level : float
    batch_sizes : int
        How many batch sizes there were.
    """

    slope: float
    low: float
    high: float
    confidence_level: float
    batch_sizes: int


def learning_rate_trend(best: pd.DataFrame, *, confidence_level: float = 0.9) -> LearningRateTrend:
    """The slope of log effective learning rate against log batch size.

    Parameters
    ----------
    best : pandas.DataFrame
        As in `heuristics`.
    confidence_level : float, default 0.9

    Notes
    -----
    Least squares with limits by Student's t: the best of some hundred random settings is a noisy
    estimate of the best setting, equally so at each batch size.

    Examples
    --------
    >>> best = pd.DataFrame({"batch_size": [1, 4, 16], "effective_learning_rate": [0.1, 0.2, 0.4]})
    >>> round(learning_rate_trend(best).slope, 6)
    0.5
    """
    from scipy.stats import t

    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level lies between 0 and 1, got {confidence_level}")
    sizes = best["batch_size"].to_numpy(dtype=np.float64)
    rates = best["effective_learning_rate"].to_numpy(dtype=np.float64, na_value=np.nan)
    known = np.isfinite(rates) & (rates > 0)
    n = int(known.sum())
    if n < 2:
        return LearningRateTrend(math.nan, -math.inf, math.inf, confidence_level, n)
    x, y = np.log(sizes[known]), np.log(rates[known])
    x = x - x.mean()
    slope = float((x * y).sum() / (x * x).sum())
    if n == 2:
        return LearningRateTrend(slope, -math.inf, math.inf, confidence_level, n)
    left = y - y.mean() - slope * x
    error = math.sqrt(float((left * left).sum()) / (n - 2) / float((x * x).sum()))
    reach = float(t.isf((1 - confidence_level) / 2, n - 2)) * error
    return LearningRateTrend(slope, slope - reach, slope + reach, confidence_level, n)


def edge_distances(
    best: pd.DataFrame, search_space: pd.DataFrame, *, near: float = NEAR_EDGE
) -> pd.DataFrame:
    """How near the best trials' metaparameters lie to the limits of their search spaces.

    Parameters
    ----------
    best : pandas.DataFrame
        A row is a study with the metaparameters of its best trial, as `best_trials` returns it.
    search_space : pandas.DataFrame
        A row is a metaparameter of a study, as `Store.search_space` returns it.
    near : float, default 0.05
        Distance to a limit that counts as near, as a share of the parameter's own scale.

    Returns
    -------
    pandas.DataFrame
        A row is a metaparameter of a study that has a range: its key, ``parameter``, ``value``, ``position``
        (0 at the lower limit, 1 at the upper, on the parameter's own scale), ``distance`` to the nearer
        limit, which ``edge`` that is ("low" or "high"), and whether it is ``near``.

    Warns
    -----
    UserWarning
        If a best trial lies near an edge or outside its space: then a wider search might do better, and the
        paper's claims rest on searches whose best trials lie inside.

    Notes
    -----
    A DISCRETE parameter has positions only at its points, of which the outermost are edges: with few
    points a best trial at an edge is no surprise, so only parameters with a range are looked at.
    """
    study = [name for name in _STUDY if name in best.columns and name in search_space.columns]
    limits = search_space.set_index([search_space[name].astype(str) for name in study])
    rows: list[dict[str, Any]] = []
    for one in best.to_dict("records"):
        key = tuple(str(one[name]) for name in study)
        if (key if len(key) > 1 else key[0]) not in limits.index:
            continue
        for config in limits.loc[[key if len(key) > 1 else key[0]]].to_dict("records"):
            name = config["parameter"]
            value = one.get(name)
            parameter = parameter_of(config)
            if parameter is None or parameter.type == "DISCRETE" or value is None or pd.isna(value):
                continue
            position = parameter.position(float(value))
            if math.isnan(position):
                continue
            distance = min(position, 1 - position)
            rows.append(
                {column: one[column] for column in study}
                | {
                    "parameter": name,
                    "value": float(value),
                    "position": position,
                    "distance": distance,
                    "edge": "low" if position <= 0.5 else "high",
                    "near": distance <= near,
                }
            )
    columns = [*study, "parameter", "value", "position", "distance", "edge", "near"]
    table = pd.DataFrame(rows, columns=columns).astype({"near": bool})
    _warn_of_edges(table[table["near"]])
    return table


def parameter_of(config: Mapping[Any, Any]) -> Parameter | None:
    """The parameter of a row of a search-space table; None where the row does not describe one."""
    points: Any = config.get("feasible_points")
    # A list, or one of several kinds of nothing.
    listed = tuple(float(point) for point in points) if hasattr(points, "__iter__") else ()
    low, high = (
        None if limit is None or pd.isna(limit) else float(limit)
        for limit in (config.get("min_value"), config.get("max_value"))
    )
    scale = config.get("scale")
    try:
        return Parameter(
            str(config["parameter"]),
            config["type"],
            low,
            high,
            "" if scale is None or pd.isna(scale) else scale,
            listed,
        )
    except ValueError:
        return None


def _warn_of_edges(near: pd.DataFrame) -> None:
    if not len(near):
        return
    names = [
        f"{one['parameter']} = {one['value']:.4g} at batch size {one['batch_size']:,} ({one['edge']} edge)"
        for one in near.head(5).to_dict("records")
    ]
    more = f" and {len(near) - 5} more" if len(near) > 5 else ""
    warnings.warn(
        f"best trials lie at the edge of their search space: {'; '.join(names)}{more}; a wider search might "
        "need fewer steps",
        stacklevel=3,
    )


def goal_shares(found: pd.DataFrame, *, confidence_level: float = 0.9) -> pd.DataFrame:
    """How much of each study's search space reaches the goal, and how much diverges.

    Parameters
    ----------
    found : pandas.DataFrame
        A row is a trial that was run to its end, as `search_of` returns it (within a budget, where one was
        given): its ``steps`` and ``status``.
    confidence_level : float, default 0.9

    Returns
    -------
    pandas.DataFrame
        A row is a study: its key, ``searched`` (how many trials), ``reached_share``, ``reached_low``,
        ``reached_high``, ``diverged_share``, ``diverged_low``, ``diverged_high``.

    Notes
    -----
    Trials are drawn uniformly from the search space, so a share of trials estimates a share of the
    space; the limits are the exact binomial ones.
    """
    from scipy.stats import beta

    if not 0 < confidence_level < 1:
        raise ValueError(f"confidence_level lies between 0 and 1, got {confidence_level}")
    table = key_columns(found, needed=("batch_size", "steps", "status"))
    study = [name for name in _STUDY if name in table.columns]
    counted = table.assign(
        reached=table["steps"].notna(), diverged=table["status"].eq(INFEASIBLE).fillna(value=False)
    )
    groups = counted.groupby(study, observed=True, sort=True)
    result = groups.size().rename("searched").reset_index()
    n = result["searched"].to_numpy(dtype=np.float64)
    tail = (1 - confidence_level) / 2
    for name in ("reached", "diverged"):
        hits: NDArray[np.float64] = groups[name].sum().to_numpy(dtype=np.float64)
        result[f"{name}_share"] = hits / n
        with np.errstate(invalid="ignore"):
            low, high = beta.ppf(tail, hits, n - hits + 1), beta.isf(tail, hits + 1, n - hits)
        result[f"{name}_low"] = np.where(hits > 0, low, 0.0)
        result[f"{name}_high"] = np.where(hits < n, high, 1.0)
    return result


def stored_metaparameters(
    store: Store,
    workload: str,
    goal: Goal,
    *,
    first: int | None = None,
    budget: Budget | None = None,
    reference: int | None = None,
    confidence_level: float = 0.9,
) -> pd.DataFrame:
    """The best trial of each study of a workload: its settings, the heuristics, the edges, the shares.

    Parameters
    ----------
    store : Store
    workload : str
    goal : Goal
    first : int, optional
        Of each study only the search up to its `first`-th COMPLETE trial.
    budget : Budget, optional
        Limit within which the goal has to be reached.
    reference : int, optional
        Batch size that the heuristics start from; by default the smallest that reached the goal.
    confidence_level : float, default 0.9

    Returns
    -------
    pandas.DataFrame
        A row is a study: the columns of `best_trials`, `heuristics` (where there is a learning rate) and
        `goal_shares`; ``learning_rate_slope`` with ``slope_low`` and ``slope_high``, the same in each row;
        ``nearest_edge`` (parameter and side) and ``edge_distance``; and a ``warning``.

    Warns
    -----
    UserWarning
        If a best trial lies near the edge of its search space.
    """
    search = search_of(store, workload, goal, first=first, budget=budget)
    complete = search[search["status"] != INFEASIBLE]
    settings = store.trials(workload, first=first)
    best = best_trials(complete, settings, expected=first)
    names = metaparameters_in(settings)
    table = goal_shares(search, confidence_level=confidence_level).merge(best, on=list(_STUDY), how="left")
    if "effective_learning_rate" in best.columns:
        trend = learning_rate_trend(best, confidence_level=confidence_level)
        rates = best["effective_learning_rate"]
        if rates.notna().any():
            rule = heuristics(best, reference=reference).drop(columns="effective_learning_rate")
            table = table.merge(rule, on="batch_size", how="left")
        table = table.assign(learning_rate_slope=trend.slope, slope_low=trend.low, slope_high=trend.high)
    edges = edge_distances(best, store.search_space(workload))
    nearest = edges.sort_values("distance", kind="stable").drop_duplicates("batch_size")
    nearest = pd.DataFrame(
        {
            "batch_size": nearest["batch_size"].astype(np.int64),
            "nearest_edge": nearest["parameter"].astype(str) + " " + nearest["edge"].astype(str),
            "edge_distance": nearest["distance"],
            "warning": nearest["near"].map(
                {True: "the best trial lies at the edge of the search space", False: None}
            ),
        }
    )
    table = table.merge(nearest, on="batch_size", how="left").sort_values(list(_STUDY), ignore_index=True)
    shares = [name for name in table.columns if name.startswith(("reached_", "diverged_"))]
    lead = [*_STUDY, "steps", "trial", "after", "reached", "trials"]
    rules = ["effective_learning_rate", "linear", "linear_off", "square_root", "square_root_off"]
    slopes = ["learning_rate_slope", "slope_low", "slope_high"]
    order = [*lead, *names, *rules, *slopes, "searched", *shares, "nearest_edge", "edge_distance", "warning"]
    return table[[name for name in order if name in table.columns]]
