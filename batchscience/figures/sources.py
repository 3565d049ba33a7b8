"""The numbers of a panel: what a source of them gives, and the source of the published points."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import pandas as pd

from .. import published
from ..errors import BatchScienceError
from ..goals import Goal
from ..paper import Panel, Series
from .panels import LINEAR_HEURISTIC, PERFECT_SCALING, SQUARE_ROOT_HEURISTIC


class NothingToDraw(BatchScienceError):
    """A figure's source holds none of the workloads it shows."""


@dataclass(frozen=True, slots=True)
class PanelTables:
    """What one panel draws.

    Attributes
    ----------
    panel : Panel
        Where it stands, its title, and what it shows.
    points : pandas.DataFrame
        A row is a batch size of a series (or a trial, where the panel shows the trials of one study):
        ``series``, ``workload``, ``metric``, ``goal``, ``batch_size``, ``value`` (missing = not reached),
        and what else is known of it.
    guides : pandas.DataFrame
        A row is an end of a straight line for comparison: ``guide``, ``batch_size``, ``value``.
    notes : tuple of str
        What a reader must know of these numbers.
    more : mapping of str to pandas.DataFrame
        Further tables of the panel, by name.
    """

    panel: Panel
    points: pd.DataFrame
    guides: pd.DataFrame
    notes: tuple[str, ...] = ()
    more: Mapping[str, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scope:
    """The workload that a figure of one workload is to show, and the goal, where somebody chose one."""

    workload: str | None = None
    goal: Goal | None = None


SourceKind = Literal["published", "archive", "shipped"]


class Source(Protocol):
    """Anything that has the numbers of panels."""

    @property
    def kind(self) -> SourceKind:
        """Whether they were read from the published figures or computed from raw curves, and from whose."""

    def prepare(self, panels: Iterable[Panel]) -> None:
        """Do now, together, what `tables` of these panels will need."""

    def tables(self, panel: Panel) -> PanelTables:
        """The numbers of one panel.

        Raises
        ------
        NothingToDraw
            If the source has none of them.
        """


class PublishedPoints:
    """The markers of the published figures, which come with the package."""

    kind: SourceKind = "published"

    @cached_property
    def _points(self) -> pd.DataFrame:
        inside = published.figure_points().assign(off_scale=False)
        outside = published.offscale_points().assign(off_scale=True)
        return pd.concat([inside, outside], ignore_index=True)

    @cached_property
    def _studies(self) -> pd.DataFrame:
        return published.studies()

    def prepare(self, panels: Iterable[Panel]) -> None:
        """Nothing: the points are few."""

    def points(self, panel: Panel) -> pd.DataFrame:
        """The published points of a panel, as `batchscience.published` has them, and ``off_scale``."""
        points = self._points
        return points[
            (points["figure"] == panel.figure)
            & (points["panel_row"] == panel.row)
            & (points["panel_col"] == panel.column)
        ]

    def tables(self, panel: Panel) -> PanelTables:
        """The published points of a panel, and the batch sizes that have none.

        Raises
        ------
        NothingToDraw
            For Figures 9 and 10, which show single trials.
        """
        found = self.points(panel)
        if len(found) and not set(found["metric"]) & {series.metric for series in panel.series}:
            raise NothingToDraw(
                f"{panel.title}: the published points are on validation metrics; others need the raw curves"
            )
        if found.empty:
            raise NothingToDraw(
                f"Figure {panel.figure} shows single trials, which only the raw curves hold; "
                "run 'batchscience fetch' first"
            )
        parts, notes = [], []
        for series in panel.series:
            rows = found[found["series"] == series.label]
            goal = series.published_goal
            if series.notebook_goal is not None and series.goal is not None:
                notes.append(
                    f"{panel.title}: the published points belong to {goal}, by a slip of the released "
                    f"notebook; the goal elsewhere is {series.goal.threshold:g}"
                )
            part = pd.DataFrame(
                {
                    "batch_size": rows["x"].to_numpy(),
                    "value": rows["y"].to_numpy(),
                    "rel_uncertainty": rows["y_rel_uncertainty"].to_numpy(),
                    "off_scale": rows["off_scale"].to_numpy(),
                }
            )
            if panel.quantity != "best_value":
                expected = self._expected(panel, series)
                part = part.merge(pd.DataFrame({"batch_size": expected}), on="batch_size", how="outer")
            parts.append(
                labelled(part.sort_values("batch_size"), panel, dataclasses.replace(series, goal=goal))
            )
        points = pd.concat(parts, ignore_index=True)
        if points["off_scale"].fillna(value=False).astype(bool).any():
            notes.append(
                "points beyond the limits of the published axes are extrapolated from the slope of their line"
            )
        return PanelTables(panel, points, guides(panel, points), tuple(notes))

    def _expected(self, panel: Panel, series: Series) -> list[int]:
        """The batch sizes that the series should have: its studies, or where it has a best value."""
        if series.label_smoothing is not None:
            points = self._points
            same = (points["figure"] == panel.figure) & (points["series"] == series.label)
            return sorted(points.loc[same, "x"].unique().tolist())
        studies = self._studies
        return sorted(studies.loc[studies["workload"] == series.workload, "batch_size"].tolist())


def labelled(part: pd.DataFrame, panel: Panel, series: Series) -> pd.DataFrame:
    """The points of one series with the columns that say what they are."""
    goal = series.goal
    return part.assign(
        # Named where the notebook names it, or where several share a panel.
        series="" if len(panel.series) == 1 else series.label,
        workload=series.workload,
        metric=series.metric,
        goal=goal.threshold if goal is not None and panel.quantity != "best_value" else np.nan,
    ).reset_index(drop=True)


def guides(panel: Panel, points: pd.DataFrame) -> pd.DataFrame:
    """The straight lines of a panel: perfect scaling, or the heuristics for the learning rate.

    Notes
    -----
    Perfect scaling starts from the first batch size of its series that has a value, or passes through 1
    at the batch size that normalises the panel.
    """
    exponents: dict[str, float] = {}
    label = panel.dashed
    if panel.quantity == "effective_learning_rate":
        exponents, label = {LINEAR_HEURISTIC: 1.0, SQUARE_ROOT_HEURISTIC: 0.5}, panel.series[0].label
    elif panel.dashed is not None and panel.quantity in ("steps", "relative_steps"):
        exponents = {PERFECT_SCALING: -1.0}
    if len(panel.series) == 1:
        label = ""
    rows: list[tuple[str, float, float]] = []
    if not exponents:
        return no_guides()
    known = points[(points["series"] == label) & points["value"].notna()].sort_values("batch_size")
    if len(known):
        size, value = float(known["batch_size"].iloc[0]), float(known["value"].iloc[0])
        if panel.normalized_at is not None:
            size, value = float(panel.normalized_at), 1.0
        ends = (float(points["batch_size"].min()), float(points["batch_size"].max()))
        for name, exponent in exponents.items():
            rows += [(name, end, value * (end / size) ** exponent) for end in ends]
    return pd.DataFrame(rows, columns=["guide", "batch_size", "value"])


def no_guides() -> pd.DataFrame:
    """The table of a panel without straight lines for comparison."""
    return pd.DataFrame({"guide": [], "batch_size": [], "value": []})
