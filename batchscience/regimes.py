"""The regimes of a workload: its transition points, measured and by a law, with limits and in words."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from .errors import UnknownWorkload
from .goals import Goal
from .laws import (
    LAWS,
    Law,
    LawDistribution,
    Limits,
    Regime,
    ScalingLaw,
    bootstrap_law,
    compare_laws,
    fit_scaling_law,
    scatter_law,
)
from .layout import COMPLETE
from .results import best_of_by_study, search_of, steps_to_result
from .transitions import TOLERANCE, TOLERANCES, Transitions, monotone, sensitivity, transitions

if TYPE_CHECKING:
    from .store import Store

__all__ = [
    "LAWS",
    "TOLERANCE",
    "TOLERANCES",
    "Law",
    "LawDistribution",
    "Limits",
    "Regime",
    "Regimes",
    "ScalingLaw",
    "Transitions",
    "as_table",
    "bootstrap_law",
    "compare_laws",
    "fit_scaling_law",
    "monotone",
    "published_curves",
    "published_regimes",
    "regimes_of_curve",
    "regimes_of_trials",
    "scatter_law",
    "sensitivity",
    "stored_regimes",
    "transitions",
]

PUBLISHED_FIGURES = ("1", "2", "3", "4", "5", "6")
"""The figures that show steps to result against batch size."""

_DISAGREEMENT = 2.0
"""Factor between the measured and the law's answer from which a reader is told."""


@dataclass(frozen=True, slots=True)
class Regimes:
    """What is known of the regimes of one curve.

    Attributes
    ----------
    workload, series, figure : str
        Where the curve comes from; ``series`` and ``figure`` are empty where there is nothing to tell apart.
    goal : Goal or None
        What the trials had to reach.
    measured : Transitions
        The transition points of the measured curve, without a model.
    law : ScalingLaw or None
        The law fitted; None where too few batch sizes reached the goal.
    distribution : LawDistribution or None
        The law refitted to other curves that might have been measured.
    best_law : str or None
        The law with the lowest AICc.
    aicc_difference : float or None
        How far the AICc of `law` is above the lowest; infinite where `law` has too many parameters for
        the points to be compared.
    confidence_level : float
        Of the limits of each number on its own.
    warnings : tuple of str
        What a reader of the numbers must know.
    trials, reached : int or None
        Of the study with the fewest, the number of COMPLETE trials, and of those that reached the goal;
        None where they are not known.
    """

    workload: str
    series: str
    figure: str
    goal: Goal | None
    measured: Transitions
    law: ScalingLaw | None
    distribution: LawDistribution | None
    best_law: str | None
    aicc_difference: float | None
    confidence_level: float
    warnings: tuple[str, ...]
    trials: int | None = None
    reached: int | None = None

    def __str__(self) -> str:
        parts = [str(self.measured)]
        if self.law is not None and self.law.determined:
            limits = self.limits("critical")
            low = "below the smallest" if limits.low is None else f"{limits.low:,.0f}"
            high = "beyond the largest measured" if limits.high is None else f"{limits.high:,.0f}"
            parts.append(
                f"critical batch size {self.law.critical_batch_size:,.0f} by the {self.law.law} law "
                f"({low} to {high}, {100 * self.confidence_level:g} %)"
            )
        return "; ".join(parts)

    def limits(self, what: str) -> Limits:
        """Limits of a number of the law.

        Parameters
        ----------
        what : {"critical", "perfect", "useful"}
            The critical batch size, or one of the law's transition points at the tolerance of `measured`.

        Raises
        ------
        ValueError
            If there is no law.
        """
        if self.distribution is None:
            raise ValueError("too few batch sizes reached the goal for a law, so there are no limits")
        tolerance = self.measured.tolerance
        if what == "critical":
            values = self.distribution.critical_batch_size
        elif what == "perfect":
            values = self.distribution.perfect_to(tolerance)
        elif what == "useful":
            values = self.distribution.useful_to(tolerance)
        else:
            raise ValueError(f"what is 'critical', 'perfect' or 'useful', got {what!r}")
        return self.distribution.limits(values, confidence_level=self.confidence_level)

    def row(self) -> dict[str, Any]:
        """The numbers as one row of a table; None where there is none."""
        goal, measured, law = self.goal, self.measured, self.law
        row: dict[str, Any] = {
            "workload": self.workload,
            "series": self.series,
            "metric": goal.metric if goal else None,
            "goal": goal.threshold if goal else None,
            "tolerance": measured.tolerance,
            "perfect_to": measured.perfect_to,
            "perfect_censored": measured.perfect_censored,
            "useful_to": measured.useful_to,
            "useful_censored": measured.useful_censored,
            "law": law.law if law else None,
            "critical_batch_size": law.critical_batch_size if law and law.determined else None,
        }
        by_law: dict[str, Any] = dict.fromkeys(_LAW_COLUMNS)
        if law and self.distribution:
            found = law.transitions(measured.tolerance)
            for what, point, censored in (
                ("critical", law.critical_batch_size, False),
                ("perfect", found.perfect_to, found.perfect_censored),
                ("useful", found.useful_to, found.useful_censored),
            ):
                limits = self.limits(what)
                by_law |= {f"{what}_low": limits.low, f"{what}_high": limits.high}
                if what != "critical":
                    by_law |= {f"law_{what}_to": point, f"law_{what}_censored": censored}
            by_law |= {"limits_from": self.distribution.source, "scatter": law.scatter, "floor": law.floor}
        row |= {name: by_law.pop(name) for name in ("critical_low", "critical_high")}
        row["warning"] = "; ".join(self.warnings) or None
        row |= {
            "figure": self.figure or None,
            "maximize": goal.maximize if goal else None,
            "inclusive": goal.inclusive if goal else None,
            "smallest": measured.smallest,
            "largest": measured.largest,
            "not_reached": len(measured.not_reached),
            "perfect_crossing": measured.perfect_crossing,
            "useful_crossing": measured.useful_crossing,
            "trials": self.trials,
            "reached": self.reached,
            "grid": measured.grid,
            "confidence_level": self.confidence_level,
            "best_law": self.best_law,
            "aicc_difference": self.aicc_difference,
        }
        row |= by_law
        return {name: _plain(name, value) for name, value in row.items()}


_LAW_COLUMNS = (
    "critical_low",
    "critical_high",
    "law_perfect_to",
    "law_perfect_censored",
    "perfect_low",
    "perfect_high",
    "law_useful_to",
    "law_useful_censored",
    "useful_low",
    "useful_high",
    "limits_from",
    "scatter",
    "floor",
)
_MEASURED_SIZES = frozenset({"perfect_to", "useful_to", "smallest", "largest"})

SUMMARY = (
    "workload",
    "series",
    "metric",
    "goal",
    "tolerance",
    "perfect_to",
    "perfect_censored",
    "useful_to",
    "useful_censored",
    "law",
    "critical_batch_size",
    "critical_low",
    "critical_high",
    "warning",
)
"""The columns of `as_table` that answer the question; the others say how well."""


def _plain(name: str, value: Any) -> Any:
    """Measured batch sizes as whole numbers, fitted numbers to six digits: the rest is noise."""
    if not isinstance(value, float):
        return value
    if not math.isfinite(value):
        return None
    if name in _MEASURED_SIZES and value.is_integer():
        return int(value)
    return float(f"{value:.6g}")


def as_table(answers: Iterable[Regimes]) -> pd.DataFrame:
    """A row per answer, as `Regimes.row` gives it; absent numbers are missing."""
    table = pd.DataFrame([answer.row() for answer in answers])
    for name in table.columns:
        if name in ("trials", "reached"):
            table[name] = table[name].astype("Int64")
        elif name in _MEASURED_SIZES:
            table[name] = table[name].astype("Float64")
            if (table[name].dropna() % 1 == 0).all():
                table[name] = table[name].astype("Int64")
        elif name.endswith("censored") or name in ("maximize", "inclusive"):
            table[name] = table[name].astype("boolean")
        elif name in ("workload", "series", "metric", "law", "warning", "figure", "best_law", "limits_from"):
            table[name] = table[name].astype("str")
        else:
            table[name] = table[name].astype("float64") if name != "not_reached" else table[name]
    return table


def regimes_of_curve(
    curve: pd.DataFrame,
    *,
    rng: np.random.Generator,
    workload: str = "",
    goal: Goal | None = None,
    series: str = "",
    figure: str = "",
    tolerance: float = TOLERANCE,
    law: Law = "knee",
    draws: int = 999,
    confidence_level: float = 0.9,
) -> Regimes:
    """The regimes of a curve whose trials are not known, such as a published one.

    Parameters
    ----------
    curve : pandas.DataFrame
        A row is a study: ``batch_size``, ``steps`` (missing = not reached) and where known ``after``.
    rng : numpy.random.Generator
        For the limits, which come from the scatter of the points about the law.
    workload, goal, series, figure
        What the curve shows.
    tolerance : float, default 0.2
    law : {"knee", "hyperbola", "pieces"}
    draws : int, default 999
    confidence_level : float, default 0.9

    Returns
    -------
    Regimes
    """
    measured = transitions(curve, tolerance=tolerance)
    fitted = distribution = None
    if len(curve) - len(measured.not_reached) > _parameters(law):
        fitted = fit_scaling_law(curve["batch_size"], curve["steps"], law=law)
        distribution = scatter_law(fitted, draws=draws, rng=rng)
    return _answer(
        measured, fitted, distribution, curve, workload, series, figure, goal, law, confidence_level
    )


def regimes_of_trials(
    trials: pd.DataFrame,
    *,
    rng: np.random.Generator,
    workload: str = "",
    goal: Goal | None = None,
    series: str = "",
    k: int = 10,
    expected: int | None = None,
    tolerance: float = TOLERANCE,
    law: Law = "knee",
    draws: int = 999,
    confidence_level: float = 0.9,
) -> Regimes:
    """The regimes of a workload from the steps to goal of its trials.

    Parameters
    ----------
    trials : pandas.DataFrame
        A row is a trial of one workload, as `steps_to_goal` returns it; those that diverged are told by
        a column ``status``, take part in the search, and have reached no goal.
    rng : numpy.random.Generator
    workload, goal, series
        What the trials were to reach.
    k : int, default 10
        Trials of the search whose median steps to result make the curve that the law is fitted to.
    expected : int, optional
        How many COMPLETE trials each study should have.
    tolerance, law, draws, confidence_level
        As in `regimes_of_curve`.

    Returns
    -------
    Regimes
        ``measured`` is of the fewest steps of each study, as in the paper; the law is of the best of k.
    """
    complete = trials if "status" not in trials.columns else trials[trials["status"] == COMPLETE]
    curve = steps_to_result(complete, expected=expected)
    measured = transitions(curve, tolerance=tolerance)
    best = best_of_by_study(trials, k).rename(columns={"best_of_k": "steps"})
    fitted = distribution = None
    if int(np.isfinite(best["steps"]).sum()) > _parameters(law):
        distribution = bootstrap_law(trials, k=k, draws=draws, law=law, rng=rng)
        fitted = distribution.fitted
    answer = _answer(measured, fitted, distribution, best, workload, series, "", goal, law, confidence_level)
    if not len(curve):
        return answer
    fewest = {name: int(curve[name].min()) for name in ("trials", "reached")}
    return dataclasses.replace(answer, trials=fewest["trials"], reached=fewest["reached"])


def _parameters(law: Law) -> int:
    return {"hyperbola": 2, "knee": 3, "pieces": 4}[law]


def _answer(
    measured: Transitions,
    fitted: ScalingLaw | None,
    distribution: LawDistribution | None,
    curve: pd.DataFrame,
    workload: str,
    series: str,
    figure: str,
    goal: Goal | None,
    law: Law,
    confidence_level: float,
) -> Regimes:
    notes = list(measured.warnings)
    best_law = difference = None
    if fitted is None:
        notes.append(f"too few batch sizes reached the goal for a {law}")
    else:
        laws = compare_laws(curve["batch_size"], curve["steps"])
        if len(laws):
            best_law = str(laws["law"].iloc[0])
            own = laws.loc[laws["law"] == law, "difference"]
            difference = float(own.iloc[0]) if len(own) else math.inf
        notes += [*fitted.warnings, *_doubts(measured, fitted, best_law, difference)]
    return Regimes(
        workload,
        series,
        figure,
        goal,
        measured,
        fitted,
        distribution,
        best_law,
        difference,
        confidence_level,
        tuple(notes),
    )


def _doubts(
    measured: Transitions, fitted: ScalingLaw, best_law: str | None, difference: float | None
) -> list[str]:
    """Where the law and the measured curve tell different stories."""
    found = []
    name = fitted.law
    if best_law is not None and difference is not None and difference > 4 and _simpler(name, best_law):
        found.append(
            f"the points follow a {best_law} law rather than a {name} (AICc lower by {difference:.0f})"
        )
    if fitted.scatter > math.log1p(measured.tolerance) / 1.5:
        found.append(
            f"the points scatter by {100 * fitted.scatter:.0f} % about the {name} law, which says little "
            f"then at a tolerance of {100 * measured.tolerance:g} %"
        )
    by_law = fitted.transitions(measured.tolerance)
    for what, one, other, censored in (
        (
            "end of perfect scaling",
            by_law.perfect_to,
            measured.perfect_crossing or measured.perfect_to,
            measured.perfect_censored,
        ),
        (
            "maximum useful batch size",
            by_law.useful_to,
            measured.useful_crossing or measured.useful_to,
            measured.useful_censored,
        ),
    ):
        assert one is not None
        assert other is not None
        if max(one / other, other / one) > _DISAGREEMENT:
            found.append(
                f"the {name} law puts the {what} at {one:,.0f}, the measured curve "
                f"{'at or beyond' if censored else 'near'} {other:,.0f}"
            )
    return found


def _simpler(law: str, than: str) -> bool:
    """Whether a law has fewer parameters: losing to a simpler one is no misfit."""
    order = ("hyperbola", "knee", "pieces")
    return order.index(law) < order.index(than)


def stored_regimes(
    store: Store,
    workload: str,
    goal: Goal,
    *,
    seed: int = 0,
    first: int | None = None,
    k: int = 10,
    tolerance: float = TOLERANCE,
    law: Law = "knee",
    draws: int = 999,
    confidence_level: float = 0.9,
) -> Regimes:
    """The regimes of a workload of a store.

    Parameters
    ----------
    store : Store
    workload : str
    goal : Goal
    seed : int, default 0
        Of the limits.
    first : int, optional
        Of each study only the search up to its `first`-th COMPLETE trial.
    k, tolerance, law, draws, confidence_level
        As in `regimes_of_trials`.

    Returns
    -------
    Regimes
    """
    return regimes_of_trials(
        search_of(store, workload, goal, first=first),
        rng=_generator(seed, workload, str(goal)),
        workload=workload,
        goal=goal,
        series=f"first {first} trials" if first is not None else "all trials",
        k=k,
        expected=first,
        tolerance=tolerance,
        law=law,
        draws=draws,
        confidence_level=confidence_level,
    )


def published_curves(figures: Sequence[str] = PUBLISHED_FIGURES) -> pd.DataFrame:
    """The published curves of steps to result.

    Parameters
    ----------
    figures : sequence of str, default Figures 1 to 6

    Returns
    -------
    pandas.DataFrame
        A row is a batch size of a series: ``figure``, ``panel_title``, ``series``, ``workload``, ``metric``,
        ``goal``, ``maximize``, ``batch_size``, ``steps`` (absolute, or relative to those at one batch size;
        missing where no trial reached the goal), and ``off_scale``, whether the point lies beyond the axes
        and was extrapolated from the line that leaves them.
    """
    from . import published

    points = pd.concat(
        [
            published.figure_points().assign(off_scale=False),
            published.offscale_points().assign(off_scale=True),
        ]
    )
    points = points[points["figure"].isin(figures) & points["y_name"].str.startswith("steps")]
    points = points.rename(columns={"x": "batch_size", "y": "steps"})
    names = ["figure", "panel_row", "panel_col", "panel_title", "series", "workload", "metric", "goal"]
    names = [*names, "maximize"]
    series = points[names].drop_duplicates()
    studies = published.studies()[["workload", "batch_size"]]
    every = series.merge(studies, on="workload")
    table = every.merge(points[[*names, "batch_size", "steps", "off_scale"]], how="left")
    table["off_scale"] = table["off_scale"].eq(other=True)
    order = ["figure", "panel_row", "panel_col", "series", "batch_size"]
    table = table.sort_values(order, kind="stable", ignore_index=True)
    return table.drop(columns=["panel_row", "panel_col"])


def published_regimes(
    workloads: Collection[str] = (),
    *,
    seed: int = 0,
    goal: Goal | None = None,
    figures: Sequence[str] = PUBLISHED_FIGURES,
    tolerance: float = TOLERANCE,
    law: Law = "knee",
    draws: int = 999,
    confidence_level: float = 0.9,
) -> list[Regimes]:
    """The regimes of every series of the published figures.

    Parameters
    ----------
    workloads : collection of str, optional
        Only these; by default all.
    seed : int, default 0
        Of the limits, which for one seed are the same whichever other series are asked for.
    goal : Goal, optional
        Only series with this metric and threshold.
    figures : sequence of str, default Figures 1 to 6
    tolerance, law, draws, confidence_level
        As in `regimes_of_curve`.

    Returns
    -------
    list of Regimes
        In the order of the figures; one for each series, so that a curve shown twice stands twice.

    Raises
    ------
    UnknownWorkload
        If a workload has no such series in these figures.
    """
    curves = published_curves(figures)
    answers = []
    for key, curve in curves.groupby(["figure", "panel_title", "series", "workload"], sort=False):
        figure, title, series, workload = map(str, key)
        one = curve.iloc[0]
        other_goal = goal is not None and (goal.metric, goal.threshold) != (one["metric"], one["goal"])
        if other_goal or (workloads and workload not in workloads):
            continue
        found = regimes_of_curve(
            curve,
            rng=_generator(seed, figure, title, series, workload, str(one["goal"])),
            workload=workload,
            goal=Goal(one["metric"], float(one["goal"]), bool(one["maximize"])),
            series=f"{title}: {series}" if series else title,
            figure=figure,
            tolerance=tolerance,
            law=law,
            draws=draws,
            confidence_level=confidence_level,
        )
        answers.append(_with_off_scale(found, curve))
    missing = sorted(set(workloads) - {answer.workload for answer in answers})
    if missing:
        about = f" with {goal}" if goal is not None else ""
        raise UnknownWorkload(
            f"Figures {figures[0]} to {figures[-1]} have no series of {', '.join(missing)}{about}; "
            "run 'batchscience fetch' for the raw curves"
        )
    return answers


def _generator(seed: int, *names: str) -> np.random.Generator:
    """A generator of its own for each name, so that no answer depends on which others are asked for."""
    digest = hashlib.sha256("\0".join(names).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def _with_off_scale(answer: Regimes, curve: pd.DataFrame) -> Regimes:
    outside = curve.loc[curve["off_scale"], "batch_size"]
    if not len(outside):
        return answer
    note = f"the point at batch size {outside.iloc[0]:,} lies beyond the published axis and is extrapolated"
    return dataclasses.replace(answer, warnings=(*answer.warnings, note))
