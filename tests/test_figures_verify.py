"""Verification: an archive that was made to hold the published answers agrees with them, another does not."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from batchscience import paper, published
from batchscience.cli import app
from batchscience.errors import BatchScienceError
from batchscience.figures.verify import summary, verify, worst_offenders
from batchscience.ingest import ingest
from batchscience.simulate import simulate
from batchscience.store import Store

STEPS = [f"figure_0{i}" for i in range(1, 8)]


@pytest.fixture(scope="module")
def published_store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Studies whose best trials show the published numbers of Figures 1 to 7."""
    folder = tmp_path_factory.mktemp("published")
    workloads = {s.workload for panel in paper.PANELS if panel.figure in "1234567" for s in panel.series}
    simulate(
        folder / "archive.tar", trials=12, evaluations=25, answers="published", workloads=sorted(workloads)
    )
    ingest(folder / "archive.tar", folder / "tables")
    return Store(folder / "tables")


@pytest.fixture(scope="module")
def agreement(published_store: Store) -> pd.DataFrame:
    return verify(published_store, STEPS)


def test_the_published_numbers_agree_with_themselves(agreement: pd.DataFrame) -> None:
    assert worst_offenders(agreement).empty
    assert agreement["agrees"].dropna().all()


def test_every_published_point_is_compared_but_those_beyond_the_axes(agreement: pd.DataFrame) -> None:
    points = published.figure_points()
    shown = points[points["figure"].isin(list("1234567"))]
    compared = agreement[agreement["agrees"].notna()]
    assert compared["published"].notna().sum() == len(shown)
    left = agreement[agreement["agrees"].isna()]
    assert set(left["remark"]) == {"beyond the published axis"}
    off_scale = published.offscale_points()
    assert len(left) == len(off_scale[off_scale["figure"].isin(list("1234567"))])


def test_a_batch_size_that_neither_reached_agrees(agreement: pd.DataFrame) -> None:
    row = agreement[(agreement["figure"] == "4") & (agreement["series"] == "Momentum")].set_index(
        "batch_size"
    )
    assert pd.isna(row.loc[1, "computed"])
    assert pd.isna(row.loc[1, "published"])
    assert bool(row.loc[1, "agrees"])


def test_a_difference_is_relative_and_held_against_the_uncertainty_of_the_reading(
    agreement: pd.DataFrame,
) -> None:
    compared = agreement[agreement["agrees"].notna() & agreement["published"].notna()]
    difference = (compared["computed"] / compared["published"] - 1).abs()
    assert difference.tolist() == pytest.approx(compared["relative_difference"].tolist())
    assert (compared["relative_difference"] <= compared["uncertainty"]).all()


def test_figure_8_is_compared_at_the_goal_of_the_notebook(simulated_store: Store) -> None:
    table = verify(simulated_store, ["figure_08"])
    fashion = table[table["workload"].str.startswith("fashion")]
    goal = paper.FIGURE_8[1].series[0]
    assert goal.published_goal != goal.goal
    assert fashion["computed"].notna().sum() > 0
    assert len(fashion) == 9


def test_other_numbers_disagree_and_the_worst_come_first(simulated_store: Store) -> None:
    table = verify(simulated_store, ["figure_01", "figure_10"])
    counts = summary(table).set_index("figure")
    assert counts.loc["1", "points"] == len(published.figure_points().query("figure == '1'"))
    assert counts.loc["1", "disagree"] > 50
    worst = worst_offenders(table, 5)
    assert len(worst) == 5
    ratio = worst["relative_difference"] / worst["uncertainty"]
    assert ratio.fillna(float("inf")).is_monotonic_decreasing
    assert set(worst["remark"]) <= {
        "differs by more than the uncertainty of the reading",
        "not reached, but there is a published point",
        "another trial is the best",
    }


def test_what_the_tables_lack_is_neither_right_nor_wrong(simulated_archive: Path, tmp_path: Path) -> None:
    ingest(simulated_archive, tmp_path, workloads=["imagenet/vgg_11/*"])
    table = verify(Store(tmp_path), ["figure_01", "figure_09a"])
    absent = table[table["workload"] != "imagenet/vgg_11/nesterov_momentum"]
    assert absent["agrees"].isna().all()
    assert set(absent["remark"]) == {"the workload is not in the tables", "the study is not in the tables"}


def test_only_figures_of_the_paper_are_verified(simulated_store: Store) -> None:
    with pytest.raises(BatchScienceError, match="no figure 'figure_99'"):
        verify(simulated_store, ["figure_99"])
    with pytest.raises(BatchScienceError, match="useful_ranges is no figure of the paper"):
        verify(simulated_store, ["useful_ranges"])


# -- the command line


def run(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.stdout, result.stderr


def test_verify_exits_0_where_all_agree(published_store: Store) -> None:
    code, out, err = run("figures", "--verify", "figure_01", "figure_02", "--data", published_store.path)
    assert code == 0
    assert "255 points agree, 0 do not, 0 not compared" in err
    assert "figure" in out


def test_verify_exits_1_and_names_the_worst_where_some_disagree(simulated_store: Store) -> None:
    code, out, err = run("figures", "--verify", "figure_01", "--data", simulated_store.path)
    assert code == 1
    assert "differs by more than the uncertainty" in out
    assert "do not" in err


def test_the_command_lists_figures_and_draws_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("figures", "--list")
    assert code == 0
    assert "figure_09b" in out
    assert not list(tmp_path.iterdir())


def test_one_failed_figure_leaves_the_others_and_exit_code_1(tmp_path: Path) -> None:
    code, _, err = run(
        "figures", "figure_09a", "figure_05", "--source", "published", "--format", "svg", "--out", tmp_path
    )
    assert code == 1
    assert "figure_09a: not drawn: Figure 9a shows single trials" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure_05.json", "figure_05.svg"]


def test_the_figures_of_one_workload_are_drawn_by_its_name(simulated_store: Store, tmp_path: Path) -> None:
    arguments = ("--data", simulated_store.path, "--format", "svg", "--out", tmp_path)
    code, _, _ = run("figures", "--workload", "mnist/fc_1024/sgd", *arguments)
    assert code == 0
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        "isolation_mnist-fc_1024-sgd.svg",
        "workload_mnist-fc_1024-sgd.svg",
    ]


def test_a_goal_needs_a_metric_too(simulated_store: Store, tmp_path: Path) -> None:
    code, _, err = run(
        "figures", "--workload", "mnist/fc_1024/sgd", "--goal", "0.1", "--data", simulated_store.path
    )
    assert code == 2
    assert "give both --metric and --goal" in err


def test_the_report_command_writes_one_file(simulated_store: Store, tmp_path: Path) -> None:
    out = tmp_path / "there" / "report.html"
    code, _, err = run("report", "mnist/fc_1024/sgd", "--data", simulated_store.path, "--out", out)
    assert code == 0
    assert str(out) in err
    assert [path.name for path in out.parent.iterdir()] == ["report.html"]
