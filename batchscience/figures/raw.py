"""The source of panels that computes their numbers from a store of raw curves."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from .. import paper
from ..goals import Goal
from ..layout import COMPLETE, INFEASIBLE
from ..metaparameters import best_trials, metaparameters_in
from ..paper import Panel, Series
from ..quality import best_measurement
from ..results import best_of_by_study, steps_to_goal, steps_to_result
from .sources import NothingToDraw, PanelTables, SourceKind, guides, labelled

if TYPE_CHECKING:
    from ..store import Store

BAND_TRIALS = 10
"""The band around a line of steps is that of a search of so many trials."""

Asked = Literal["steps", "best_value", "trial_values", "best_curves"]


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing to compute from the curves of one workload.

    Attributes
    ----------
    what : str
        "steps": steps to goal of each trial, the diverged ones too.  "best_value": the best value of each
        study within the budget.  "trial_values": the best value of each trial of one study, of whatever
        status.  "best_curves": the curve of the trial with the fewest steps of each study.
    series : Series
        Workload, goal or metric, budget, and which studies and trials.
    first : int, optional
        Of each study only the search up to its so-manieth COMPLETE trial.
    """

    what: Asked
    series: Series
    first: int | None


def asks_of(panel: Panel) -> list[Ask]:
    """What a panel of the paper needs, one for each of its series."""
    what: Asked = "best_value" if panel.quantity == "best_value" else "steps"
    all_trials = panel.figure in paper.ALL_TRIALS
    return [
        Ask(what, series, None if all_trials else paper.trials_used(series.workload))
        for series in panel.series
    ]


@dataclass(frozen=True, slots=True)
class Answer:
    """What was computed for an `Ask`, and what a reader should know of it."""

    table: pd.DataFrame
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class RawCurves:
    """A store of raw curves as a source of panels.

    Parameters
    ----------
    store : Store
        Its tables.

    Notes
    -----
    The measurements of a workload are read once for everything that `prepare_asks` is told of, and let go
    when the answers, which are small, are known.
    """

    store: Store
    _answers: dict[Ask, Answer] = field(default_factory=dict)
    _reasons: dict[Ask, Exception] = field(default_factory=dict)
    _studies: dict[Ask, pd.DataFrame] = field(default_factory=dict)
    _workloads: frozenset[str] | None = None

    @property
    def kind(self) -> SourceKind:
        """Computed from raw curves."""
        return "archive"

    def has(self, workload: str) -> bool:
        """Whether the store holds the workload."""
        if self._workloads is None:
            self._workloads = frozenset(self.store.workloads())
        return workload in self._workloads

    def prepare(self, panels: Iterable[Panel]) -> None:
        """Answer everything that these panels ask, each workload's curves read once."""
        self.prepare_asks([ask for panel in panels for ask in asks_of(panel)])

    def prepare_asks(self, asks: Iterable[Ask]) -> None:
        """Answer these asks, each workload's curves read once; errors wait until the answer is wanted."""
        open_asks = [
            ask for ask in dict.fromkeys(asks) if ask not in self._answers and ask not in self._reasons
        ]
        by_workload: dict[str, list[Ask]] = {}
        for ask in open_asks:
            by_workload.setdefault(ask.series.workload, []).append(ask)
        for workload in sorted(by_workload):
            try:
                self._answer_workload(workload, by_workload[workload])
            except Exception as error:  # noqa: BLE001 - raised by `answer`, for the figures that ask
                # A damaged table of one workload must not stop the figures of the others.
                self._reasons |= {ask: error for ask in by_workload[workload] if ask not in self._answers}

    def answer(self, ask: Ask) -> Answer:
        """The answer to one ask.

        Raises
        ------
        NothingToDraw
            If the store does not hold the workload or its metric.
        """
        if ask not in self._answers and ask not in self._reasons:
            self.prepare_asks([ask])
        if ask in self._reasons:
            raise self._reasons[ask]
        return self._answers[ask]

    def tables(self, panel: Panel) -> PanelTables:
        """Compute the numbers of one panel of the paper.

        Raises
        ------
        NothingToDraw
            If the store holds none of its workloads, or not their metric.
        """
        parts: list[pd.DataFrame] = []
        notes: list[str] = []
        missing: list[NothingToDraw] = []
        for ask in asks_of(panel):
            try:
                answer = self.answer(ask)
            except NothingToDraw as error:
                missing.append(error)
                continue
            table, more = self._points(panel, ask, answer.table)
            parts.append(labelled(table, panel, ask.series))
            notes += [*answer.notes, *more]
        if not parts:
            raise missing[0]
        notes += [str(error) for error in missing]
        points = pd.concat(parts, ignore_index=True)
        return PanelTables(panel, points, guides(panel, points), tuple(dict.fromkeys(notes)))

    def steps(self, series: Series, *, first: int | None) -> pd.DataFrame:
        """Steps to result of each study of a series, with the band of a search of `BAND_TRIALS`.

        Returns
        -------
        pandas.DataFrame
            A row is a study: ``batch_size``, ``value`` (steps, missing = not reached), ``trial``,
            ``after``, ``reached``, ``trials``, ``best_of_k``, ``best_of_low``, ``best_of_high``, ``k``.
        """
        return self._steps(Ask("steps", series, first))

    def _steps(self, ask: Ask) -> pd.DataFrame:
        if ask not in self._studies:
            self._studies[ask] = _steps_table(self.answer(ask).table)
        return self._studies[ask]

    def _points(self, panel: Panel, ask: Ask, table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        series = ask.series
        if panel.quantity == "settings":
            return _outcomes(table, series), []
        if panel.quantity == "best_value":
            return table, []
        steps = self._steps(ask)
        notes = _notes_on_searches(steps, series)
        if panel.quantity == "relative_steps":
            assert panel.normalized_at is not None
            steps, more = _relative(steps, panel.normalized_at, series)
            notes += more
        elif panel.quantity == "effective_learning_rate":
            steps = _with_effective_learning_rate(steps, table)
        return steps, notes

    def _answer_workload(self, workload: str, asks: Sequence[Ask]) -> None:
        if not self.has(workload):
            self._reasons |= {ask: NothingToDraw(f"{workload} is not in the tables") for ask in asks}
            return
        known = set(self.store.metrics(workload))
        for ask in asks:
            if ask.series.metric not in known:
                self._reasons[ask] = NothingToDraw(f"{workload} has no {ask.series.metric} in the tables")
        asks = [ask for ask in asks if ask.series.metric in known]
        if not asks:
            return
        everything = any(ask.what == "trial_values" for ask in asks)
        firsts = [ask.first for ask in asks]
        curves = _Curves(
            self.store,
            workload,
            self.store.measurements(
                workload,
                metrics=sorted({ask.series.metric for ask in asks}),
                status=None if everything else (COMPLETE,),
                first=None if None in firsts else max(first for first in firsts if first is not None),
            ),
        )
        for ask in asks:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                table = curves.answer(ask)
            self._answers[ask] = Answer(table, tuple(str(warning.message) for warning in caught))


class ShippedCurves(RawCurves):
    """The studies that come with the package as a source of panels."""

    __slots__ = ()

    def __init__(self) -> None:
        from ..store import Store

        RawCurves.__init__(self, Store.bundled())

    @property
    def kind(self) -> SourceKind:
        """Trained with this package, and so nothing of the paper."""
        return "shipped"


@dataclass(slots=True)
class _Curves:
    """The measurements of one workload, as long as they are needed."""

    store: Store
    workload: str
    measurements: pd.DataFrame
    _trials: dict[int | None, pd.DataFrame] = field(default_factory=dict)
    _chosen: dict[tuple[int | None, float | None, int | None, bool], NDArray[np.bool_]] = field(
        default_factory=dict
    )

    def answer(self, ask: Ask) -> pd.DataFrame:
        if ask.what == "steps":
            return self.steps(ask)
        if ask.what == "best_value":
            return self.best_values(ask)
        if ask.what == "best_curves":
            return self.best_curves(ask)
        return self.trial_values(ask)

    def trials(self, ask: Ask) -> pd.DataFrame:
        """The trials of any status that an ask is about, with their settings."""
        if ask.first not in self._trials:
            self._trials[ask.first] = self.store.trials(self.workload, status=None, first=ask.first)
        trials = self._trials[ask.first]
        series = ask.series
        if series.batch_size is not None:
            trials = trials[trials["batch_size"] == series.batch_size]
        if series.label_smoothing is not None:
            if "label_smoothing" not in trials.columns:
                return trials.iloc[:0]
            # Written as 0.1 in the files, but 0.1 may come as another nearest float.
            setting = trials["label_smoothing"].to_numpy(dtype=np.float64, na_value=np.nan)
            trials = trials[np.isclose(setting, series.label_smoothing, rtol=1e-6, atol=1e-9)]
        return trials

    def curves(self, ask: Ask, trials: pd.DataFrame, *, complete: bool = True) -> pd.DataFrame:
        """The measurements of these trials (an ask's), only of COMPLETE ones by default."""
        key = (ask.first, ask.series.label_smoothing, ask.series.batch_size, complete)
        if key not in self._chosen:
            wanted = trials[trials["status"] == COMPLETE] if complete else trials
            self._chosen[key] = _rows_of(self.measurements, wanted)
        columns = ["workload", "batch_size", "trial", "step", ask.series.metric]
        chosen = self._chosen[key]
        return self.measurements[columns] if chosen.all() else self.measurements.loc[chosen, columns]

    def steps(self, ask: Ask) -> pd.DataFrame:
        goal = ask.series.goal
        assert goal is not None
        trials = self.trials(ask)
        searched = trials[trials["status"].isin([COMPLETE, INFEASIBLE])]
        found = steps_to_goal(self.curves(ask, trials), goal, ask.series.budget, trials=searched)
        known = searched.drop(columns=["workload", "steps", "other_settings"], errors="ignore")
        return found.drop(columns="workload").merge(known, on=["batch_size", "trial"], how="left")

    def best_values(self, ask: Ask) -> pd.DataFrame:
        series = ask.series
        goal = series.goal or Goal(series.metric, 0.0, maximize=larger_is_better(series.metric))
        studies = None if series.budget is None else self.store.studies(self.workload)
        curves = self.curves(ask, self.trials(ask))
        found = best_measurement(curves, goal, series.budget, studies=studies)
        # A study that trained for less than the budget takes no part, which is not to fail.
        return found[found["value"].notna()].drop(columns=["workload", "covered"]).reset_index(drop=True)

    def trial_values(self, ask: Ask) -> pd.DataFrame:
        metric = ask.series.metric
        trials = self.trials(ask)
        curves = self.curves(ask, trials, complete=False)
        values = curves.groupby(["batch_size", "trial"], sort=False)[metric]
        goal = ask.series.goal
        assert goal is not None
        best = (values.max() if goal.maximize else values.min()).astype("Float64").rename("value")
        table = trials.drop(columns=["workload", "other_settings"], errors="ignore")
        table = table.merge(best.reset_index(), on=["batch_size", "trial"], how="left")
        met = goal.met(table["value"].to_numpy(np.float64, na_value=np.nan))
        outcome = np.where(
            met & (table["status"] == COMPLETE).to_numpy(bool), "goal achieved", "goal not achieved"
        )
        diverged = table["status"].eq(INFEASIBLE).fillna(value=False).to_numpy(bool)
        return table.assign(outcome=np.where(diverged, "infeasible", outcome))

    def best_curves(self, ask: Ask) -> pd.DataFrame:
        steps = self.steps(ask)
        best = _steps_table(steps).dropna(subset=["trial"])
        curves = self.curves(ask, self.trials(ask))
        kept = curves.loc[_rows_of(curves, best.astype({"trial": np.int64}))]
        return kept.rename(columns={ask.series.metric: "value"})[["batch_size", "trial", "step", "value"]]


def _rows_of(measurements: pd.DataFrame, trials: pd.DataFrame) -> NDArray[np.bool_]:
    """Which measurements belong to one of these trials of the same workload."""
    wanted = _codes(trials)
    wanted.sort()
    if not len(wanted):
        return np.zeros(len(measurements), dtype=bool)
    codes = _codes(measurements)
    place = np.minimum(np.searchsorted(wanted, codes), len(wanted) - 1)
    found: NDArray[np.bool_] = wanted[place] == codes
    return found


def _codes(table: pd.DataFrame) -> NDArray[np.int64]:
    # Batch sizes and trial numbers are far below 2^31.
    codes: NDArray[np.int64] = table["batch_size"].to_numpy(np.int64) << 32
    codes |= table["trial"].to_numpy(np.int64)
    return codes


def _steps_table(search: pd.DataFrame) -> pd.DataFrame:
    """A row is a study; `search` is a table of its trials with their steps to goal and status."""
    complete = search[search["status"] == COMPLETE]
    # The trials differ in number between studies; a note says so, in place of the warning.
    result = steps_to_result(complete[["batch_size", "trial", "steps", "after"]], expected=1)
    bands = best_of_by_study(search[["batch_size", "trial", "steps"]], BAND_TRIALS)
    bands = bands.drop(columns="best_of_after", errors="ignore")
    table = bands.merge(result, on="batch_size", how="left").rename(columns={"steps": "value"})
    finite = ["best_of_k", "best_of_low", "best_of_high"]
    # Infinite: a search of so many trials may well fail; zero: too few trials for a lower limit.
    table[finite] = table[finite].replace([np.inf, 0.0], np.nan)
    table["value"] = table["value"].astype("Float64")
    table[["reached", "trials"]] = table[["reached", "trials"]].fillna(0).astype(np.int64)
    return table


def _notes_on_searches(steps: pd.DataFrame, series: Series) -> list[str]:
    expected = paper.trials_used(series.workload)
    if series.label_smoothing is not None or not (steps["trials"] < expected).any():
        return []
    return [f"some studies have fewer than {expected} complete trials"]


def _relative(steps: pd.DataFrame, normalized_at: int, series: Series) -> tuple[pd.DataFrame, list[str]]:
    """Steps divided by those at one batch size; missing where that has none."""
    reference = steps.loc[steps["batch_size"] == normalized_at, "value"].dropna()
    columns = ["value", "best_of_k", "best_of_low", "best_of_high"]
    if reference.empty:
        empty = steps.assign(**dict.fromkeys(columns, np.nan), steps=steps["value"])
        return empty, [
            f"{series.label}: no steps to its goal at batch size {normalized_at:,}, by which they are divided"
        ]
    divided = {name: steps[name] / float(reference.iloc[0]) for name in columns}
    return steps.assign(**divided, steps=steps["value"]), []


def _with_effective_learning_rate(steps: pd.DataFrame, search: pd.DataFrame) -> pd.DataFrame:
    complete = search[search["status"] == COMPLETE]
    settings = complete[["batch_size", "trial", *metaparameters_in(complete)]]
    with warnings.catch_warnings():
        # That the studies differ in their number of trials is among the notes of the panel.
        warnings.simplefilter("ignore", UserWarning)
        best = best_trials(complete[["batch_size", "trial", "steps", "after"]], settings)
    if "effective_learning_rate" not in best.columns:
        best = best.assign(effective_learning_rate=np.nan)
    names = ["batch_size", "effective_learning_rate"]
    names += [name for name in ("learning_rate", "momentum") if name in best.columns]
    known = steps[["batch_size", "value", "trial", "reached", "trials"]].rename(columns={"value": "steps"})
    return known.merge(best[names], on="batch_size", how="left").rename(
        columns={"effective_learning_rate": "value"}
    )


def larger_is_better(metric: str) -> bool:
    """Whether a metric is one to be maximized, judged by its name; errors and losses are not."""
    return any(word in metric for word in ("precision", "accuracy", "recall", "auc", "f1"))


OUTCOME_OF: Mapping[bool, str] = {True: "goal achieved", False: "goal not achieved"}


def _outcomes(search: pd.DataFrame, series: Series) -> pd.DataFrame:
    """A row is a trial of one study, with its settings and what came of it."""
    reached = search["steps"].notna()
    diverged = search["status"] == INFEASIBLE
    outcome = reached.map(OUTCOME_OF).where(~diverged, "infeasible")
    ranked = search[reached].sort_values(["steps", "trial"])
    best = ranked["trial"].iloc[0] if len(ranked) else -1
    momentum = search["momentum"].to_numpy(np.float64, na_value=np.nan)
    return pd.DataFrame(
        {
            "batch_size": search["batch_size"],
            "trial": search["trial"],
            "learning_rate": search["learning_rate"].to_numpy(np.float64, na_value=np.nan),
            "one_minus_momentum": 1 - momentum,
            "steps": search["steps"],
            "outcome": outcome,
            "best": search["trial"] == best,
            "budget_steps": series.budget.last_step(series.batch_size or 1) if series.budget else np.nan,
        }
    )
