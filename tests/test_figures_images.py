"""A few panels and figures as images; elsewhere artists are looked at, not pixels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from batchscience.figures import FIGURES, panels
from batchscience.figures.drawing import _module, laid_out, tables_of
from batchscience.figures.sheet import Cell, sheet
from batchscience.figures.sources import PublishedPoints
from batchscience.figures.style import STYLES, StyleName

# Half a grey level on average lets fonts be hinted otherwise, and no line move.
image = pytest.mark.mpl_image_compare(
    baseline_dir="baseline", style="default", savefig_kwargs={"dpi": 60}, tolerance=3, deterministic=True
)


def one(draw: Callable[[Axes], None], title: str = "Title") -> Figure:
    with STYLES["paper"].applied():
        return laid_out(
            sheet([Cell(title, draw)], columns=1, style=STYLES["paper"], note="Note.", narrow=True)
        )


def whole(name: str, style: StyleName = "paper") -> Figure:
    with STYLES[style].applied():
        tables = tables_of(FIGURES[name], PublishedPoints())
        figure: Figure = _module(FIGURES[name]).draw(tables, kind="published", style=STYLES[style])
        return laid_out(figure)


@image
def test_series_with_bands_gaps_and_a_guide() -> Figure:
    sizes = [1, 2, 8, 32, 100, 1000]
    table = pd.concat(
        [
            pd.DataFrame(
                {
                    "series": name,
                    "batch_size": sizes,
                    "value": [start / size + floor for size in sizes],
                    "low": [0.8 * (start / size + floor) for size in sizes],
                    "high": [1.5 * (start / size + floor) for size in sizes],
                }
            )
            for name, start, floor in (("SGD", 1000, 40), ("Momentum", 900, 10))
        ],
        ignore_index=True,
    )
    table.loc[[0, 9], ["value", "low", "high"]] = math.nan
    guides = pd.DataFrame({"guide": "perfect scaling", "batch_size": [1, 1000], "value": [1000, 1]})
    return one(lambda ax: panels.draw_series(table, ax=ax, guides=guides))


@image
def test_points_beyond_limits_that_are_kept() -> Figure:
    table = pd.DataFrame(
        {
            "series": ["10 epochs"] * 3 + ["20 epochs"] * 3,
            "batch_size": [1, 8, 64] * 2,
            "value": [0.01, 0.02, 0.2, 0.009, 0.012, 0.03],
        }
    )
    return one(
        lambda ax: panels.draw_series(
            table,
            ax=ax,
            y_scale="linear",
            y_limits=(0, 0.04),
            keep_limits=True,
            ordered=True,
            y_label="Error",
        )
    )


@image
def test_trials_by_learning_rate_and_momentum() -> Figure:
    rng = np.random.default_rng(1)
    x, y = 10 ** rng.uniform(-4, -1, 90), 10 ** rng.uniform(-4, 0, 90)
    rate = x / y
    outcome = np.select([rate > 3, rate < 0.03], ["infeasible", "goal not achieved"], "goal achieved")
    best = np.arange(90) == np.flatnonzero(outcome == "goal achieved")[0]
    table = pd.DataFrame({"learning_rate": x, "one_minus_momentum": y, "outcome": outcome, "best": best})
    return one(lambda ax: panels.draw_trials(table, ax=ax, levels=[10.0**i for i in range(-4, 4)]))


@image
def test_learning_curves_with_a_goal() -> Figure:
    steps = np.arange(10, 1000, 10)
    table = pd.concat(
        [
            pd.DataFrame({"series": f"B = {b}", "step": steps, "value": 1 / (1 + steps * b / 500)})
            for b in (1, 8, 64)
        ]
    )
    return one(lambda ax: panels.draw_learning_curves(table, ax=ax, y_label="Error", y_scale="log", goal=0.1))


@image
def test_isolation_with_trials_on_the_edge() -> Figure:
    setting = 10 ** np.linspace(-4, 0, 40)
    value = 0.1 + np.abs(np.log10(setting) + 2) ** 2 / 5
    outcome = np.select([setting > 0.3, value < 0.2], ["infeasible", "goal achieved"], "goal not achieved")
    table = pd.DataFrame({"setting": setting, "value": value, "outcome": outcome})
    table.loc[table["setting"] > 0.6, "value"] = math.nan
    return one(
        lambda ax: panels.draw_isolation(
            table, ax=ax, x_label="learning rate", y_label="Best error", log=True, goal=0.2, y_limits=(0, 0.7)
        )
    )


@image
def test_ranges_of_three_workloads() -> Figure:
    table = pd.DataFrame(
        {
            "label": ["mnist/fc_1024/sgd, 0.03", "a/b/c, 3.9", "never/reached/sgd, 0.1"],
            "smallest": [1, 64, 2],
            "largest": [65536, 8192, 512],
            "perfect_to": [16, 8192, math.nan],
            "perfect_censored": [False, True, False],
            "useful_to": [1024, 8192, math.nan],
            "useful_censored": [False, True, False],
        }
    )
    return one(lambda ax: panels.draw_ranges(table, ax=ax))


@image
def test_figure_4() -> Figure:
    return whole("figure_04")


@image
def test_figure_7() -> Figure:
    return whole("figure_07")


@image
def test_figure_8() -> Figure:
    return whole("figure_08")


@image
def test_scaling_regimes() -> Figure:
    return whole("scaling_regimes")


@image
def test_figure_5_for_a_talk() -> Figure:
    return whole("figure_05", "talk")
