"""Panels: each function draws one table on one pair of axes, and computes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_rgba
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray

from . import style
from .style import ANNOTATION, Look, looks

Limits = tuple[float, float]

PERFECT_SCALING = "perfect scaling"
LINEAR_HEURISTIC = "linear scaling heuristic"
SQUARE_ROOT_HEURISTIC = "square root scaling heuristic"
GUIDE_DASHES: Mapping[str, tuple[float, ...]] = {
    PERFECT_SCALING: (5, 2.5),
    LINEAR_HEURISTIC: (5, 2.5),
    SQUARE_ROOT_HEURISTIC: (1.2, 1.6),
}


def draw_series(
    table: pd.DataFrame,
    *,
    ax: Axes,
    guides: pd.DataFrame | None = None,
    styles: Mapping[str, Look] | None = None,
    ordered: bool = False,
    x_label: str = "Batch size",
    y_label: str = "Steps",
    y_scale: Literal["log", "linear"] = "log",
    y_base: int = 2,
    x_limits: Limits | None = None,
    y_limits: Limits | None = None,
    keep_limits: bool = False,
    missing: str = "goal not reached",
) -> None:
    """Draw a quantity against batch size, a line for each series.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a batch size of a ``series``: ``batch_size``, ``value`` (missing = there is none), and
        perhaps ``low`` and ``high``, the limits of a band.  Series are drawn in order of appearance;
        a series named "" has no legend.
    ax : matplotlib.axes.Axes
        Where to draw.
    guides : pandas.DataFrame, optional
        A row is a point of a straight line for comparison: ``guide`` (its name), ``batch_size``,
        ``value``.
    styles : mapping of str to Look, optional
        The look of each series, where panels are to agree; by default in order of appearance.
    ordered : bool, default False
        Whether the series have an order, shown by the lightness of their colours.
    x_label, y_label : str
        Labels of the axes.
    y_scale : {"log", "linear"}
        Scale of the vertical axis.
    y_base : int, default 2
        Base of its ticks if logarithmic.
    x_limits, y_limits : (float, float), optional
        Limits of the axes; widened to hold all data unless `keep_limits`.
    keep_limits : bool, default False
        Keep `y_limits` although points lie outside; a caret on the edge then stands for each.
    missing : str
        What it means when a batch size has no value.

    Notes
    -----
    A batch size without a value interrupts the line; the series' marker stands open on the upper edge,
    and the legend names series and batch sizes.  So nothing leaves the picture unnoticed.
    """
    names = list(dict.fromkeys(table["series"].astype(str)))
    styles = styles or dict(zip(names, looks(len(names), ordered=ordered), strict=True))
    guide_x, guide_y = _numbers(guides, "batch_size"), _numbers(guides, "value")
    x = _numbers(table, "batch_size")
    shown = [_numbers(table, name) for name in ("value", "low", "high")]
    y = np.concatenate([*shown, [] if y_limits is not None else guide_y])
    _scale(ax, "x", _span(np.concatenate([x, guide_x]), x_limits, base=2, keep=False), base=2)
    base = y_base if y_scale == "log" else None
    _scale(ax, "y", _span(y, y_limits, base=base, keep=keep_limits), base=base)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)

    if guides is not None:
        draw_guides(guides, ax=ax)
    gone: list[str] = []
    level = 0
    for name in names:
        rows = table[table["series"].astype(str) == name].sort_values("batch_size", kind="stable")
        look = styles[name]
        sizes, values = _numbers(rows, "batch_size"), _numbers(rows, "value")
        if {"low", "high"} <= set(rows.columns):
            _draw_band(ax, sizes, _numbers(rows, "low"), _numbers(rows, "high"), look)
        ax.plot(
            sizes,
            values,
            color=look.color,
            marker=look.marker,
            linestyle=look.linestyle,
            markeredgecolor="white",
            label=_legend(name) if name else "_nolegend_",
            zorder=3,
        )
        _mark_outside(ax, sizes, values, look)
        lost = sizes[np.isnan(values)]
        if len(lost):
            ax.plot(
                lost,
                np.full(len(lost), 1.0 - 0.06 * level),
                transform=ax.get_xaxis_transform(),
                linestyle="none",
                marker=look.marker,
                markerfacecolor="white",
                markeredgecolor=look.color,
                markeredgewidth=0.8 * _line_width(),
                clip_on=False,
                in_layout=False,
                label=f"_missing {name}",
                zorder=5,
            )
            level = (level + 1) % 4
            where = f"at {sizes_in_words(lost)}"
            gone.append(f"{_legend(name)} {where}" if name else where)
    if gone:
        ax.plot(
            [],
            [],
            linestyle="none",
            marker="o",
            markerfacecolor="white",
            markeredgecolor=ANNOTATION,
            markeredgewidth=0.8 * _line_width(),
            label=f"{missing}: {'; '.join(gone)}",
        )


def draw_guides(guides: pd.DataFrame, *, ax: Axes) -> None:
    """Draw straight lines for comparison (a row is a point: ``guide``, ``batch_size``, ``value``)."""
    for name, points in guides.groupby("guide", sort=False):
        ax.plot(
            _numbers(points, "batch_size"),
            _numbers(points, "value"),
            color=ANNOTATION,
            linewidth=0.8 * _line_width(),
            linestyle=(0, GUIDE_DASHES.get(str(name), (3, 2))),
            label=str(name),
            zorder=2,
        )


OUTCOMES: Mapping[str, tuple[tuple[float, float, float], str]] = {
    "goal achieved": (style.ACHIEVED, "o"),
    "goal not achieved": (style.MISSED, "^"),
    "infeasible": (style.DIVERGED, "x"),
}


GOAL_LABEL = "goal"
BEST_LABEL = "fewest steps to the goal"


def draw_trials(
    table: pd.DataFrame,
    *,
    ax: Axes,
    levels: Sequence[float],
    x_limits: Limits | None = None,
    y_limits: Limits | None = None,
    y: str = "one_minus_momentum",
    y_label: str = "1 − momentum",
    y_base: int = 10,
) -> None:
    """Draw the trials of a study by learning rate and momentum, coloured by their outcome.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a trial: ``learning_rate``, ``one_minus_momentum`` (or another column `y`; where it is
        missing the trial stands on the upper edge), ``outcome`` (a key of `OUTCOMES`) and ``best`` (whether
        it is the one with the fewest steps).
    ax : matplotlib.axes.Axes
        Where to draw.
    levels : sequence of float
        Effective learning rates, learning_rate / (1 − momentum), to draw contours for.
    x_limits, y_limits : (float, float), optional
        Limits of the axes; widened to hold all trials.
    y, y_label : str
        What stands on the vertical axis, which is logarithmic.
    y_base : int, default 10
        Base of its ticks.
    """
    x, heights = _numbers(table, "learning_rate"), _numbers(table, y)
    _scale(ax, "x", _span(x, x_limits, base=10, keep=False), base=10)
    _scale(ax, "y", _span(heights, y_limits, base=y_base, keep=False), base=y_base)
    ax.set_xlabel("Learning rate")
    ax.set_ylabel(y_label)
    ax.grid(visible=False)
    _draw_contours(ax, levels)
    size = _marker_size()
    top = ax.get_ylim()[1]
    for outcome, (color, marker) in OUTCOMES.items():
        rows = table[table["outcome"] == outcome]
        known = _numbers(rows, y)
        on_edge = np.isnan(known)
        ax.plot(
            _numbers(rows, "learning_rate"),
            np.where(on_edge, top, known),
            linestyle="none",
            marker=marker,
            markersize=(0.85 if outcome == "infeasible" else 1.05) * size,
            color=color,
            markeredgecolor=color if outcome == "infeasible" else "black",
            markeredgewidth=0.35 * _line_width(),
            alpha=0.9,
            clip_on=not on_edge.any(),
            label=outcome,
            zorder={"infeasible": 2, "goal not achieved": 3}.get(outcome, 4),
        )
    best = table[table["best"].astype(bool)]
    ax.plot(
        _numbers(best, "learning_rate"),
        _numbers(best, y),
        linestyle="none",
        marker="*",
        markersize=2.9 * size,
        color="#ffe600",
        markeredgecolor="black",
        markeredgewidth=0.6 * _line_width(),
        label=BEST_LABEL,
        zorder=6,
    )


CONTOUR_LABEL = "effective learning rate (powers of ten)"


def _draw_contours(ax: Axes, levels: Sequence[float]) -> None:
    (x_low, x_high), (y_low, y_high) = ax.get_xlim(), ax.get_ylim()
    label = CONTOUR_LABEL
    for level in levels:
        ends = np.array([max(x_low, y_low * level), min(x_high, y_high * level)])
        if ends[0] >= ends[1]:
            continue
        ax.plot(
            ends,
            ends / level,
            color="0.7",
            linewidth=0.6 * _line_width(),
            linestyle="-" if level >= 1 else (0, (4, 2)),
            label=label,
            zorder=1,
        )
        label = "_nolegend_"
        if math.log10(ends[1] / ends[0]) > 0.8:
            ax.annotate(
                _power(10, level),
                (ends[1], ends[1] / level),
                xytext=(-1, -1),
                textcoords="offset points",
                ha="right",
                va="top",
                fontsize=0.75 * _small(),
                color="0.45",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.4},
                zorder=1.5,
            )


REGIME_COLORS: Mapping[str, tuple[float, float, float]] = {
    "perfect scaling regime": style.PERFECT,
    "diminishing returns regime": style.DIMINISHING,
    "maximal data parallelism": style.MAXIMAL,
}


def draw_regimes(
    table: pd.DataFrame,
    spans: pd.DataFrame,
    transitions: pd.DataFrame,
    *,
    ax: Axes,
    guides: pd.DataFrame | None = None,
    **axes: Any,
) -> None:
    """Draw a curve on the background of its three regimes, with the transition points.

    Parameters
    ----------
    table : pandas.DataFrame
        As for `draw_series`.
    spans : pandas.DataFrame
        A row is a regime: ``regime`` (a key of `REGIME_COLORS`), ``low`` and ``high`` batch size.
    transitions : pandas.DataFrame
        A row is a transition point: ``transition`` (its name), ``batch_size``, ``value`` (steps there),
        ``censored`` (whether it lies at this batch size or beyond), and ``low`` and ``high``, its
        limits, missing where there are none.
    ax : matplotlib.axes.Axes
        Where to draw.
    guides : pandas.DataFrame, optional
        As for `draw_series`.
    **axes
        Further arguments of `draw_series`.
    """
    for row in spans.to_dict("records"):
        name = str(row["regime"])
        ax.axvspan(
            row["low"], row["high"], facecolor=REGIME_COLORS[name], edgecolor="none", label=name, zorder=0
        )
    draw_series(table, ax=ax, guides=guides, **axes)
    bottom, top = ax.get_ylim()
    (left, right), room = ax.get_xlim(), 1.3 * _marker_size()
    ax.set_ylim(bottom, top * (top / bottom) ** 0.04)
    for i, row in enumerate(transitions.to_dict("records")):
        size, value, censored = float(row["batch_size"]), float(row["value"]), bool(row["censored"])
        if not (math.isfinite(size) and math.isfinite(value)):
            continue
        low, high = (float(row.get(end, math.nan)) for end in ("low", "high"))
        if math.isfinite(low) and math.isfinite(high):
            ax.plot(
                [low, high],
                [value, value],
                color="black",
                linewidth=0.7 * _line_width(),
                marker="|",
                markersize=1.5 * _marker_size(),
                markeredgewidth=0.7 * _line_width(),
                label="_limits",
                zorder=5,
            )
        ax.plot(
            [size],
            [value],
            linestyle="none",
            marker=">" if censored else "D",
            markersize=1.5 * _marker_size(),
            markerfacecolor="white",
            markeredgecolor="black",
            markeredgewidth=0.8 * _line_width(),
            label="_transition",
            zorder=6,
        )
        # Below the curve, which falls, there is room: to the left of the first point, below the second.
        across = math.log(size / left) / math.log(right / left)
        aligned = "right" if (i == 0 and across > 0.2) or across > 0.8 else "left" if i == 0 else "center"
        ax.annotate(
            f"{'≥ ' if censored else ''}{size:,.0f}",
            (size, value),
            xytext=({"right": -0.8 * room, "left": 0.3 * room}.get(aligned, 0), -room),
            textcoords="offset points",
            ha=aligned,
            va="top",
            fontsize=_small(),
            path_effects=[withStroke(linewidth=1.5 * _line_width(), foreground="white")],
            zorder=7,
        )


CRITICAL_LABEL = "critical batch size, with limits"


def draw_critical_batch_size(table: pd.DataFrame, *, ax: Axes) -> None:
    """Draw the critical batch size and its limits just above the horizontal axis.

    Parameters
    ----------
    table : pandas.DataFrame
        No row, or one: ``batch_size``, ``low`` and ``high`` (missing = beyond the data).
    ax : matplotlib.axes.Axes
        Where to draw.
    """
    left, right = ax.get_xlim()
    for row in table.to_dict("records"):
        size, low, high = (float(row[name]) for name in ("batch_size", "low", "high"))
        ends = [left if math.isnan(low) else low, size, right if math.isnan(high) else high]
        ax.plot(
            ends,
            [0.05, 0.05, 0.05],
            transform=ax.get_xaxis_transform(),
            color="black",
            linewidth=0.7 * _line_width(),
            marker="o",
            markevery=[1],
            markerfacecolor="black",
            markeredgecolor="white",
            label=CRITICAL_LABEL,
            zorder=6,
        )


def draw_ranges(table: pd.DataFrame, *, ax: Axes, label_width: int = 44) -> None:
    """Draw the perfect-scaling and useful ranges of workloads, one below the other.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a workload, from the top down: ``label``, ``smallest`` and ``largest`` batch size
        measured, ``perfect_to`` and ``useful_to`` (missing = not known), and ``perfect_censored`` and
        ``useful_censored`` (whether the true value is at least that).
    ax : matplotlib.axes.Axes
        Where to draw.
    label_width : int, default 44
        Longest label, in characters; longer ones lose their middle.
    """
    at = np.arange(len(table), dtype=float)[::-1]
    columns = ("smallest", "perfect_to", "useful_to", "largest")
    smallest, perfect, useful, largest = (_numbers(table, name) for name in columns)
    _scale(ax, "x", _span(np.concatenate([smallest, largest]), None, base=2, keep=False), base=2)
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.set_yticks(at, [plain(shorten(str(label), label_width)) for label in table["label"]])
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("Batch size")
    width, size = _line_width(), _marker_size()
    blue, orange = looks(2)[0].color, looks(2)[1].color
    ax.hlines(at, smallest, largest, color="0.75", linewidth=0.8 * width, label="measured", zorder=1)
    ax.hlines(at, perfect, useful, color=orange, linewidth=2.2 * width, label="diminishing returns", zorder=2)
    ax.hlines(at, smallest, perfect, color=blue, linewidth=4 * width, label="perfect scaling", zorder=3)
    ends = (("perfect", perfect, blue, "o"), ("useful", useful, orange, "D"))
    for name, value, color, marker in ends:
        censored = table[f"{name}_censored"].fillna(value=False).to_numpy(dtype=bool)
        label = {"perfect": "end of perfect scaling", "useful": "maximum useful batch size"}[name]
        for open_ended in (False, True):
            rows = (censored == open_ended) & ~np.isnan(value)
            if not rows.any():
                continue
            ax.plot(
                value[rows],
                at[rows],
                linestyle="none",
                marker=">" if open_ended else marker,
                markersize=1.5 * size,
                markerfacecolor="white" if open_ended else color,
                markeredgecolor=color if open_ended else "white",
                markeredgewidth=width,
                label="at least this (end of the data)" if open_ended else label,
                zorder=5 if name == "useful" else 4,
            )


def draw_intervals(
    table: pd.DataFrame,
    *,
    ax: Axes,
    x_label: str,
    styles: Mapping[str, Look],
    legend: bool = True,
    absent: str = "not determined",
) -> None:
    """Draw numbers with their limits, one below the other.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a number: ``label`` (rows of one label stand together, from the top down), ``series``,
        ``value`` (missing = not known), ``low`` and ``high`` (missing = there is no such limit, and the line
        runs to the edge), and ``text`` to stand above it.
    ax : matplotlib.axes.Axes
        Where to draw.
    x_label : str
        Label of the horizontal axis, which is logarithmic.
    styles : mapping of str to Look
        The look of each series.
    legend : bool, default True
        Whether the series are to be explained.
    absent : str
        What stands in place of a number that is not known.
    """
    labels = list(dict.fromkeys(table["label"].astype(str)))
    value, low, high = (_numbers(table, name) for name in ("value", "low", "high"))
    limits = _span(np.concatenate([value, low, high]), None, base=2, keep=False)
    # Room for the texts beside the numbers.
    wide = (limits[1] / limits[0]) ** 0.08
    left, right = limits[0] / wide, limits[1] * wide
    _scale(ax, "x", (left, right), base=2)
    ax.set_ylim(-0.6, len(labels) - 0.3)
    ax.set_yticks(np.arange(len(labels))[::-1], [plain(label) for label in labels])
    ax.tick_params(axis="y", length=0)
    ax.grid(visible=False, axis="y")
    ax.set_xlabel(x_label)
    named: set[str] = set() if legend else set(styles)
    for label_number, label in enumerate(labels):
        rows = np.flatnonzero(table["label"].astype(str) == label)
        for place, row in enumerate(rows):
            height = (
                len(labels) - 1 - label_number + 0.5 * ((len(rows) - 1) / 2 - place) / max(1, len(rows) - 1)
            )
            series = str(table["series"].iloc[row])
            look = styles[series]
            known = not math.isnan(value[row])
            ends = (left if math.isnan(low[row]) else low[row], right if math.isnan(high[row]) else high[row])
            if known:
                ax.plot(
                    ends,
                    [height, height],
                    color=look.color,
                    linewidth=1.4 * _line_width(),
                    label="_limits",
                    zorder=2,
                )
            ax.plot(
                [value[row]],
                [height],
                linestyle="none",
                marker=look.marker,
                markersize=1.6 * _marker_size(),
                color=look.color,
                markeredgecolor="white",
                label="_more" if series in named else _legend(series),
                zorder=3,
            )
            named.add(series)
            text = str(table["text"].iloc[row]) if known else absent
            if text:
                at = value[row] if known else math.sqrt(left * right)
                across = math.log(at / left) / math.log(right / left)
                ax.annotate(
                    text,
                    (at, height),
                    xytext=(0, 0.9 * _marker_size() if known else 0),
                    textcoords="offset points",
                    ha="left" if across < 0.25 else "right" if across > 0.75 else "center",
                    va="bottom" if known else "center",
                    fontsize=_small(),
                    color=ANNOTATION,
                    zorder=4,
                )


def draw_learning_curves(
    table: pd.DataFrame,
    *,
    ax: Axes,
    y_label: str,
    y_scale: Literal["log", "linear"] = "linear",
    goal: float | None = None,
    styles: Mapping[str, Look] | None = None,
    x_label: str = "Step",
) -> None:
    """Draw the curves of trials, a line for each series, and the goal.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a measurement: ``series`` (in order), ``step`` and ``value``.
    ax : matplotlib.axes.Axes
        Where to draw.
    y_label, x_label : str
        Labels of the axes.
    y_scale : {"log", "linear"}
        Scale of the vertical axis; on a logarithmic one, values that are not positive stand on its edge.
    goal : float, optional
        Where to draw the goal's horizontal line.
    styles : mapping of str to Look, optional
        The look of each series, where panels are to agree.

    Notes
    -----
    Steps are on a logarithmic axis, so a measurement at step 0 is not shown.
    """
    names = list(dict.fromkeys(table["series"].astype(str)))
    styles = styles or dict(zip(names, looks(len(names), ordered=True), strict=True))
    steps = _numbers(table, "step")
    _scale(ax, "x", _span(steps[steps > 0], None, base=10, keep=False), base=10)
    base = 10 if y_scale == "log" else None
    values = np.concatenate([_numbers(table, "value"), [] if goal is None else [goal]])
    _scale(ax, "y", _span(values, None, base=base, keep=False), base=base)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    for name in names:
        look = styles[name]
        rows = table[table["series"].astype(str) == name].sort_values("step", kind="stable")
        x, y = _numbers(rows, "step"), _numbers(rows, "value")
        # An evaluation metric may be missing at other metrics' steps; that is no gap of the curve.
        kept = ~np.isnan(y) & (x > 0)
        ax.plot(
            x[kept],
            np.maximum(y[kept], ax.get_ylim()[0]),
            color=look.color,
            linestyle=look.linestyle,
            linewidth=0.8 * _line_width(),
            marker=look.marker if kept.sum() < 3 else "",
            label=_legend(name),
            zorder=3,
        )
    if goal is not None:
        _draw_goal(goal, ax=ax)


def _draw_goal(goal: float, *, ax: Axes) -> None:
    ax.axhline(
        goal,
        color=ANNOTATION,
        linewidth=0.8 * _line_width(),
        linestyle=(0, (5, 2.5)),
        label=GOAL_LABEL,
        zorder=2,
    )


def draw_isolation(
    table: pd.DataFrame,
    *,
    ax: Axes,
    x_label: str,
    y_label: str,
    log: bool,
    goal: float | None = None,
    maximize: bool = False,
    y_limits: Limits | None = None,
) -> None:
    """Draw the trials of a study by one metaparameter and the best value that each reached.

    Parameters
    ----------
    table : pandas.DataFrame
        A row is a trial: ``setting`` (the metaparameter), ``value`` (the best it reached, missing if it
        diverged before any) and ``outcome`` (a key of `OUTCOMES`).
    ax : matplotlib.axes.Axes
        Where to draw.
    x_label, y_label : str
        Labels of the axes.
    log : bool
        Whether the metaparameter's axis is logarithmic.
    goal : float, optional
        Where to draw the goal's horizontal line.
    maximize : bool, default False
        Whether larger values are better, so that trials without any stand at the bottom.
    y_limits : (float, float), optional
        Limits of the vertical axis; trials outside stand on its edge.
    """
    base = 10 if log else None
    _scale(ax, "x", _span(_numbers(table, "setting"), None, base=base, keep=False), base=base)
    values = _numbers(table, "value")
    _scale(ax, "y", _span(values, y_limits, base=None, keep=y_limits is not None), base=None)
    ax.set_xlabel(x_label)
    ax.set_ylabel(y_label)
    low, high = ax.get_ylim()
    for outcome, (color, marker) in OUTCOMES.items():
        rows = table[table["outcome"] == outcome]
        y = _numbers(rows, "value")
        # On the edge: worse than the axis shows, or diverged before the first measurement.
        y = np.where(np.isnan(y), low if maximize else high, np.clip(y, low, high))
        ax.plot(
            _numbers(rows, "setting"),
            y,
            linestyle="none",
            marker=marker,
            markersize=0.85 * _marker_size(),
            color=color,
            markeredgecolor=color,
            markeredgewidth=0.5 * _line_width(),
            alpha=0.8,
            clip_on=False,
            in_layout=False,
            label=outcome,
            zorder=3,
        )
    if goal is not None:
        _draw_goal(goal, ax=ax)


def draw_absence(text: str, *, ax: Axes) -> None:
    """Say in place of a panel why there is none."""
    ax.set_axis_off()
    ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes, color=ANNOTATION, wrap=True)


def sizes_in_words(sizes: NDArray[np.float64] | Sequence[float]) -> str:
    """Batch sizes as text, the middle of long lists left out.

    Examples
    --------
    >>> sizes_in_words([1, 2048])
    'B = 1, 2,048'
    >>> sizes_in_words([2**i for i in range(10)])
    '10 batch sizes from 1 to 512'
    """
    ordered = sorted(int(size) for size in sizes)
    if len(ordered) > 4:
        return f"{len(ordered)} batch sizes from {ordered[0]:,} to {ordered[-1]:,}"
    return "B = " + ", ".join(f"{size:,}" for size in ordered)


def shorten(text: str, width: int) -> str:
    """The text, or its beginning and end with an ellipsis between.

    Examples
    --------
    >>> shorten("a_very_long_workload_name", 11)
    'a_very_…ame'
    """
    if len(text) <= width:
        return text
    head = 2 * width // 3
    return f"{text[:head]}…{text[len(text) - (width - head - 1) :]}"


_LONGEST_LABEL = 48


def _legend(name: str) -> str:
    # A legend leaves out labels that begin with an underscore.
    return plain(shorten(name, _LONGEST_LABEL)).lstrip("_") or "(no name)"


def plain(text: str) -> str:
    """Text in which a dollar sign is a dollar sign, not the beginning of a formula."""
    return text.replace("$", r"\$")


def _numbers(table: pd.DataFrame | None, column: str) -> NDArray[np.float64]:
    if table is None or column not in table.columns:
        return np.empty(0)
    numbers = table[column].to_numpy(dtype=np.float64, na_value=np.nan)
    # Infinity stands for "not reached" in some tables; it cannot be drawn either.
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _span(
    values: NDArray[np.float64],
    wanted: Limits | None,
    *,
    base: int | None,
    keep: bool,
) -> Limits:
    """Limits that hold the wanted ones and the values, and a margin for the markers at the ends."""
    if keep and wanted is not None:
        return wanted
    numbers = values[np.isfinite(values)]
    if base is not None:
        numbers = numbers[numbers > 0]
    if not len(numbers):
        return wanted or ((1.0, 2.0) if base else (0.0, 1.0))
    low, high = float(numbers.min()), float(numbers.max())
    if wanted is not None:
        low, high = min(low, wanted[0]), max(high, wanted[1])
    if base is None:
        margin = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        return low - margin, high + margin
    ratio = (high / low) ** 0.03 if high > low * (1 + 1e-9) else float(base) ** 0.6
    return low / ratio, high * ratio


def _scale(ax: Axes, name: Literal["x", "y"], limits: Limits, *, base: int | None) -> None:
    """Set scale, limits and ticks of an axis; a base of None is linear."""
    axis: Axis = ax.xaxis if name == "x" else ax.yaxis
    setter = ax.set_xscale if name == "x" else ax.set_yscale
    if base is None:
        setter("linear")
    else:
        setter("log", base=base)
    if name == "x":
        ax.set_xlim(*limits)
    else:
        ax.set_ylim(*limits)
    if base is None:
        axis.set_major_locator(MaxNLocator(5))
        return
    most = 9
    if math.log(limits[1] / limits[0], base) < 1.5:
        # Fewer than two powers to show: plain numbers at a few places.
        axis.set_major_locator(
            LogLocator(base=base, subs=(1.0, 1.25, 1.5, 1.75) if base == 2 else (1.0, 2.0, 5.0))
        )
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    else:
        axis.set_major_locator(LogLocator(base=base, numticks=most))
        axis.set_major_formatter(FuncFormatter(partial(_power, base)))
    axis.set_minor_locator(NullLocator())


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _power(base: int, value: float, _: int | None = None) -> str:
    """A tick label such as 2¹⁰.  In plain characters: formulas take most of the time of a figure."""
    return f"{base}{str(round(math.log(value, base))).translate(_RAISED)}"


def _draw_band(
    ax: Axes, x: NDArray[np.float64], low: NDArray[np.float64], high: NDArray[np.float64], look: Look
) -> None:
    # A limit that the search does not give (it may fail, or has too few trials) is not drawn.
    known = ~(np.isnan(low) | np.isnan(high))
    ax.fill_between(
        x,
        low,
        high,
        where=known.tolist(),
        facecolor=to_rgba(look.color, 0.18),
        edgecolor="none",
        label="_band",
        zorder=1.5,
    )


def _mark_outside(ax: Axes, x: NDArray[np.float64], y: NDArray[np.float64], look: Look) -> None:
    """A caret on the edge of the axes for each point beyond it."""
    bottom, top = ax.get_ylim()
    for outside, edge, marker in ((y > top, 1.0, 6), (y < bottom, 0.0, 7)):
        if outside.any():
            ax.plot(
                x[outside],
                np.full(int(outside.sum()), edge),
                transform=ax.get_xaxis_transform(),
                linestyle="none",
                marker=marker,
                markersize=1.3 * _marker_size(),
                color=look.color,
                clip_on=False,
                in_layout=False,
                label="_outside",
                zorder=5,
            )


def _line_width() -> float:
    return float(rcParams["lines.linewidth"])


def _marker_size() -> float:
    return float(rcParams["lines.markersize"])


def _small() -> float:
    size = rcParams["legend.fontsize"]
    return float(size) if size is not None else 8.0
