"""The figures of the studies that come with the package: all that was trained, with the tables' numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from batchscience import shipped
from batchscience.errors import StoreMissing
from batchscience.figures import FIGURES, listing, names_of, render, render_all
from batchscience.figures.drawing import _module, tables_of
from batchscience.figures.raw import ShippedCurves
from batchscience.figures.shipped_budgets import budgets
from batchscience.figures.sources import NothingToDraw, PublishedPoints
from batchscience.figures.style import STYLES
from batchscience.goals import Budget
from batchscience.ingest import ingest
from batchscience.layout import Curve, StudyFile, TrialFile, write_study, write_trial
from batchscience.quality import best_measurement
from batchscience.results import search_of, steps_by_batch_size
from batchscience.spaces import Parameter, SearchSpace
from batchscience.store import Store

from .test_figures import assert_tidy

SHIPPED = [name for name, entry in FIGURES.items() if entry.shipped]


@pytest.fixture(scope="module")
def curves() -> ShippedCurves:
    return ShippedCurves()


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them, drawn where there are no other tables."""
    out = tmp_path_factory.mktemp("shipped")
    rendered = render_all(SHIPPED, None, out, formats=("svg",), source="published")
    assert [(one.name, one.error) for one in rendered if one.error] == []
    return out


def panels(folder: Path, name: str) -> list[dict]:  # type: ignore[type-arg]
    found: list[dict] = json.loads((folder / f"{name}.json").read_text("utf-8"))["panels"]  # type: ignore[type-arg]
    return found


def points(folder: Path, name: str) -> pd.DataFrame:
    return pd.concat(
        [
            pd.DataFrame(panel["points"]).assign(column=panel["column"], title=panel["title"])
            for panel in panels(folder, name)
        ]
    )


def test_they_are_drawn_whenever_none_is_named_and_say_what_they_need() -> None:
    assert len(SHIPPED) == 5
    assert set(SHIPPED) <= set(names_of()) & set(names_of(source="published"))
    # Who asks for the archive alone gets nothing else, unless by name.
    assert not set(SHIPPED) & set(names_of(source="archive"))
    assert names_of(SHIPPED, source="archive") == SHIPPED
    table = listing().set_index("name")
    assert set(table.loc[SHIPPED, "needs"]) == {"shipped studies"}


def test_they_need_no_tables_and_are_the_same_beside_others(
    drawn: Path, tmp_path: Path, simulated_store: Store
) -> None:
    render_all(SHIPPED, simulated_store, tmp_path, formats=("svg",))
    for path in sorted(drawn.iterdir()):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name
    assert {json.loads((drawn / f"{name}.json").read_text("utf-8"))["source"] for name in SHIPPED} == {
        "shipped"
    }


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("style", ["paper", "talk"])
def test_they_are_tidy_and_their_notes_say_that_nothing_is_the_papers(
    name: str, style: str, curves: ShippedCurves
) -> None:
    with STYLES[style].applied():  # type: ignore[index]
        tables = tables_of(FIGURES[name], curves)
        figure = _module(FIGURES[name]).draw(tables, kind=curves.kind, style=STYLES[style])  # type: ignore[index]
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    assert_tidy(figure)
    note = " ".join(figure.texts[-1].get_text().split())
    assert "studies trained with this package" in note
    assert "no data of the paper" in note
    assert "Shallue" not in note


@pytest.mark.parametrize("name", SHIPPED)
def test_published_points_are_not_passed_off_as_a_shipped_study(name: str) -> None:
    with pytest.raises(NothingToDraw):
        tables_of(FIGURES[name], PublishedPoints())


# -- the numbers


@pytest.mark.filterwarnings("ignore:.*studies have")  # a shipped search differs in its trials, and says so
def test_the_regimes_show_every_workload_with_the_steps_of_the_results(drawn: Path) -> None:
    store, goals = Store.bundled(), shipped.goals()
    found = points(drawn, "shipped_regimes")
    assert set(found["workload"]) == set(store.workloads())
    for workload, shown in found.groupby("workload"):
        expected = steps_by_batch_size(store, str(workload), goals[str(workload)], first=100)
        assert shown["batch_size"].tolist() == expected["batch_size"].tolist()
        assert shown["value"].astype(float).tolist() == expected["steps"].astype(float).tolist()
        low = expected["best_of_low"].replace([np.inf, 0.0], np.nan).tolist()
        np.testing.assert_array_equal(shown["best_of_low"].astype(float).tolist(), low)
    for panel in panels(drawn, "shipped_regimes"):
        assert len(panel["transitions"]) == 2
        assert {end["guide"] for end in panel["guides"]} == {"perfect scaling"}


def test_the_critical_batch_sizes_of_the_figures_agree(drawn: Path) -> None:
    table = shipped.noise_scale().set_index("workload")
    for panel in panels(drawn, "shipped_regimes"):
        for critical in panel["critical"]:
            row = table.loc[panel["points"][0]["workload"]]
            assert critical["batch_size"] == pytest.approx(row["critical_batch_size"], rel=1e-5)
            low = math.nan if critical["low"] is None else critical["low"]
            assert low == pytest.approx(row["critical_low"], rel=1e-5, nan_ok=True)
    beside = points(drawn, "shipped_optimizers")
    beside = beside[beside["column"] == 1]
    assert len(beside)
    for row in beside.to_dict("records"):
        critical = table.loc[row["workload"], "critical_batch_size"]
        assert row["value"] == pytest.approx(critical, rel=1e-5, nan_ok=True)


def test_optimizers_are_compared_with_the_first_of_their_data_set_and_model(drawn: Path) -> None:
    steps, beside = (points(drawn, "shipped_optimizers").query(f"column == {i}") for i in (0, 1))
    assert set(steps["workload"]) == set(beside["workload"])
    for group in {workload.rsplit("/", 1)[0] for workload in beside["workload"]}:
        rows = beside[beside["workload"].str.startswith(f"{group}/")]
        assert len(rows) > 1
        assert rows["ratio"].iloc[0] == 1
        others = rows.iloc[1:].dropna(subset=["ratio", "ratio_low", "ratio_high"])
        np.testing.assert_allclose(others["ratio"], others["value"] / rows["value"].iloc[0])
        assert (others["ratio_low"] < others["ratio"]).all()
        assert (others["ratio"] < others["ratio_high"]).all()
        assert all(
            f"{ratio:.1f} ×" in text for ratio, text in zip(others["ratio"], others["text"], strict=True)
        )


def test_the_settings_show_every_trial_of_three_batch_sizes_and_the_best_has_the_star(drawn: Path) -> None:
    store, goals = Store.bundled(), shipped.goals()
    found = points(drawn, "shipped_settings")
    assert set(found["workload"]) == set(store.workloads())
    for (workload, size), shown in found.groupby(["workload", "batch_size"]):
        search = search_of(store, str(workload), goals[str(workload)])
        search = search[search["batch_size"] == size].set_index("trial").loc[shown["trial"]]
        steps = search["steps"].astype("Float64").to_numpy(float, na_value=np.nan)
        assert (
            len(shown)
            == (store.trials(str(workload), status=("COMPLETE", "INFEASIBLE"))["batch_size"] == size).sum()
        )
        if np.isnan(steps).all():
            assert not (shown["outcome"] == "goal achieved").any()
            assert not shown["best"].any()
            continue
        within = steps <= shown["budget_steps"].iloc[0]
        diverged = (search["status"] == "INFEASIBLE").to_numpy(bool)
        assert (shown["outcome"] == "goal achieved").tolist() == (within & ~diverged).tolist()
        assert shown["budget_steps"].iloc[0] == 3 * np.nanmin(steps)
        assert shown.loc[shown["best"], "steps"].tolist() == [np.nanmin(steps)]


def test_the_axis_beside_the_learning_rate_is_the_other_metaparameter_or_the_steps(drawn: Path) -> None:
    found = points(drawn, "shipped_settings")
    vertical = found.groupby("workload")["vertical"].agg(set).to_dict()
    for workload, names in vertical.items():
        trials = Store.bundled().trials(workload, status=None)
        if "momentum" in trials:
            assert names == {"one_minus_momentum"}
            smallest = trials["batch_size"].min()
            shown = found[(found["workload"] == workload) & (found["batch_size"] == smallest)]
            assert len(shown)
            known = (
                trials[trials["batch_size"] == smallest].set_index("trial").loc[shown["trial"], "momentum"]
            )
            np.testing.assert_array_equal(shown["one_minus_momentum"].tolist(), (1 - known).tolist())
        elif workload.endswith("/sgd"):
            assert names == {"steps"}


def test_best_values_within_budgets_are_those_of_the_measurements(drawn: Path) -> None:
    store, goals = Store.bundled(), shipped.goals()
    for panel in panels(drawn, "shipped_budgets"):
        shown = pd.DataFrame(panel["points"])
        (workload,) = set(shown["workload"])
        curves = store.measurements(workload, metrics=[goals[workload].metric])
        for label, part in list(shown.groupby("series"))[::3]:
            amount, unit = str(label).replace(",", "").split()
            budget = Budget(**{unit: int(amount)})
            best = best_measurement(curves, goals[workload], budget, studies=store.studies(workload))
            best = best.dropna(subset=["value"])
            assert part["batch_size"].tolist() == best["batch_size"].tolist()
            assert part["value"].tolist() == best["value"].tolist()
            assert len(part) >= min(3, len(store.studies(workload)))


def test_round_budgets_end_where_too_few_studies_trained_for_as_long() -> None:
    assert budgets([100, 100, 99]) == [1, 2, 5, 10, 20, 50]
    assert budgets([100, 100, 100, 3])[-1] == 100
    assert budgets([0, 0, 0]) == []
    assert budgets([]) == []


def test_the_noise_scale_stands_beside_the_critical_batch_size_of_each_workload(drawn: Path) -> None:
    found = points(drawn, "shipped_noise_scale")
    table = shipped.noise_scale().dropna(subset=["noise_scale"]).set_index("workload")
    beside = found[(found["column"] == 1) & found["series"].str.startswith("gradient")].set_index("workload")
    for workload, row in table.iterrows():
        assert beside.loc[workload, "value"] == row["noise_scale"]
        said = float(beside.loc[workload, "text"].removesuffix(" times"))
        assert said == pytest.approx(row["ratio"], rel=0.05)
    steps = found[found["column"] == 0].groupby("workload")["step"].size()
    measured = shipped.noise_scale_by_step().dropna(subset=["noise_scale"])
    assert steps.to_dict() == {
        workload: len(rows[rows["batch_size"] == table.loc[workload, "batch_size"]])
        for workload, rows in measured.groupby("workload")
    }


# -- other studies, and none


@pytest.fixture
def other_studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Studies of a workload that no plan declares, with two batch sizes and a diverged trial."""
    space = SearchSpace(
        (
            Parameter("learning_rate", "DOUBLE", 1e-3, 1.0, "LOG_SCALE"),
            Parameter("weight_decay", "DOUBLE", 1e-6, 1e-2, "LOG_SCALE"),
        )
    )
    for size, steps in ((4, 40), (16, 10)):
        place = tmp_path / "raw" / "mine" / "net_7" / "other" / str(size)
        write_study(
            place,
            StudyFile.of(
                batch_size=size, dataset="mine", model="net_7", optimizer="other", train_steps=80, space=space
            ),
        )
        for trial in range(1, 14):
            settings = {"learning_rate": trial / 14, "weight_decay": 1e-6 * trial}
            file = TrialFile(trial_id=trial, status="COMPLETE", steps=80, parameters=settings)
            curve = Curve([steps, 80], {"val/top1_accuracy": [0.5 + trial / 100, 0.9]})
            if trial == 13:
                file, curve = file.model_copy(update={"status": "INFEASIBLE", "steps": 0}), Curve([], {})
            write_trial(place, file, curve)
    ingest(tmp_path / "raw", tmp_path / "tables")
    store = Store(tmp_path / "tables")
    monkeypatch.setattr(Store, "bundled", classmethod(lambda _: store))
    return store


def test_any_studies_may_take_the_place_of_todays(other_studies: Store, tmp_path: Path) -> None:
    rendered = {one.name: one for one in render_all(SHIPPED, None, tmp_path / "out", formats=("svg",))}
    for name in ("shipped_regimes", "shipped_settings", "shipped_budgets"):
        assert rendered[name].error is None
        assert set(points(tmp_path / "out", name)["workload"]) == {"mine/net_7/other"}
    settings = points(tmp_path / "out", "shipped_settings")
    assert set(settings["vertical"]) == {"weight_decay"}
    assert (settings["outcome"] == "infeasible").sum() == 2
    # There is nothing to compare, and no noise scale.
    for name in ("shipped_optimizers", "shipped_noise_scale"):
        assert isinstance(rendered[name].error, NothingToDraw)


def test_a_package_without_studies_draws_all_other_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_: type[Store]) -> Store:
        raise StoreMissing("the bundled data have no 'studies/tables'")

    monkeypatch.setattr(Store, "bundled", classmethod(missing))
    rendered = render_all(
        ["shipped_regimes", "figure_05", "shipped_budgets"], None, tmp_path, formats=("svg",)
    )
    assert [isinstance(one.error, StoreMissing) for one in rendered] == [True, False, True]
    with pytest.raises(StoreMissing):
        render("shipped_regimes", None, tmp_path)


def test_goals_are_those_of_the_plans() -> None:
    goals = shipped.goals()
    assert set(goals) >= set(Store.bundled().workloads())
    assert all(math.isfinite(goal.threshold) for goal in goals.values())
