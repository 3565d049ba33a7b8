"""What the package says about the paper is what was published, but for the named corrections."""

import itertools

import pandas as pd
import pytest

from batchscience import paper, published
from batchscience.goals import Goal

POINTS = published.figure_points()
OFFSCALE = published.offscale_points()

QUANTITY = {
    "steps": "steps",
    "best_value": "best_objective_value",
    "effective_learning_rate": "learning_rate/(1-momentum)",
}


def quantity(panel: paper.Panel) -> str:
    if panel.quantity == "relative_steps":
        return f"steps/(steps at B={panel.normalized_at})"
    return QUANTITY[panel.quantity]


def test_workloads_are_those_of_the_archive():
    assert [workload.name for workload in paper.WORKLOADS] == sorted(published.studies()["workload"].unique())


def test_no_batch_size_is_larger_than_its_training_set():
    largest = published.studies().groupby("workload")["batch_size"].max()
    sizes = {w.name: w.training_set_size for w in paper.WORKLOADS if w.training_set_size is not None}
    assert len(sizes) > 20
    assert all(largest[name] <= size for name, size in sizes.items())
    # These searches went up to the full data set.
    for name, size in sizes.items():
        if name.startswith("mnist_subsets/"):
            assert largest[name] == size


def test_every_study_has_the_complete_trials_that_its_workload_is_analysed_with():
    studies = published.studies()
    used = studies["workload"].map(paper.trials_used)
    assert (studies["complete"] >= used).all()
    # Where half as many are taken, it is because some study has fewer than 100.
    assert set(studies["workload"][studies["complete"] < 100]) == set(studies["workload"][used == 50])
    assert paper.trials_used("my_data/my_model/adam") == 100
    assert paper.training_set_size("my_data/my_model/adam") is None


def test_panels_and_published_points_are_the_same_series_in_the_same_order():
    expected = [
        (
            panel.figure,
            panel.row,
            panel.column,
            panel.published_title,
            quantity(panel),
            series.label,
            series.workload,
            series.metric,
            None if series.published_goal is None else series.published_goal.threshold,
            series.published_goal.maximize if series.published_goal else False,
        )
        for panel in paper.PANELS
        if panel.quantity != "settings"
        for series in panel.series
    ]
    columns = ["figure", "panel_row", "panel_col", "panel_title", "y_name", "series", "workload", "metric"]
    found = [
        (*row[:-2], None if pd.isna(row[-2]) else row[-2], row[-1])
        for row in POINTS[[*columns, "goal", "maximize"]].drop_duplicates().itertuples(index=False, name=None)
    ]
    assert found == expected


def test_offscale_points_belong_to_series_of_panels():
    series = {
        (panel.figure, panel.row, panel.column, s.label, s.workload, s.metric)
        for panel in paper.PANELS
        for s in panel.series
    }
    columns = ["figure", "panel_row", "panel_col", "series", "workload", "metric"]
    assert set(OFFSCALE[columns].itertuples(index=False, name=None)) <= series


def test_batch_sizes_of_a_panel_are_those_of_the_studies():
    studies = published.studies().groupby("workload")["batch_size"].agg(set)
    points = pd.concat([POINTS, OFFSCALE])
    for panel in paper.PANELS:
        here = points[
            (points["figure"] == panel.figure)
            & (points["panel_row"] == panel.row)
            & (points["panel_col"] == panel.column)
        ]
        for series in panel.series:
            if panel.quantity == "settings":
                assert series.batch_size in studies[series.workload]
                continue
            shown = set(here["x"][(here["series"] == series.label) & (here["workload"] == series.workload)])
            assert shown <= studies[series.workload]
            if panel.quantity == "relative_steps":
                assert panel.normalized_at in shown


def test_published_points_lie_within_the_limits_of_their_axis():
    limited = 0
    for panel in paper.PANELS:
        if panel.y_limits is None or panel.quantity == "settings":
            continue
        low, high = panel.y_limits
        y = POINTS["y"][
            (POINTS["figure"] == panel.figure)
            & (POINTS["panel_row"] == panel.row)
            & (POINTS["panel_col"] == panel.column)
        ]
        # A marker is still seen when its centre lies a little outside.
        assert y.between(low - 0.02 * (high - low), high * 1.02).all(), panel.title
        limited += 1
    assert limited >= 20


def test_scatter_panels_are_the_panels_of_the_stars():
    scatter = [
        (panel.figure, panel.published_title) for panel in paper.PANELS if panel.quantity == "settings"
    ]
    assert scatter == list(published.stars()[["figure", "panel_title"]].itertuples(index=False, name=None))


def test_stars_of_figures_9_lie_where_the_published_steps_say_the_goal_is_reached():
    steps = published.consensus_steps().set_index(["workload", "goal", "batch_size"])["steps"]
    stars = published.stars().set_index(["figure", "panel_title"])["learning_rate"]
    for panel in (*paper.FIGURE_9A, *paper.FIGURE_9B):
        (series,) = panel.series
        needed = steps[series.workload, series.goal.threshold, series.batch_size]
        in_time = needed <= series.budget.last_step(series.batch_size)
        assert in_time == (not pd.isna(stars[panel.figure, panel.title])), panel.title


def test_dashed_lines_belong_to_a_series_of_their_panel():
    for panel in paper.PANELS:
        if panel.dashed is not None:
            assert panel.dashed in [series.label for series in panel.series]
    without = {panel.figure for panel in paper.PANELS if panel.dashed is None}
    assert without == {"2", "7", "8", "9a", "9b", "10", "11"}


def test_corrections_are_the_only_difference_from_the_notebook():
    titles = [panel for panel in paper.PANELS if panel.published_title != panel.title]
    assert [(p.figure, p.row) for p in titles] == [("11", 1), ("11", 1)]
    assert all("Fashion MNIST" in p.title and "fashion_mnist" in p.series[0].workload for p in titles)
    goals = [(p.figure, s) for p in paper.PANELS for s in p.series if s.published_goal != s.goal]
    assert [figure for figure, _ in goals] == ["8"]
    ((_, series),) = goals
    assert series.goal == Goal(paper.ERROR, 0.1)
    assert series.notebook_goal == Goal(paper.ERROR, 0.3)
    assert [c.figure for c in paper.CORRECTIONS if c.changes_numbers] == ["8"]
    assert len(paper.CORRECTIONS) == 4


def test_titles_name_the_data_set_of_their_workload():
    names = {
        "Fashion MNIST": "fashion_mnist",
        "CIFAR-10": "cifar_10",
        "ImageNet": "imagenet",
        "Open Images": "open_images_v4",
        "LM1B": "lm1b",
        "Common Crawl": "common_crawl",
    }
    for panel in paper.PANELS:
        if " on " not in panel.title:
            continue
        data_set = panel.title.split(" on ")[1].removesuffix(" subsets")
        for series in panel.series:
            folders = series.workload.removeprefix("solution_quality/").split("/")
            assert folders[0].removesuffix("_subsets") == names.get(data_set, "mnist"), panel.title


def test_budgets_of_figure_11_grow_along_the_legend():
    for panel in paper.FIGURE_11:
        budgets = [series.budget.steps or series.budget.examples for series in panel.series]
        assert all(earlier < later for earlier, later in itertools.pairwise(budgets))
        assert all((series.budget.steps is not None) == (panel.column == 0) for series in panel.series)


def test_a_series_without_goal_or_metric_is_refused():
    with pytest.raises(ValueError, match="a goal or a metric"):
        paper.Series("5k steps", "mnist/fc_1024/sgd")
