"""The gradient noise scale that best trials measured, beside the critical batch size of their workload."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .errors import LayoutError
from .goals import Goal
from .layout import NOISE_FILE, RUN_FILE
from .places import place
from .regimes import Regimes, stored_regimes
from .results import steps_by_batch_size

if TYPE_CHECKING:
    from .store import Store

COLUMNS = {
    "workload": "str",
    "metric": "str",
    "goal": "float64",
    "batch_size": "Int64",
    "trial": "Int64",
    "steps": "Int64",
    "step": "Int64",
    "noise_scale": "float64",
    "noise_low": "float64",
    "noise_high": "float64",
    "critical_batch_size": "float64",
    "critical_low": "float64",
    "critical_high": "float64",
    "ratio": "float64",
}


def noise_scales(
    raw: str | os.PathLike[str],
    store: Store,
    *,
    workloads: Collection[str] | None = None,
    goal: Goal | None = None,
    draws: int = 999,
    confidence_level: float = 0.9,
) -> pd.DataFrame:
    """What the best trials measured of the gradient noise scale, and what it predicts.

    Parameters
    ----------
    raw : path
        Folder of the trained studies, or its URL: the noise scale lies beside the curves and is not in the
        tables.
    store : Store
        The tables of the same studies.
    workloads : collection of str, optional
        Only these; by default all of the store that the folder holds too.
    goal : Goal, optional
        What the trials had to reach; by default the goal that each workload was trained for.
    draws, confidence_level
        Of the limits of the critical batch size, as in `stored_regimes`.

    Returns
    -------
    pandas.DataFrame
        A row is a step at which the best trial of a study measured it: ``workload``, ``metric``, ``goal``,
        ``batch_size``, ``trial`` and the ``steps`` in which it reached the goal, ``step``, ``noise_scale``
        with ``noise_low`` and ``noise_high`` (limits at the level of the trial's noise rule; missing =
        there is none), ``critical_batch_size`` of the knee law with ``critical_low`` and ``critical_high``,
        and their ``ratio`` (noise scale over critical batch size).  A workload that measured no noise scale
        has one row, without ``step``.

    Raises
    ------
    LayoutError
        If a file of the folder is damaged, if a workload has no goal there and none is given, or if the
        folder holds no workload of the store.
    UnknownWorkload
        If the store does not hold a workload.

    References
    ----------
    .. [1] McCandlish et al. (2018), An empirical model of large-batch training, arXiv 1812.06162, who
       predict the critical batch size by the noise scale.
    """
    root = place(raw)
    rows: list[dict[str, Any]] = []
    if workloads is None:
        workloads = [workload for workload in store.workloads() if (root / workload).is_dir()]
        if not workloads:
            raise LayoutError(
                f"{root}: holds no workload of the tables in {store.path}; is it the raw folder?"
            )
    for workload in workloads:
        sizes = store.studies(workload)["batch_size"].tolist()
        wanted = goal if goal is not None else _trained_for(root / workload, sizes)
        answer = stored_regimes(store, workload, wanted, draws=draws, confidence_level=confidence_level)
        known = {"workload": workload, "metric": wanted.metric, "goal": wanted.threshold, **_critical(answer)}
        best = steps_by_batch_size(store, workload, wanted).dropna(subset=["trial"])
        measured = [
            {"batch_size": study["batch_size"], "trial": study["trial"], "steps": study["steps"], **row}
            for study in best.to_dict("records")
            for row in _measured(root / workload / str(study["batch_size"]) / str(study["trial"]))
        ]
        rows += [{**known, **row} for row in measured or [{}]]
    table = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    return table.assign(ratio=table["noise_scale"] / table["critical_batch_size"])


def at_goal(measured: pd.DataFrame) -> pd.DataFrame:
    """The noise scale of each workload where its best trial reached the goal.

    Parameters
    ----------
    measured : pandas.DataFrame
        As `noise_scales` returns it.

    Returns
    -------
    pandas.DataFrame
        A row is a workload: of the study whose batch size is nearest to the critical one, the measured step
        nearest to the one at which the best trial reached the goal.

    Notes
    -----
    "Nearest" is by ratio.  The noise scale grows while a loss falls, and so has a value only for a step;
    the one at the goal belongs to the critical batch size, which is that of training up to the goal.

    Examples
    --------
    >>> import pandas as pd
    >>> measured = pd.DataFrame({"workload": "w", "batch_size": 64, "steps": 53, "step": [25, 50, 100],
    ...                          "noise_scale": [35.0, 218.0, 231.0], "critical_batch_size": 87.0})
    >>> at_goal(measured)["noise_scale"].tolist()
    [218.0]
    """
    numbers = {
        name: measured[name].to_numpy(np.float64, na_value=np.nan)
        for name in ("batch_size", "critical_batch_size", "step", "steps")
    }
    ranked = measured.assign(
        _size=np.abs(np.log(numbers["batch_size"] / numbers["critical_batch_size"])),
        _step=np.abs(np.log(numbers["step"] / numbers["steps"])),
    )
    ranked = ranked.sort_values(["_size", "batch_size", "_step", "step"], kind="stable")
    chosen = ranked.drop_duplicates("workload").drop(columns=["_size", "_step"])
    return chosen.sort_values("workload", ignore_index=True)


def _critical(answer: Regimes) -> dict[str, float]:
    if answer.law is None or not answer.law.determined:
        return {}
    limits = answer.limits("critical")
    return {
        "critical_batch_size": answer.law.critical_batch_size,
        "critical_low": math.nan if limits.low is None else limits.low,
        "critical_high": math.nan if limits.high is None else limits.high,
    }


def _trained_for(workload: Path, batch_sizes: Collection[int]) -> Goal:
    """The goal that the studies of a workload were trained for."""
    for size in batch_sizes:
        path = workload / str(size) / RUN_FILE
        if not path.is_file():
            continue
        try:
            goal = json.loads(path.read_text("utf-8")).get("goal")
            if goal is not None:
                return Goal(**goal)
        except (AttributeError, TypeError, ValueError) as error:
            raise LayoutError(f"{path}: does not state a goal as training does ({error})") from None
    raise LayoutError(f"{workload}: no study there states the goal that it was trained for; give one")


def _measured(trial: Path) -> Iterator[dict[str, float]]:
    """The rows of a trial's noise scale; none where it was not measured."""
    path = trial / NOISE_FILE
    if not path.is_file():
        return
    try:
        for row in csv.DictReader(io.StringIO(path.read_text("utf-8"))):
            yield {
                "step": int(row["step"]),
                "noise_scale": float(row["noise_scale"] or math.nan),
                "noise_low": float(row["low"] or math.nan),
                "noise_high": float(row["high"] or math.nan),
            }
    except (KeyError, TypeError, ValueError) as error:
        raise LayoutError(f"{path}: not a table of noise scales ({error!r})") from None
