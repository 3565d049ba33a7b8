"""The best value of an objective reached within a budget of steps, examples or epochs."""

from __future__ import annotations

import numpy as np
import pandas as pd

from .goals import Budget, Goal
from .results import key_columns

_STUDY = ("workload", "batch_size")


def epoch_budget(workload: str, epochs: float, *, training_set_size: int | None = None) -> Budget:
    """The budget of so many passes over a workload's training set.

    Parameters
    ----------
    workload : str
        Name of a published workload, whose training-set size is known, or any name with
        `training_set_size`.
    epochs : float
        Number of passes.
    training_set_size : int, optional
        Number of training examples; by default that of the published workload.

    Raises
    ------
    ValueError
        If the size is neither known nor given.

    Examples
    --------
    >>> epoch_budget("mnist/simple_cnn_base/sgd", 2)
    Budget(steps=None, examples=110000)
    """
    from .paper import training_set_size as published_size

    size = training_set_size if training_set_size is not None else published_size(workload)
    if size is None:
        raise ValueError(f"the training-set size of {workload} is not known; give training_set_size")
    return Budget.epochs(epochs, training_set_size=size)


def best_measurement(
    measurements: pd.DataFrame,
    goal: Goal,
    budget: Budget | None = None,
    *,
    studies: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """The best value of a metric in each study within a budget.

    Parameters
    ----------
    measurements : pandas.DataFrame
        A row is a measurement: ``batch_size``, ``trial``, ``step`` (and ``workload`` where there are
        several), as columns or index levels, and the metric.  In any order.
    goal : Goal
        Names the metric and says whether larger values are better; its threshold plays no part.
    budget : Budget, optional
        Measurements after it are not looked at.
    studies : pandas.DataFrame, optional
        A row is a study with its ``train_steps``.  Then each of them has a row in the result, and only
        those whose trials trained as long as the budget have a value.

    Returns
    -------
    pandas.DataFrame
        A row is a study, sorted by key: ``value`` (missing where nothing was measured, or the budget is not
        covered), the ``trial`` and ``step`` at which it was reached (of equal values the one of the
        smallest step, then trial), and ``covered``, whether ``train_steps`` reach to the end of the budget
        (missing where no budget or no ``train_steps`` are known).

    Raises
    ------
    KeyError
        If a key column or the metric is missing.

    Notes
    -----
    A study whose trials stopped before the end of the budget would look worse for lack of training, not
    for its batch size; so Figure 11 of the paper leaves it out.  A study that had a time budget
    (``train_steps`` 0) states no length, and is not covered.  NaN is never the best value.

    Examples
    --------
    >>> curve = pd.DataFrame({"batch_size": 8, "trial": [1, 1, 2], "step": [10, 20, 10],
    ...                       "val/classification_error": [0.3, 0.1, 0.2]})
    >>> goal = Goal("val/classification_error", 0.0)
    >>> best_measurement(curve, goal, Budget(steps=15))[["value", "trial", "step"]]
       value  trial  step
    0    0.2      2    10
    """
    table = key_columns(measurements, needed=("batch_size", "trial", "step", goal.metric))
    study = [name for name in _STUDY if name in table.columns]
    values = table[goal.metric].to_numpy(dtype=np.float64, na_value=np.nan)
    within = ~np.isnan(values)
    if budget is not None:
        last = budget.last_step(table["batch_size"].to_numpy(dtype=np.int64))
        within &= table["step"].to_numpy(dtype=np.int64) <= last
    keys = [*study, "trial", "step"]
    counted = table.loc[within, keys].assign(value=values[within], rank=values[within])
    if goal.maximize:
        counted["rank"] = -counted["rank"]
    counted = counted.sort_values(["rank", "step", "trial"], kind="stable").drop_duplicates(study)
    best = counted.drop(columns="rank").astype({"trial": "Int64", "step": "Int64", "value": "Float64"})
    every = table[study].drop_duplicates()
    if studies is not None:
        every = key_columns(studies, needed=("batch_size", "train_steps"))[[*study, "train_steps"]]
    if "workload" in study:
        # Categories of the two tables may differ; as text they compare.
        every = every.assign(workload=every["workload"].astype(str))
        best = best.assign(workload=best["workload"].astype(str))
    result = every.merge(best, on=study, how="left").sort_values(study, ignore_index=True)
    covered = pd.Series(pd.NA, index=result.index, dtype="boolean")
    if studies is not None and budget is not None:
        length = result["train_steps"].astype("Int64")
        last = budget.last_step(result["batch_size"].to_numpy(dtype=np.int64))
        covered = (length >= last).astype("boolean")
        result.loc[~covered.fillna(value=True), ["value", "trial", "step"]] = pd.NA
    return result.assign(covered=covered)[[*study, "value", "trial", "step", "covered"]]
