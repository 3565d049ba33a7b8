"""Figures: which there are, that each renders from either source, and that their files say what they show."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend

from batchscience import paper, published
from batchscience.errors import BatchScienceError, UnknownWorkload
from batchscience.figures import FIGURES, listing, names_of, render, render_all
from batchscience.figures.drawing import _module, panels_of, tables_of
from batchscience.figures.goal_of_workload import goal_for
from batchscience.figures.raw import RawCurves
from batchscience.figures.report import write_report
from batchscience.figures.sources import NothingToDraw, PublishedPoints
from batchscience.figures.splits import on_split
from batchscience.figures.style import STYLES
from batchscience.goals import Goal
from batchscience.ingest import ingest
from batchscience.layout import Curve, StudyFile, TrialFile, write_study, write_trial
from batchscience.results import steps_by_batch_size
from batchscience.store import Store

MNIST = "mnist/simple_cnn_base/nesterov_momentum"
FROM_POINTS = [name for name, entry in FIGURES.items() if entry.published]
OF_PAPER = [name for name in FIGURES if re.fullmatch(r"figure_\d\d[ab]?", name)]


# -- which figures there are


def test_every_figure_of_the_main_section_is_there() -> None:
    numbers = [f"{i:02}" for i in range(1, 9)] + ["09a", "09b", "10", "11"]
    assert [f"figure_{number}" for number in numbers] == sorted(OF_PAPER)


def test_each_figure_of_the_paper_is_there_on_training_and_test_metrics_too() -> None:
    assert {f"{name}_{split}" for name in OF_PAPER for split in ("train", "test")} <= set(FIGURES)


def test_importing_the_package_or_its_command_line_loads_no_plotting_library() -> None:
    code = (
        "import sys, batchscience.cli, batchscience.figures as f; f.names_of(); f.listing();"
        "sys.exit(bool({'matplotlib', 'seaborn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_drawing_leaves_global_settings_alone(tmp_path: Path) -> None:
    import matplotlib as mpl

    before, backend = dict(mpl.rcParams), mpl.get_backend()
    render("figure_05", None, tmp_path, formats=("svg",))
    assert dict(mpl.rcParams) == before
    assert mpl.get_backend() == backend


def test_the_list_says_which_figures_need_raw_curves() -> None:
    needs = listing().set_index("name")["needs"]
    assert needs["figure_01"] == "published points"
    assert needs["figure_09a"] == "raw curves"


def test_an_unknown_name_is_refused_with_those_that_come_near() -> None:
    with pytest.raises(BatchScienceError, match=r"no figure 'figure_1'.*figure_01"):
        names_of(["figure_1"])


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchScienceError, match=r"no format 'jpg'; choose from pdf, png, svg"):
        render("figure_01", None, tmp_path, formats=("jpg",))  # type: ignore[arg-type]


# -- from the published points


@pytest.fixture(scope="module")
def from_points(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("points")
    rendered = render_all(FROM_POINTS, None, out, formats=("svg", "pdf"))
    assert [(one.name, one.error) for one in rendered if one.error] == []
    return out


def numbers(folder: Path, name: str) -> pd.DataFrame:
    """The points that a figure's JSON holds."""
    contents = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return pd.concat(
        [
            pd.DataFrame(panel["points"]).assign(row=panel["row"], column=panel["column"])
            for panel in contents["panels"]
        ]
    )


@pytest.mark.parametrize("name", [name for name in OF_PAPER if FIGURES[name].published])
def test_the_json_beside_a_figure_holds_every_published_point_of_it(from_points: Path, name: str) -> None:
    number = str(int(name.removeprefix("figure_")))
    points = pd.concat([published.figure_points(), published.offscale_points()])
    points = points[points["figure"] == number]
    drawn = numbers(from_points, name)
    drawn = drawn[drawn["value"].notna()]
    keys = ["row", "column", "workload", "batch_size", "value"]
    expected = points.rename(
        columns={"panel_row": "row", "panel_col": "column", "x": "batch_size", "y": "value"}
    )
    pd.testing.assert_frame_equal(
        drawn[keys].sort_values(keys, ignore_index=True),
        expected[keys].sort_values(keys, ignore_index=True),
        check_dtype=False,
    )


def test_a_second_run_gives_the_same_bytes(from_points: Path, tmp_path: Path) -> None:
    names = ["figure_01", "figure_07", "useful_ranges"]
    render_all(names, None, tmp_path, formats=("svg", "pdf"))
    for path in sorted(tmp_path.iterdir()):
        assert path.read_bytes() == (from_points / path.name).read_bytes(), path.name


def test_files_hold_no_date_and_embed_their_fonts(from_points: Path) -> None:
    pdf = (from_points / "figure_01.pdf").read_bytes()
    assert b"CreationDate" not in pdf
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    svg = (from_points / "figure_01.svg").read_text(encoding="utf-8")
    assert "<dc:date>" not in svg
    assert "<text" not in svg


def test_nothing_temporary_stays_behind(from_points: Path) -> None:
    assert sorted(path.name for path in from_points.iterdir()) == sorted(
        f"{name}.{kind}" for name in FROM_POINTS for kind in ("json", "pdf", "svg")
    )


def unreached(name: str) -> set[tuple[str, int]]:
    source = PublishedPoints()
    tables = [source.tables(panel) for panel in panels_of(FIGURES[name])]
    points = pd.concat([table.points for table in tables])
    missing = points[points["value"].isna()]
    return set(zip(missing["series"], missing["batch_size"].tolist(), strict=True))


def test_batch_sizes_that_reached_no_goal_are_those_without_a_published_point() -> None:
    assert unreached("figure_03") == {("FC-128-128-128", 1), ("Simple CNN Wide", 1)}
    assert unreached("figure_04") == {("Momentum", 1)}
    assert unreached("figure_07") == {
        *(("Label Smoothing = 0.00", size) for size in (128, 16384, 32768, 65536)),
        *(("Label Smoothing = 0.01", size) for size in (128, 16384, 32768)),
    }
    for name in ("figure_01", "figure_02", "figure_05", "figure_06"):
        assert unreached(name) == set()


def test_perfect_scaling_starts_at_the_series_the_paper_names() -> None:
    source = PublishedPoints()
    for panel in paper.PANELS:
        if panel.quantity not in ("steps", "relative_steps") or panel.dashed is None:
            continue
        table = source.tables(panel)
        products = (table.guides["batch_size"] * table.guides["value"]).to_numpy()
        assert products[0] == pytest.approx(products[-1])
        if panel.normalized_at is not None:
            assert products[0] == pytest.approx(panel.normalized_at)
        else:
            first = table.points[table.points["series"].isin([panel.dashed, ""])].iloc[0]
            assert products[0] == pytest.approx(first["batch_size"] * first["value"])


def test_the_panel_of_figure_8_that_shows_another_goal_says_so() -> None:
    notes = [PublishedPoints().tables(panel).notes for panel in paper.FIGURE_8]
    assert "0.3" in notes[1][0]
    assert "0.1" in notes[1][0]
    assert all(not note for i, note in enumerate(notes) if i != 1)


def test_the_fashion_mnist_row_of_figure_11_has_its_own_title() -> None:
    assert [panel.title for panel in paper.FIGURE_11][2:4] == ["Simple CNN on Fashion MNIST"] * 2


def test_figures_9_and_10_say_that_they_need_raw_curves(tmp_path: Path) -> None:
    for name in ("figure_09a", "figure_09b", "figure_10"):
        with pytest.raises(NothingToDraw, match="single trials, which only the raw curves hold"):
            render(name, None, tmp_path)
    assert not list(tmp_path.iterdir())


def test_published_points_are_not_passed_off_as_test_metrics(tmp_path: Path) -> None:
    with pytest.raises(NothingToDraw, match="validation metrics"):
        render("figure_01_test", None, tmp_path)


def drawn(name: str, style: str = "paper") -> Figure:
    with STYLES[style].applied():  # type: ignore[index]
        tables = tables_of(FIGURES[name], PublishedPoints())
        figure: Figure = _module(FIGURES[name]).draw(tables, kind="published", style=STYLES[style])  # type: ignore[index]
        FigureCanvasAgg(figure)
        figure.draw_without_rendering()
    return figure


@pytest.mark.parametrize("name", FROM_POINTS)
@pytest.mark.parametrize("style", ["paper", "talk"])
def test_no_legend_covers_a_panel_and_no_text_leaves_the_figure(name: str, style: str) -> None:
    assert_tidy(drawn(name, style))


def assert_tidy(figure: Figure) -> None:
    """Legends cover no panel, titles overlap nothing, and all text is within the figure."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    legends = [*figure.legends]
    legends += [child for ax in figure.axes for child in ax.get_children() if isinstance(child, Legend)]
    panels = [ax.patch.get_window_extent(renderer) for ax in figure.axes if ax.axison]
    for legend in legends:
        box = legend.get_window_extent(renderer).padded(-1)
        assert not any(box.overlaps(panel) for panel in panels)
    boxes = [ax.title.get_window_extent(renderer) for ax in figure.axes if ax.axison]
    boxes += [legend.get_window_extent(renderer) for legend in legends]
    boxes += [text.get_window_extent(renderer) for text in figure.texts]
    whole = figure.bbox.padded(2)
    assert all(
        whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        for box in boxes
    )
    titles = [ax.title.get_window_extent(renderer) for ax in figure.axes if ax.axison]
    for i, one in enumerate(titles):
        assert not any(one.overlaps(other) for other in titles[i + 1 :])
        assert not any(one.padded(-1).overlaps(panel) for panel in panels)


def test_the_transition_points_are_those_worked_by_hand(from_points: Path) -> None:
    contents = json.loads((from_points / "scaling_regimes.json").read_text(encoding="utf-8"))
    found = {
        panel["title"]: [(p["batch_size"], p["censored"]) for p in panel["transitions"]]
        for panel in contents["panels"]
    }
    assert found == {
        "Simple CNN on MNIST": [(32, False), (32768, False)],
        "Simple CNN on Fashion MNIST": [(8, False), (2048, False)],
        "ResNet-8 on CIFAR-10": [(256, False), (512, False)],
        "ResNet-50 on ImageNet": [(8192, False), (65536, True)],
        "ResNet-50 on Open Images": [(64, False), (16384, False)],
        "Transformer on LM1B": [(128, False), (4096, False)],
        "Transformer on Common Crawl": [(64, False), (4096, False)],
        "VGG-11 on ImageNet": [(1024, False), (32768, False)],
        "LSTM on LM1B": [(16, False), (1024, False)],
    }


def test_every_workload_of_a_published_curve_has_a_row_among_the_ranges(from_points: Path) -> None:
    rows = json.loads((from_points / "useful_ranges.json").read_text(encoding="utf-8"))["panels"][0]["points"]
    points = published.figure_points()
    with_steps = points[points["y_name"].str.startswith("steps")]["workload"].unique()
    assert sorted(row["workload"] for row in rows) == sorted(with_steps)


# -- from raw curves


@pytest.fixture(scope="module")
def from_curves(simulated_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("curves")
    seen: list[tuple[str, int, int]] = []
    rendered = render_all(
        [], simulated_store, out, formats=("svg",), source="archive", on_figure=lambda *at: seen.append(at)
    )
    assert [(one.name, one.error) for one in rendered if one.error] == []
    names = names_of(source="archive")
    assert [name for name, _, _ in seen] == [*names, ""]
    assert [done for _, done, _ in seen] == list(range(len(names) + 1))
    return out


def test_every_usual_figure_renders_from_raw_curves(from_curves: Path) -> None:
    assert {path.stem for path in from_curves.iterdir()} == set(names_of(source="archive"))
    assert set(OF_PAPER) <= {path.stem for path in from_curves.iterdir()}


@pytest.mark.parametrize("name", ["figure_02_test", "figure_07_train", "figure_09b_test", "figure_11_train"])
def test_the_figures_of_the_paper_render_on_other_metrics(
    simulated_store: Store, tmp_path: Path, name: str
) -> None:
    render(name, simulated_store, tmp_path, formats=("svg",))
    metrics = set(numbers(tmp_path, name)["metric"])
    assert metrics
    assert all(metric.startswith(f"{FIGURES[name].split}/") for metric in metrics)


def test_the_steps_drawn_are_those_of_the_results(from_curves: Path, simulated_store: Store) -> None:
    found = numbers(from_curves, "figure_01")
    found = found[found["workload"] == MNIST].set_index("batch_size")
    with pytest.warns(UserWarning, match="fewer than 100 trials"):
        expected = steps_by_batch_size(simulated_store, MNIST, paper.GOALS[MNIST], first=100)
    expected = expected.set_index("batch_size")
    assert found["value"].tolist() == expected["steps"].astype(float).tolist()
    assert found["best_of_k"].fillna(math.inf).tolist() == expected["best_of_k"].tolist()


def test_relative_steps_are_one_at_the_batch_size_they_are_divided_by(from_curves: Path) -> None:
    contents = json.loads((from_curves / "figure_03.json").read_text(encoding="utf-8"))
    for panel, drawn_panel in zip(paper.FIGURE_3, contents["panels"], strict=True):
        for point in drawn_panel["points"]:
            if point["batch_size"] == panel.normalized_at:
                assert point["value"] in (1.0, None)


def test_trials_of_figure_9_are_the_complete_and_infeasible_ones_of_the_study(
    from_curves: Path, simulated_store: Store
) -> None:
    found = numbers(from_curves, "figure_09a")
    workload = paper.FIGURE_9A[0].series[0].workload
    trials = simulated_store.trials(workload, status=("COMPLETE", "INFEASIBLE"))
    for panel in paper.FIGURE_9A:
        size = panel.series[0].batch_size
        shown = found[found["batch_size"] == size]
        assert shown["trial"].tolist() == trials.loc[trials["batch_size"] == size, "trial"].tolist()
        best = shown[shown["best"]]
        reached = shown[shown["outcome"] == "goal achieved"]
        assert len(best) == min(1, len(reached))
        if len(reached):
            assert best["steps"].iloc[0] == reached["steps"].min()


def test_figure_8_shows_the_papers_goal_for_fashion_mnist(from_curves: Path) -> None:
    found = numbers(from_curves, "figure_08")
    assert set(found.loc[found["workload"].str.startswith("fashion"), "goal"]) == {0.1}


def test_best_settings_lie_within_the_limits_of_the_search(from_curves: Path) -> None:
    found = numbers(from_curves, "best_settings")
    known = found[found["value"].notna()]
    assert len(known)
    assert (
        (known["low"] <= known["value"] * (1 + 1e-9)) & (known["value"] <= known["high"] * (1 + 1e-9))
    ).all()


def test_learning_curves_end_below_the_goal_at_the_steps_of_figure_1(from_curves: Path) -> None:
    curves, steps = numbers(from_curves, "learning_curves"), numbers(from_curves, "figure_01")
    one = curves[curves["workload"] == MNIST]
    goal = paper.GOALS[MNIST]
    met = one[goal.met(one["value"].to_numpy(float))].groupby("batch_size")["step"].min()
    wanted = steps[(steps["workload"] == MNIST) & steps["value"].notna()].set_index("batch_size")["value"]
    assert met.astype(float).to_dict() == wanted.to_dict()


def test_isolation_plots_show_every_trial_of_the_study(from_curves: Path, simulated_store: Store) -> None:
    found = numbers(from_curves, "isolation")
    workload = "imagenet/resnet_50/nesterov_momentum"
    trials = simulated_store.trials(workload, status=None)
    counts = trials[trials["learning_rate"].notna()].groupby("batch_size").size()
    for (size, _), shown in found.groupby(["batch_size", "parameter"]):
        assert len(shown) == counts[size]
    assert {"learning_rate", "1 − momentum", "label_smoothing"} <= set(found["parameter"])


def test_a_workload_is_read_once_for_all_figures(
    simulated_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    original = Store.measurements

    def counted(self: Store, workload: str, **options: object) -> pd.DataFrame:
        read.append(workload)
        return original(self, workload, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Store, "measurements", counted)
    names = ["figure_01", "figure_02", "figure_04", "figure_05", "figure_01_test"]
    render_all(names, simulated_store, tmp_path, formats=("svg",), source="archive")
    assert len(read) == len(set(read))
    assert MNIST in read


# -- parts of an archive, and one's own studies


@pytest.fixture(scope="module")
def only_mnist(simulated_archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("only_mnist")
    ingest(simulated_archive, folder, workloads=["mnist/simple_cnn_base/*"])
    return Store(folder)


def test_what_the_tables_lack_is_drawn_from_the_published_points(only_mnist: Store, tmp_path: Path) -> None:
    render("figure_01", only_mnist, tmp_path, formats=("svg",))
    assert json.loads((tmp_path / "figure_01.json").read_text())["source"] == "published"


def test_asked_for_the_archive_a_part_of_it_is_drawn_and_the_rest_named(
    only_mnist: Store, tmp_path: Path
) -> None:
    render("figure_01", only_mnist, tmp_path, formats=("svg",), source="archive")
    contents = json.loads((tmp_path / "figure_01.json").read_text())
    assert contents["source"] == "archive"
    assert len(contents["panels"][0]["points"]) == 10
    assert contents["panels"][3]["notes"] == ["imagenet/resnet_50/nesterov_momentum is not in the tables"]


def test_one_damaged_workload_does_not_stop_the_other_figures(
    simulated_archive: Path, tmp_path: Path
) -> None:
    ingest(simulated_archive, tmp_path / "tables", workloads=["mnist/simple_cnn_base/*", "cifar_10/*"])
    store = Store(tmp_path / "tables")
    (damaged,) = (tmp_path / "tables").rglob("measurements/cifar_10/resnet_8/sgd.parquet")
    damaged.write_bytes(b"not a table")
    rendered = render_all(
        ["figure_04", "figure_02"], store, tmp_path / "out", formats=("svg",), source="archive"
    )
    assert [one.error is None for one in rendered] == [False, True]
    assert (tmp_path / "out" / "figure_02.svg").exists()
    assert not (tmp_path / "out" / "figure_04.svg").exists()


def own_study(folder: Path, name: str, sizes: dict[int, list[float]], *, settings: dict[str, float]) -> None:
    """Two trials at each batch size: one whose accuracy follows the values, one that diverged."""
    for size, values in sizes.items():
        place = folder / name / str(size)
        write_study(place, StudyFile(batch_size=size, dataset="mine", model="tiny", optimizer="adam"))
        steps = [10 * i for i in range(len(values))]
        curve = Curve(steps, {"val/top1_accuracy": values})
        write_trial(
            place, TrialFile(parameters=settings, status="COMPLETE", steps=steps[-1], trial_id=1), curve
        )
        write_trial(
            place,
            TrialFile(parameters=settings, status="INFEASIBLE", steps=0, trial_id=2),
            Curve([], {"val/top1_accuracy": []}),
        )


@pytest.mark.filterwarnings("error")
def test_any_workload_of_ones_own_is_drawn_by_name_with_a_goal_that_all_batch_sizes_reach(
    tmp_path: Path,
) -> None:
    name = "mine/" + "a_very_long_model_name_" * 6 + "/adam"
    sizes = {7: [0.1, 0.5, 0.8], 100: [0.1, 0.7, 0.912], 1000: [0.1, 0.9, 0.95]}
    own_study(tmp_path / "raw", name, sizes, settings={"beta_2": 0.5})
    ingest(tmp_path / "raw", tmp_path / "tables")
    store = Store(tmp_path / "tables")
    goal = goal_for(RawCurves(store), name)
    assert goal == Goal("val/top1_accuracy", 0.799, maximize=True)
    rendered = render_all(["workload"], store, tmp_path / "out", formats=("svg",), workload=name)
    assert rendered[0].error is None
    (contents,) = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")]
    steps = {point["batch_size"]: point["value"] for point in contents["panels"][0]["points"]}
    assert steps == {7: 20, 100: 20, 1000: 10}
    examples = {point["batch_size"]: point["value"] for point in contents["panels"][1]["points"]}
    assert examples == {7: 140, 100: 2000, 1000: 10_000}


def test_a_workload_of_one_batch_size_and_one_trial_is_drawn(tmp_path: Path) -> None:
    own_study(tmp_path / "raw", "mine/tiny/adam", {5: [0.1, 0.4, 0.9]}, settings={"learning_rate": 0.1})
    shutil.rmtree(tmp_path / "raw/mine/tiny/adam/5/2")
    ingest(tmp_path / "raw", tmp_path / "tables")
    goal = Goal("val/top1_accuracy", 0.5, maximize=True)
    paths = render(
        "workload",
        Store(tmp_path / "tables"),
        tmp_path,
        formats=("svg",),
        workload="mine/tiny/adam",
        goal=goal,
    )
    assert [path.name for path in paths] == ["workload_mine-tiny-adam.svg", "workload_mine-tiny-adam.json"]


def test_a_goal_that_no_trial_reaches_is_drawn_as_such(only_mnist: Store, tmp_path: Path) -> None:
    goal = Goal("val/classification_error", 1e-9)
    render("workload", only_mnist, tmp_path, formats=("svg",), workload=MNIST, goal=goal)
    (path,) = tmp_path.glob("*.json")
    contents = json.loads(path.read_text())
    assert all(point["value"] is None for point in contents["panels"][0]["points"])


def test_an_unknown_workload_is_refused_with_those_that_come_near(only_mnist: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownWorkload, match="did you mean mnist/simple_cnn_base/sgd"):
        render("workload", only_mnist, tmp_path, workload="mnist/simple_cnn_base/sg")


def test_a_goal_for_a_workload_is_beaten_by_the_worst_of_its_batch_sizes(only_mnist: Store) -> None:
    raw = RawCurves(only_mnist)
    assert goal_for(raw, MNIST) == paper.GOALS[MNIST]
    with pytest.raises(NothingToDraw, match="is not in the tables"):
        goal_for(raw, "mnist/other/sgd")


# -- other metrics


def test_on_another_split_every_metric_moves_and_the_goal_keeps_its_value() -> None:
    for panel in paper.PANELS:
        moved = on_split(panel, "test")
        for before, after in zip(panel.series, moved.series, strict=True):
            assert after.metric == before.metric.replace("val/", "test/")
            if before.goal is not None:
                assert after.goal is not None
                assert (after.goal.threshold, after.goal.maximize) == (
                    before.goal.threshold,
                    before.goal.maximize,
                )
        assert "Validation" not in moved.title
    assert on_split(paper.FIGURE_1[0], "val") is paper.FIGURE_1[0]


# -- the report


class _Tags(HTMLParser):
    """The open tags, the addresses that a page refers to, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.pictures = 0
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)
        self.pictures += tag == "img"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


@pytest.fixture(scope="module")
def reports(only_mnist: Store, tmp_path_factory: pytest.TempPathFactory) -> dict[str, _Tags]:
    folder = tmp_path_factory.mktemp("reports")
    write_report([MNIST, "lm1b/lstm/nesterov_momentum"], only_mnist, folder / "curves.html")
    write_report(["mnist/fc_128_128_128/sgd"], None, folder / "points.html")
    pages = {}
    for path in folder.iterdir():
        pages[path.stem] = _Tags()
        pages[path.stem].feed(path.read_text(encoding="utf-8"))
    return pages


def test_a_report_is_well_formed_and_needs_no_other_file(reports: dict[str, _Tags]) -> None:
    for page in reports.values():
        assert page.open == []
        assert all(address.startswith(("data:image/svg+xml;base64,", "#")) for address in page.addresses)


def test_a_report_answers_in_words_shows_pictures_and_lists_the_numbers(reports: dict[str, _Tags]) -> None:
    page = reports["curves"]
    assert page.pictures == 3
    assert "useful to" in page.words
    assert "Goal: val/classification_error < 0.01" in page.words
    assert "Best trials" in page.words
    assert "read from Figure 1 of the released notebook" in page.words


def test_a_report_from_published_points_warns_of_what_was_not_reached(reports: dict[str, _Tags]) -> None:
    assert "no trial reached the goal at batch size 1." in reports["points"].words


def test_a_report_on_an_unknown_workload_is_refused(only_mnist: Store, tmp_path: Path) -> None:
    with pytest.raises(UnknownWorkload):
        write_report(["mnist/nothing/sgd"], only_mnist, tmp_path / "report.html")
    with pytest.raises(UnknownWorkload):
        write_report(["mnist/nothing/sgd"], None, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
