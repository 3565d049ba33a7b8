"""A simulated archive has the raw layout, is reproducible, and its truth is true."""

import csv
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import tarfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from batchscience import paper, published
from batchscience.errors import BatchScienceError, UnknownWorkload
from batchscience.layout import RUN_FILE, read_study, read_trial
from batchscience.simulate import (
    DELAY_SCALE,
    LATEST_DELAY,
    REACH_PROBABILITY,
    ROOT,
    KneeLaw,
    simulate,
    truth_path,
)

FEW = ("mnist/fc_1024_1024/sgd", "lm1b/lstm/nesterov_momentum", "open_images_v4/resnet_50/nesterov_momentum")


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three workloads, one for each kind of metric, as a folder."""
    out = tmp_path_factory.mktemp("simulated") / "few"
    simulate(out, workloads=FEW, trials=120, evaluations=40, seed=5)
    return out


@pytest.fixture(scope="module")
def truth(folder):
    return json.loads(truth_path(folder).read_text(encoding="utf-8"))


def study_folders(folder: Path) -> dict[tuple[str, int], Path]:
    found = {}
    for path in (folder / ROOT).rglob("study.json"):
        *workload, batch_size = path.parent.relative_to(folder / ROOT).parts
        found["/".join(workload), int(batch_size)] = path.parent
    return found


def plain_trials(study: Path) -> dict[int, tuple[dict, list[dict[str, str]]]]:
    """Metadata and rows of each trial of a study, read without the package."""
    return {
        int(path.name): (
            json.loads((path / "metadata.json").read_text()),
            list(csv.DictReader((path / "measurements.csv").read_text().splitlines())),
        )
        for path in study.iterdir()
        if path.is_dir()
    }


def plain_crossing(rows: Iterable[dict[str, str]], goal: dict) -> tuple[float, float]:
    """Step before, and step of, the first measurement that meets a goal; infinite if there is none."""
    before = -1.0
    for row in rows:
        value = float(row[goal["metric"]] or "nan")
        if value > goal["threshold"] if goal["maximize"] else value < goal["threshold"]:
            return before, float(row["step"])
        before = float(row["step"])
    return before, math.inf


# --- The truth -------------------------------------------------------------------------------------


def test_truth_of_each_study_is_what_a_plain_loop_over_its_files_finds(folder, truth):
    for (workload, batch_size), study in study_folders(folder).items():
        about = truth["workloads"][workload]
        record = about["batch_sizes"][str(batch_size)]
        trials = plain_trials(study)
        statuses = [metadata["status"] for metadata, _ in trials.values()]
        for status in ("complete", "incomplete", "infeasible"):
            assert statuses.count(status.upper()) == record[status]
        assert sum(len(rows) for _, rows in trials.values()) == record["evaluations"]
        complete = [t for t in sorted(trials) if trials[t][0]["status"] == "COMPLETE"]
        for taken, found in (
            (complete[: about["trials_used"]], record["first_trials"]),
            (complete, record["all_trials"]),
        ):
            crossings = [(plain_crossing(trials[t][1], about["goal"])[1], t) for t in taken]
            reached = [c for c in crossings if math.isfinite(c[0])]
            assert found["trials"] == len(taken)
            assert found["reached"] == len(reached)
            assert (found["steps"], found["trial"]) == (min(reached) if reached else (None, None))


def test_steps_to_goal_follow_the_law_times_a_truncated_exponential(tmp_path):
    # Many trials and narrow gaps between evaluations, for a sharp comparison.
    simulate(tmp_path / "fine", workloads=["mnist/fc_1024/sgd"], trials=300, evaluations=200)
    truth = json.loads(truth_path(tmp_path / "fine").read_text())
    (about,) = truth["workloads"].values()
    pairs = []
    for (_, batch_size), study in study_folders(tmp_path / "fine").items():
        law = about["batch_sizes"][str(batch_size)]["law_steps"]
        for trial in study.glob("*/metadata.json"):
            if json.loads(trial.read_text())["status"] == "COMPLETE":
                header, *rows = trial.with_name("measurements.csv").read_text().splitlines()
                column = header.split(",").index(about["goal"]["metric"])
                # Lazily: most of these many rows come after the crossing.
                before, steps = plain_crossing(
                    (
                        {"step": c[0], about["goal"]["metric"]: c[column]}
                        for c in (r.split(",") for r in rows)
                    ),
                    about["goal"],
                )
                pairs.append((before / law, steps / law))
    before, steps = np.array(pairs).T
    n = len(steps)
    assert n > 2500
    # No trial is faster than the law.
    assert steps.min() >= 1
    for quantile in (0.1, 0.25, 0.5, 0.75, 0.9, 1.0):
        delay = -DELAY_SCALE * math.log1p(quantile * math.expm1(-LATEST_DELAY / DELAY_SCALE))
        p = REACH_PROBABILITY * quantile
        # The crossing itself lies between two measurements.
        surely, perhaps = (steps <= math.exp(delay)).mean(), (before < math.exp(delay)).mean()
        if quantile == 1.0:
            surely = perhaps = np.isfinite(steps).mean()
        error = 3.5 * math.sqrt(p * (1 - p) / n)
        assert surely - error <= p <= perhaps + error, quantile


def test_minimum_over_a_search_follows_the_law_at_every_batch_size(folder, truth):
    for about in truth["workloads"].values():
        for record in about["batch_sizes"].values():
            best = record["all_trials"]["steps"]
            # At least 40 trials reach the goal; the least of their delays is small, and the grid adds a gap.
            gap = 2 * math.exp(LATEST_DELAY) * record["law_steps"] / 40
            assert record["law_steps"] <= best <= 1.15 * record["law_steps"] + 1.2 * gap


def test_transitions_in_the_truth_are_those_of_the_law(truth):
    for about in truth["workloads"].values():
        law = KneeLaw(about["law"]["floor"], about["law"]["critical_batch_size"], about["law"]["sharpness"])
        tolerance = truth["tolerance"]
        end, useful = about["end_of_perfect_scaling"], about["maximum_useful_batch_size"]
        assert end * law.steps(end) == pytest.approx((1 + tolerance) * law.floor * law.critical_batch_size)
        assert law.steps(useful) == pytest.approx((1 + tolerance) * law.floor)
        sizes = sorted(int(b) for b in about["batch_sizes"])
        steps = {b: about["batch_sizes"][str(b)]["law_steps"] for b in sizes}
        assert steps == {b: pytest.approx(law.steps(b)) for b in sizes}
        linear = [b for b in sizes if b * steps[b] <= (1 + tolerance) * sizes[0] * steps[sizes[0]]]
        assert about["perfect_to"] == linear[-1] == sizes[len(linear) - 1]
        flat = [b for b in sizes if steps[b] <= (1 + tolerance) * steps[sizes[-1]]]
        assert about["useful_to"] == flat[0]
        assert about["useful_censored"] == (flat[0] == sizes[-1])
        assert about["perfect_censored"] == (linear[-1] == sizes[-1])


def test_early_trials_lie_near_the_best_effective_learning_rate_inside_the_search_space(folder, truth):
    best_distances, all_distances = [], []
    for (workload, batch_size), study in study_folders(folder).items():
        record = truth["workloads"][workload]["batch_sizes"][str(batch_size)]
        space = read_study(study).space()
        best = record["best_effective_learning_rate"]
        for trial, (metadata, _) in plain_trials(study).items():
            settings = metadata["parameters"]
            assert space.contains(settings)
            rate = settings["learning_rate"] / (1 - settings.get("momentum", 0.0))
            distance = abs(math.log(rate / best))
            all_distances.append(distance)
            if trial == record["all_trials"]["trial"]:
                best_distances.append(distance)
    assert np.median(best_distances) < 0.6 * np.median(all_distances)
    assert max(best_distances) < max(all_distances)


# --- The layout ------------------------------------------------------------------------------------


def test_every_trial_is_read_by_the_layout_and_every_situation_occurs(folder):
    seen = defaultdict(int)
    for (workload, batch_size), study in study_folders(folder).items():
        about = read_study(study)
        assert about.batch_size == batch_size
        assert workload.endswith(f"{about.dataset}/{about.model}/{about.optimizer}")
        assert (about.train_steps == 0) == (workload == "lm1b/lstm/nesterov_momentum")
        assert json.loads((study / RUN_FILE).read_text())["source"] == "simulated, seed 5"
        gaps = set()
        for path in study.iterdir():
            if not path.is_dir():
                continue
            trial = read_trial(path)
            assert not trial.file.unknown()
            seen[trial.file.status] += 1
            steps = list(trial.curve.steps)
            if not steps:
                seen["header only"] += 1
                assert trial.file.status != "COMPLETE"
                assert trial.file.steps == 0
                continue
            assert steps[0] == 0
            assert steps[-1] == trial.file.steps
            if trial.file.status == "COMPLETE":
                assert steps[-1] >= (about.train_steps or 0)
                gaps |= {round((b - a) / steps[-1], 3) for a, b in itertools.pairwise(steps)}
            for name, values in trial.curve.metrics.items():
                numbers = [v for v in values if v is not None]
                seen["empty cell"] += len(values) - len(numbers)
                if not all(math.isfinite(v) for v in numbers):
                    seen["nan or inf"] += 1
                    assert trial.file.status == "INFEASIBLE"
                    assert all(math.isfinite(v) for v in numbers[:-1])
                if name == "val/classification_error":
                    finite = [v for v in numbers if math.isfinite(v)]
                    assert all(v == round(v * 5000) / 5000 for v in finite)
        seen["uneven gaps"] += len(gaps) > 2
    situations = ("COMPLETE", "INCOMPLETE", "INFEASIBLE", "header only", "nan or inf", "empty cell")
    assert all(seen[situation] for situation in (*situations, "uneven gaps")), dict(seen)


def test_metrics_are_those_of_the_data_set(folder):
    expected = {
        "mnist/fc_1024_1024/sgd": ["cross_entropy_error", "classification_error"],
        "lm1b/lstm/nesterov_momentum": ["cross_entropy_error"],
        "open_images_v4/resnet_50/nesterov_momentum": ["cross_entropy_error", "average_precision"],
    }
    for (workload, _), study in study_folders(folder).items():
        names = [f"{split}/{metric}" for split in ("train", "val", "test") for metric in expected[workload]]
        with (study / "1" / "measurements.csv").open() as file:
            assert file.readline().strip().split(",") == ["step", *names]


def test_a_tar_holds_the_same_files_as_the_folder_with_long_names_in_gnu_entries(tmp_path):
    wanted = {
        "workloads": ["imagenet_subsets/imagenet_half_classes/*"],
        "trials": 6,
        "evaluations": 9,
        "seed": 2,
    }
    simulate(tmp_path / "a.tar", **wanted)
    simulate(tmp_path / "folder", **wanted)
    with tarfile.open(tmp_path / "a.tar") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "extracted", filter="data")
    assert max(len(name) for name in names) > 100
    assert b"././@LongLink" in (tmp_path / "a.tar").read_bytes()
    assert tree(tmp_path / "extracted") == tree(tmp_path / "folder")
    # The trials of a study come in no order, and so do the files of a trial.
    study = f"{ROOT}/imagenet_subsets/imagenet_half_classes/resnet_50/nesterov_momentum/64/"
    trials = [name for name in names if name.startswith(study) and name.endswith("metadata.json")]
    assert sorted(trials) != trials
    ends = [name.rsplit("/", 1)[1] for name in names if name.endswith((".json", ".csv"))]
    assert {"metadata.json", "measurements.csv"} <= {
        first for first, second in itertools.pairwise(ends) if first != second
    }


# --- Reproducibility -------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tar"])
def test_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path, suffix):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        simulate(
            tmp_path / f"{name}{suffix}", workloads=["mnist/fc_64*"], trials=8, evaluations=10, seed=seed
        )
    archives = [digest(tmp_path / f"{name}{suffix}") for name in "abc"]
    assert archives[0] == archives[1] != archives[2]
    truths = [digest(tmp_path / f"{name}{suffix}.truth.json") for name in "abc"]
    assert truths[0] == truths[1] != truths[2]
    assert len(list(tmp_path.iterdir())) == 6


def test_a_study_is_the_same_whichever_others_are_simulated(tmp_path):
    simulate(tmp_path / "one", workloads=["mnist/fc_1024/sgd"], trials=6, evaluations=10)
    simulate(tmp_path / "many", workloads=["mnist/fc_*"], trials=6, evaluations=10)
    one, many = tree(tmp_path / "one"), tree(tmp_path / "many")
    assert len(many) > len(one) > 0
    assert one == {name: many[name] for name in one}


def test_without_a_parallel_compressor_the_contents_are_the_same(tmp_path, monkeypatch):
    wanted = {"workloads": ["mnist/fc_1024/sgd"], "trials": 6, "evaluations": 10}
    simulate(tmp_path / "any.tar.bz2", **wanted)
    monkeypatch.setenv("PATH", str(tmp_path))
    simulate(tmp_path / "python.tar.bz2", **wanted)
    for name in ("any", "python"):
        with tarfile.open(tmp_path / f"{name}.tar.bz2") as archive:
            archive.extractall(tmp_path / name, filter="data")
    assert tree(tmp_path / "any") == tree(tmp_path / "python")


# --- Size ------------------------------------------------------------------------------------------


def test_a_small_scale_keeps_every_study_and_its_share_of_the_evaluations(tmp_path):
    told = []
    result = simulate(
        tmp_path / "s.tar", scale=0.002, on_progress=lambda done, every: told.append((done, every))
    )
    assert told == [(i, 454) for i in range(1, 455)]
    truth = json.loads(result.truth.read_text())
    studies = published.studies()
    for row in studies.itertuples():
        record = truth["workloads"][row.workload]["batch_sizes"][str(row.batch_size)]
        assert record["complete"] >= 3
        assert (record["incomplete"] > 0) == (row.incomplete > 0)
        assert (record["infeasible"] > 0) == (row.infeasible > 0)
    assert result.studies == 454
    assert result.evaluations == pytest.approx(0.002 * 71_638_836 / 3, rel=0.1)


def test_at_scale_one_there_are_the_published_trials():
    from batchscience.simulate import _expected_rows, _plans, _task

    plans = _plans(1.0, 0, None, None, None, "law")
    counts = {
        (p.workload, p.batch_size): [p.counts.complete, p.counts.incomplete, p.counts.infeasible]
        for p in plans.values()
    }
    studies = published.studies()
    assert counts == {
        (row.workload, row.batch_size): [row.complete, row.incomplete, row.infeasible]
        for row in studies.itertuples()
    }
    rows = sum(_expected_rows(p.counts) * p.evaluations for p in plans.values())
    assert rows == pytest.approx(71_638_836 / 3, rel=0.01)
    assert all(_task(p.workload).metrics for p in plans.values())


def peak_memory(tmp_path: Path, name: str, workloads: str) -> tuple[int, int]:
    """Peak memory of a simulation in a process of its own, and the bytes that it wrote."""
    code = (
        "import resource, sys; from batchscience.simulate import simulate; "
        f"simulate({str(tmp_path / name)!r}, scale=0.02, workloads=[{workloads!r}]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout), (tmp_path / name).stat().st_size


def test_memory_does_not_grow_with_the_archive(tmp_path):
    small, _ = peak_memory(tmp_path, "small.tar", "imagenet/vgg_11/*")
    large, written = peak_memory(tmp_path, "large.tar", "*")
    assert written > 45e6
    assert large - small < 20e6


# --- Published answers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published_curves(tmp_path_factory):
    """Settings and curve of the COMPLETE trials that the paper takes, by study."""
    out = tmp_path_factory.mktemp("published") / "p.tar"
    simulate(out, answers="published", trials=10, evaluations=12)
    metadata, curves = {}, {}
    with tarfile.open(out) as archive:
        for member in archive:
            if not member.isfile() or member.name.endswith(("study.json", "run.json")):
                continue
            *workload, batch_size, trial, file = member.name.split("/")[1:]
            key = ("/".join(workload), int(batch_size), int(trial))
            text = archive.extractfile(member).read()
            if file == "metadata.json":
                metadata[key] = json.loads(text)
            else:
                curves[key] = list(csv.DictReader(text.decode().splitlines()))
    taken = defaultdict(list)
    for workload, batch_size, trial in sorted(metadata):
        about = metadata[workload, batch_size, trial]
        if about["status"] == "COMPLETE" and len(taken[workload, batch_size]) < paper.trials_used(workload):
            taken[workload, batch_size].append((about["parameters"], curves[workload, batch_size, trial]))
    return taken


def plain_steps(curves, goal) -> float:
    """Fewest steps to a goal over some curves."""
    best = math.inf
    for curve in curves:
        for row in curve:
            value = float(row[goal.metric])
            if value > goal.threshold if goal.maximize else value < goal.threshold:
                best = min(best, float(row["step"]))
                break
    return best


@pytest.mark.parametrize("figure", list("1234567"))
def test_published_answers_show_what_the_figure_shows(published_curves, figure):
    points = pd.concat([published.figure_points(), published.offscale_points()])
    points = points.set_index(["figure", "panel_row", "panel_col", "workload", "series", "x"])
    panels = [panel for panel in paper.PANELS if panel.figure == figure]
    compared = 0
    for panel in panels:
        for series in panel.series:
            sizes = sorted(b for w, b in published_curves if w == series.workload)
            steps_at, values = {}, {}
            for b in sizes:
                curves = [
                    curve
                    for settings, curve in published_curves[series.workload, b]
                    if series.label_smoothing in (None, settings.get("label_smoothing"))
                ]
                if series.goal is None:
                    values[b] = min(
                        (float(row[series.metric]) for curve in curves for row in curve), default=math.inf
                    )
                else:
                    steps_at[b] = plain_steps(curves, series.goal)
            for b in sizes:
                shown = values[b] if series.goal is None else steps_at[b]
                if panel.normalized_at is not None:
                    shown /= steps_at[panel.normalized_at]
                key = (figure, panel.row, panel.column, series.workload, series.label, b)
                if key not in points.index:
                    assert math.isinf(shown), (panel.title, series.label, b)
                    continue
                y, bound = points.loc[key, ["y", "y_rel_uncertainty"]]
                assert abs(shown / y - 1) <= bound, (panel.title, series.label, b, shown, y)
                compared += 1
    in_figure = [name for name in points.index if name[0] == figure]
    assert compared == len(in_figure) > 0


@pytest.mark.parametrize("panel", paper.FIGURE_8, ids=lambda panel: panel.title)
def test_published_answers_show_the_best_effective_learning_rates_of_figure_8(published_curves, panel):
    points = published.figure_points()
    (series,) = panel.series
    points = points[(points["figure"] == "8") & (points["workload"] == series.workload)]
    assert len(points)
    for _, point in points.iterrows():
        trials = published_curves[series.workload, point["x"]]
        # min() keeps the first of equals, as the published analysis does.
        for goal in {series.goal, series.published_goal}:
            best = min(trials, key=lambda trial: plain_steps([trial[1]], goal))
            rate = best[0]["learning_rate"] / (1 - best[0]["momentum"])
            assert abs(rate / point["y"] - 1) <= point["y_rel_uncertainty"]


# --- What is refused -------------------------------------------------------------------------------


def test_an_existing_archive_is_not_overwritten(tmp_path):
    (tmp_path / "a.tar").write_text("precious")
    with pytest.raises(FileExistsError, match="not overwritten"):
        simulate(tmp_path / "a.tar", scale=0.001)
    assert (tmp_path / "a.tar").read_text() == "precious"


def test_a_pattern_that_fits_nothing_is_named(tmp_path):
    with pytest.raises(UnknownWorkload, match="'mnst/\\*'"):
        simulate(tmp_path / "a.tar", workloads=["mnst/*"])
    with pytest.raises(ValueError, match="positive"):
        simulate(tmp_path / "a.tar", scale=0.0)
    assert not list(tmp_path.iterdir())


def test_a_compressor_that_fails_is_reported_and_leaves_nothing(tmp_path, monkeypatch):
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "lbzip2").write_text("#!/bin/sh\necho 'No space left on device' >&2\nexit 1\n")
    (programs / "lbzip2").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/bin")
    (tmp_path / "out").mkdir()
    with pytest.raises(BatchScienceError, match="lbzip2 could not write it: No space left on device"):
        simulate(tmp_path / "out" / "a.tar.bz2", scale=0.001)
    assert not list((tmp_path / "out").iterdir())


def test_an_interrupted_simulation_leaves_nothing(tmp_path):
    def stop(done: int, every: int) -> None:
        raise KeyboardInterrupt

    for name in ("a.tar.bz2", "a.tar", "folder"):
        with pytest.raises(KeyboardInterrupt):
            simulate(tmp_path / name, scale=0.001, on_progress=stop)
    assert not list(tmp_path.iterdir())
