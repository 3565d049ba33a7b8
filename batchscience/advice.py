"""What a goal costs at each batch size, in examples, time and accelerator-hours, and what is worth paying."""

from __future__ import annotations

import math
import os
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .errors import BatchScienceError, UnknownWorkload
from .goals import Goal
from .results import as_steps
from .transitions import monotone

THROUGHPUT_COLUMNS = ("batch_size", "accelerators", "examples_per_second")


def speed_up(curve: pd.DataFrame) -> pd.DataFrame:
    """Examples to result and the speed-up of each batch size over the smallest.

    Parameters
    ----------
    curve : pandas.DataFrame
        A row is a study of one workload: ``batch_size``, ``steps`` (missing = not reached).

    Returns
    -------
    pandas.DataFrame
        A row is a study: ``batch_size``, ``steps``, ``examples`` (steps times batch size), ``speed_up``
        (steps of the smallest batch size that reached the goal over these), ``perfect_speed_up`` (the ratio
        of the batch sizes) and ``efficiency`` (the one over the other: 1 is perfect scaling).

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": [8, 16], "steps": [100, 80]})
    >>> speed_up(curve)[["examples", "speed_up", "efficiency"]].to_numpy().tolist()
    [[800.0, 1.0, 1.0], [1280.0, 1.25, 0.625]]
    """
    table = curve.sort_values("batch_size", ignore_index=True)
    if table["batch_size"].duplicated().any():
        raise ValueError("a curve has each batch size once; are there several workloads in it?")
    sizes, steps = table["batch_size"].to_numpy(dtype=np.float64), as_steps(table["steps"])
    reached = np.isfinite(steps)
    first = int(np.argmax(reached)) if reached.any() else 0
    known = np.where(reached, steps, np.nan)
    return pd.DataFrame(
        {
            "batch_size": table["batch_size"],
            "steps": known,
            "examples": known * sizes,
            "speed_up": known[first] / known,
            "perfect_speed_up": sizes / sizes[first],
            "efficiency": (known[first] / known) / (sizes / sizes[first]),
        }
    )


def read_throughput(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table of measured throughput.

    Parameters
    ----------
    path : path
        A CSV with the columns ``batch_size``, ``accelerators`` and ``examples_per_second`` (of all
        accelerators together); others are ignored.

    Raises
    ------
    BatchScienceError
        If the file cannot be read, lacks a column, or a number is missing or not positive.
    """
    try:
        table = pd.read_csv(Path(path), encoding="utf-8-sig", skipinitialspace=True)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise BatchScienceError(f"{path}: cannot be read as a CSV of throughput: {error}") from None
    missing = [name for name in THROUGHPUT_COLUMNS if name not in table.columns]
    if missing:
        raise BatchScienceError(
            f"{path}: expected the columns {', '.join(THROUGHPUT_COLUMNS)}, found {', '.join(table.columns)}"
        )
    numbers: pd.DataFrame = table[list(THROUGHPUT_COLUMNS)].apply(pd.to_numeric, errors="coerce")
    numbers = numbers.astype(np.float64)
    wrong = ~(np.isfinite(numbers) & (numbers > 0)).all(axis=1)
    if wrong.any():
        line = int(np.argmax(wrong)) + 2
        raise BatchScienceError(
            f"{path}: line {line}: batch size, accelerators and examples per second must be positive numbers"
        )
    return numbers


def advise(
    curve: pd.DataFrame, throughput: pd.DataFrame, *, price_per_accelerator_hour: float | None = None
) -> pd.DataFrame:
    """Time and accelerator-hours to the goal, and which choices no other beats.

    Parameters
    ----------
    curve : pandas.DataFrame
        A row is a study of one workload: ``batch_size``, ``steps`` (missing = not reached), and where they
        are known ``after`` (the evaluation before), ``best_of_low`` and ``best_of_high`` (limits of the best
        of k).
    throughput : pandas.DataFrame
        A row is a measured set-up: ``batch_size`` (global), ``accelerators``, ``examples_per_second`` (of all
        together).
    price_per_accelerator_hour : float, optional
        For a column ``cost``.

    Returns
    -------
    pandas.DataFrame
        A row is a set-up, sorted by batch size and accelerators:

        - ``steps``, and whether they are ``interpolated`` between the batch sizes measured;
        - ``examples`` and ``efficiency`` against perfect scaling from the smallest batch size measured;
        - ``hours``, ``accelerator_hours``, and ``hours_low`` and ``hours_high``: between the evaluation
          before the goal and the limits of the best of k; missing where neither is known
          or there is no such limit;
        - ``pareto``, whether no other set-up is as fast and as cheap, and better in one;
        - ``halving_factor``: for those, the accelerator-hours over those of the cheapest set-up that takes
          at least twice as long, that is the price of the last halving of the time (1 = for nothing);
        - ``warning``.

    Raises
    ------
    ValueError
        If the curve has a batch size twice, the price is negative, or a throughput is not positive.
    KeyError
        If a column is missing.

    Warns
    -----
    UserWarning
        If set-ups were left without an answer because their batch size lies outside those measured: a
        curve is not read off beyond its ends.

    Notes
    -----
    Between two measured batch sizes the steps are interpolated in logarithms on the curve made monotone;
    at a measured one they are the measured ones.  Accelerator-hours count all accelerators for the whole
    time.  Time for evaluation, input and restarts is in the answer as far as it is in the throughput.

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": [64, 128, 256], "steps": [3600, 1800, 1200]})
    >>> rows = pd.DataFrame({"batch_size": [64, 128, 256], "accelerators": [1, 2, 4],
    ...                      "examples_per_second": [64.0, 128.0, 256.0]})
    >>> found = advise(curve, rows)
    >>> found["hours"].round(3).tolist(), found["accelerator_hours"].round(3).tolist()
    ([1.0, 0.5, 0.333], [1.0, 1.0, 1.333])
    >>> found["pareto"].tolist(), found["halving_factor"].round(2).tolist()
    ([False, True, True], [nan, 1.0, 1.33])
    """
    missing = [name for name in THROUGHPUT_COLUMNS if name not in throughput.columns]
    if missing:
        raise KeyError(f"the throughput has no column {', '.join(missing)}")
    if price_per_accelerator_hour is not None and not price_per_accelerator_hour >= 0:
        raise ValueError(f"a price must not be negative, got {price_per_accelerator_hour}")
    setups = throughput[list(THROUGHPUT_COLUMNS)].sort_values(list(THROUGHPUT_COLUMNS), ignore_index=True)
    numbers = setups.to_numpy(dtype=np.float64)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        raise ValueError("batch size, accelerators and examples per second must be positive numbers")
    sizes, accelerators, speed = numbers.T

    known = speed_up(curve)
    measured = curve.sort_values("batch_size", ignore_index=True)
    steps, interpolated = _steps_at(known, as_steps(known["steps"]), sizes)
    low = np.fmin(*(_bound_at(measured, name, known, sizes) for name in ("after", "best_of_low")))
    high = _bound_at(measured, "best_of_high", known, sizes)
    seconds_per_step = sizes / speed
    hours = steps * seconds_per_step / 3600
    hours_low = np.minimum(low, steps) * seconds_per_step / 3600
    hours_high = np.maximum(high, steps) * seconds_per_step / 3600
    start = known[known["steps"].notna()]
    examples = steps * sizes
    first = float(start["examples"].iloc[0]) if len(start) else math.nan
    table = setups.assign(
        steps=steps,
        interpolated=interpolated,
        examples=examples,
        efficiency=first / examples,
        hours=hours,
        hours_low=hours_low,
        hours_high=np.where(np.isfinite(hours_high), hours_high, np.nan),
        accelerator_hours=hours * accelerators,
    )
    if price_per_accelerator_hour is not None:
        table = table.assign(cost=table["accelerator_hours"] * price_per_accelerator_hour)
    pareto = _pareto(hours, hours * accelerators)
    notes = _notes(known, sizes, steps)
    table = table.assign(
        pareto=pareto,
        halving_factor=_halving_factors(hours, hours * accelerators, pareto),
        warning=pd.Series(notes, dtype=object),
    )
    outside = np.isnan(steps) & (sizes > 0)
    if outside.any():
        names = ", ".join(f"{size:,.0f}" for size in np.unique(sizes[outside]))
        warnings.warn(f"no steps are known for batch size {names}; see the column warning", stacklevel=2)
    return table


def published_curve(workload: str, goal: Goal) -> pd.DataFrame:
    """The published steps to result of a workload.

    Parameters
    ----------
    workload : str
    goal : Goal
        Must be one that the published figures show in absolute steps.

    Returns
    -------
    pandas.DataFrame
        A row is a batch size: ``batch_size``, ``steps``.

    Raises
    ------
    UnknownWorkload
        If the published figures have no absolute steps of this workload to this goal.

    Examples
    --------
    >>> goal = Goal("val/classification_error", 0.01)
    >>> len(published_curve("mnist/simple_cnn_base/sgd", goal))
    17
    """
    from . import published

    table = published.consensus_steps()
    of_workload = table[table["workload"] == workload]
    found = of_workload[(of_workload["metric"] == goal.metric) & (of_workload["goal"] == goal.threshold)]
    if not len(found):
        shown = sorted(of_workload["goal"].unique().tolist())
        raise UnknownWorkload(
            f"the published figures have no absolute steps of {workload} to {goal} "
            f"(their goals: {', '.join(f'{one:g}' for one in shown) or 'none'}); "
            "run 'batchscience fetch' for the raw curves"
        )
    return found[["batch_size", "steps"]].reset_index(drop=True)


def _steps_at(
    known: pd.DataFrame, steps: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Steps at batch sizes; NaN outside those measured and where the goal was not reached."""
    grid = known["batch_size"].to_numpy(dtype=np.float64)
    reached = np.isfinite(steps)
    exact = dict(zip(grid.tolist(), np.where(reached, steps, np.nan).tolist(), strict=True))
    # A batch size that was measured and missed the goal is not bridged by its neighbours.
    smooth = np.full(len(grid), np.nan)
    if reached.any():
        smooth[reached] = np.log(monotone(steps[reached]))
    between = np.exp(np.interp(np.log(sizes), np.log(grid), smooth, left=np.nan, right=np.nan))
    values = [exact.get(size, value) for size, value in zip(sizes.tolist(), between.tolist(), strict=True)]
    result = np.array(values, dtype=np.float64)
    return result, ~np.isin(sizes, grid) & np.isfinite(result)


def _bound_at(
    curve: pd.DataFrame, name: str, known: pd.DataFrame, sizes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A bound on the steps, where the batch size was measured and has one; NaN elsewhere."""
    if name not in curve.columns:
        return np.full(len(sizes), np.nan)
    by_size = dict(
        zip(
            known["batch_size"].to_numpy(dtype=np.float64),
            curve[name].to_numpy(dtype=np.float64, na_value=np.nan),
            strict=True,
        )
    )
    bounds = np.array([by_size.get(size, math.nan) for size in sizes])
    # A lower limit of nothing is none.
    return np.where(bounds > 0, bounds, np.nan)


def _pareto(hours: NDArray[np.float64], cost: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which are not beaten: no other is as fast and as cheap, and better in one."""
    no_slower = hours[None, :] <= hours[:, None]
    no_dearer = cost[None, :] <= cost[:, None]
    better = (hours[None, :] < hours[:, None]) | (cost[None, :] < cost[:, None])
    return np.isfinite(hours) & ~(no_slower & no_dearer & better).any(axis=1)


def _halving_factors(
    hours: NDArray[np.float64], cost: NDArray[np.float64], pareto: NDArray[np.bool_]
) -> NDArray[np.float64]:
    result = np.full(len(hours), np.nan)
    for i in np.flatnonzero(pareto):
        slower = hours >= 2 * hours[i] * (1 - 1e-9)
        if slower.any():
            result[i] = cost[i] / cost[slower].min()
    return result


def _notes(known: pd.DataFrame, sizes: NDArray[np.float64], steps: NDArray[np.float64]) -> list[str | None]:
    grid = known["batch_size"].to_numpy(dtype=np.float64)
    notes: list[str | None] = []
    for size, value in zip(sizes, steps, strict=True):
        if np.isfinite(value):
            notes.append(None)
        elif size in grid:
            notes.append("no trial reached the goal at this batch size")
        elif not known["steps"].notna().any():
            notes.append("no trial reached the goal at any batch size")
        else:
            reached = grid[known["steps"].notna()]
            notes.append(
                f"the goal was reached at batch sizes from {reached[0]:,.0f} to {reached[-1]:,.0f}; the "
                "curve is not read off beyond them"
            )
    return notes


def best_choice(table: pd.DataFrame, *, deadline_hours: float | None = None) -> str:
    """The answer of `advise` in words.

    Parameters
    ----------
    table : pandas.DataFrame
        As `advise` returns it.
    deadline_hours : float, optional
        Longest time that will do; by default there is none.

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": [64, 128, 256], "steps": [3600, 1800, 1200]})
    >>> rows = pd.DataFrame({"batch_size": [64, 128, 256], "accelerators": [1, 2, 4],
    ...                      "examples_per_second": [64.0, 128.0, 256.0]})
    >>> print(best_choice(advise(curve, rows)))
    cheapest: batch size 128 on 2 accelerators, 0.5 hours, 1 accelerator-hours; fastest: batch size 256 on 4
    accelerators, 0.333 hours, 1.33 accelerator-hours (1.33 times the accelerator-hours for 1.50 times the
    speed)
    """
    frontier = table[table["pareto"]].sort_values("hours", ignore_index=True)
    if not len(frontier):
        return "no set-up has a known time to the goal"
    fastest = frontier.iloc[0]
    allowed = frontier if deadline_hours is None else frontier[frontier["hours"] <= deadline_hours]
    if not len(allowed):
        return f"no set-up reaches the goal within {deadline_hours:g} hours; {_words('the fastest', fastest)}"
    cheapest = allowed.sort_values(["accelerator_hours", "hours"]).iloc[0]
    if deadline_hours is not None:
        return _words(f"cheapest within {deadline_hours:g} hours", cheapest)
    if cheapest["hours"] == fastest["hours"]:
        return _words("cheapest and fastest", cheapest)
    dearer = fastest["accelerator_hours"] / cheapest["accelerator_hours"]
    faster = cheapest["hours"] / fastest["hours"]
    return (
        f"{_words('cheapest', cheapest)}; {_words('fastest', fastest)} ({dearer:.2f} times the "
        f"accelerator-hours for {faster:.2f} times the speed)"
    )


def _words(what: str, row: pd.Series) -> str:
    return (
        f"{what}: batch size {row['batch_size']:,.0f} on {row['accelerators']:g} accelerators, "
        f"{row['hours']:.3g} hours, {row['accelerator_hours']:.3g} accelerator-hours"
    )
