"""A study on disk: what is written, and what any interruption leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")

from batchscience.errors import TrainingError
from batchscience.layout import read_study, read_trial
from batchscience.train import (
    EvaluationRule,
    Limits,
    NoiseRule,
    Study,
    missing_trials,
    run_study,
    workload_named,
)
from batchscience.train.study import FACTS_FILE, NOISE_FILE
from tests.train_support import ROOT, quiet_environment

WORKLOAD = replace(workload_named("digits/fc_16/momentum"), rule=EvaluationRule(dense_until=2, ratio=2.0))
STUDY = Study(WORKLOAD, 32, Limits(steps=24), noise=NoiseRule((0, 8), 4, 8))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A study of three trials: its root, and the report of training it."""
    root = tmp_path_factory.mktemp("study")
    return root, run_study(STUDY, root, trials=3)


def _contents(folder: Path) -> dict[str, str]:
    """The published files of all trials, by name."""
    files = [*folder.glob("*/measurements.csv"), *folder.glob("*/metadata.json"), folder / "study.json"]
    return {str(file.relative_to(folder)): file.read_text() for file in files}


def test_a_study_lies_where_and_as_the_archive_would_have_it(written):
    root, report = written
    folder = root / "digits/fc_16/momentum/32"
    assert report.folder == folder
    assert report.trained == [1, 2, 3]
    file = read_study(folder)
    assert (file.batch_size, file.dataset, file.model, file.optimizer) == (32, "digits", "fc_16", "momentum")
    assert (file.train_steps, file.early_stopping) == (24, False)
    assert not file.unknown()
    assert file.space() == STUDY.space
    for trial in (1, 2, 3):
        held = read_trial(folder / str(trial))
        assert not held.file.unknown()
        assert held.file.parameters == STUDY.settings(trial)
        assert STUDY.space.contains(held.file.parameters)
        if held.file.status == "COMPLETE":
            assert list(held.curve.steps) == [0, 1, 2, 4, 8, 16, 24]
            assert held.file.steps == 24
    assert [p.name for p in folder.iterdir() if p.name.startswith(".")] == []


def test_ingesting_a_study_just_written_gives_it_back(written, tmp_path):
    from batchscience.ingest import ingest
    from batchscience.store import Store

    root, _ = written
    ingest(root, tmp_path / "tables")
    store = Store(tmp_path / "tables")
    folder = root / "digits/fc_16/momentum/32"
    measured = store.measurements("digits/fc_16/momentum", status=None)
    for trial in (1, 2, 3):
        curve = read_trial(folder / str(trial)).curve
        rows = measured[measured["trial"] == trial]
        assert rows["step"].tolist() == list(curve.steps)
        for name in ("train/cross_entropy_error", "val/classification_error"):
            assert rows[name].tolist() == list(curve.metrics[name])
    run = json.loads((folder / "run.json").read_text())
    studies = store.studies("digits/fc_16/momentum")
    assert studies["source"].tolist() == [run["source"]]
    assert studies["dataset"].tolist() == ["digits"]


def test_what_the_published_files_do_not_say_stands_beside_them(written):
    root, _ = written
    folder = root / "digits/fc_16/momentum/32"
    run = json.loads((folder / "run.json").read_text())
    assert run["seed"] == 0
    assert run["evaluation"]["ratio"] == 2.0
    assert run["stop_at_goal"] is False
    facts = json.loads((folder / "1" / FACTS_FILE).read_text())
    assert facts["device_kind"] == "cpu"
    assert (facts["replicas"], facts["examples_per_replica"], facts["accumulate"]) == (1, 32, 1)
    assert facts["batch_norm_examples"] is None
    assert facts["steps_per_second"] > 0
    assert {"tensorflow", "numpy", "batchscience"} <= set(facts["versions"])
    noise = (folder / "1" / NOISE_FILE).read_text().splitlines()
    assert noise[0].startswith("step,noise_scale,low,high")
    assert [line.split(",")[0] for line in noise[1:]] == ["0", "8"]


def test_a_trial_is_a_function_of_the_study_and_its_number(written, tmp_path):
    _, report = written
    again = run_study(STUDY, tmp_path, trials=3)
    assert _contents(again.folder) == _contents(report.folder)
    other = run_study(STUDY, tmp_path / "other", trials=1, seed=1)
    assert _contents(other.folder)["1/measurements.csv"] != _contents(report.folder)["1/measurements.csv"]


def test_a_study_is_extended_without_training_its_first_trials_again(written, tmp_path):
    root, report = written
    shutil.copytree(root, tmp_path / "copy")
    before = _contents(report.folder)
    told = []
    longer = run_study(STUDY, tmp_path / "copy", trials=5, on_trial=lambda trial, status: told.append(trial))
    assert longer.trained == told == [4, 5]
    assert longer.found == [1, 2, 3]
    after = _contents(longer.folder)
    assert {name: after[name] for name in before} == before


def test_a_half_written_trial_is_trained_again_and_nothing_else_is_touched(written, tmp_path):
    root, report = written
    shutil.copytree(root, tmp_path / "copy")
    folder = tmp_path / "copy" / STUDY.name
    (folder / "2" / "metadata.json").unlink()
    (folder / ".3.999.tmp").mkdir()
    stamp = (folder / "1" / "metadata.json").stat().st_mtime_ns
    assert missing_trials(folder, 4) == [2, 4]
    repaired = run_study(STUDY, tmp_path / "copy", trials=3)
    assert repaired.trained == [2]
    assert _contents(folder) == _contents(report.folder)
    assert (folder / "1" / "metadata.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"limits": Limits(steps=25)}, "train_steps: 24 there, 25 here"),
        ({"accumulate": 2}, "accumulate"),
        ({"noise": None}, "noise"),
    ],
)
def test_another_study_in_the_folder_is_refused_by_what_differs(written, change, named):
    root, _ = written
    with pytest.raises(TrainingError, match=named):
        run_study(replace(STUDY, **change), root, trials=3)


def test_a_diverged_trial_does_not_end_the_search(tmp_path):
    from batchscience.spaces import Parameter, SearchSpace

    space = SearchSpace((Parameter("learning_rate", "DISCRETE", feasible_points=(0.05, 1e30)),))
    workload = replace(WORKLOAD, name="digits/fc_16/sgd", optimizer="sgd", space=space)
    report = run_study(Study(workload, 32, Limits(steps=24)), tmp_path, trials=6)
    files = {trial: read_trial(report.folder / str(trial)).file for trial in range(1, 7)}
    diverged = {trial for trial, file in files.items() if file.parameters["learning_rate"] == 1e30}
    assert diverged
    assert diverged != set(files)
    for trial, file in files.items():
        facts = json.loads((report.folder / str(trial) / FACTS_FILE).read_text())
        assert file.status == ("INFEASIBLE" if trial in diverged else "COMPLETE")
        assert (facts["diverged_at"] is not None) == (trial in diverged)
        assert read_trial(report.folder / str(trial)).curve.steps[0] == 0


def test_a_time_budget_is_written_as_the_archive_writes_one(tmp_path):
    report = run_study(Study(WORKLOAD, 32, Limits(seconds=0.1)), tmp_path, trials=1)
    assert read_study(report.folder).train_steps == 0
    held = read_trial(report.folder / "1").file
    assert held.status in ("COMPLETE", "INFEASIBLE")


def test_stopping_at_the_goal_is_recorded(tmp_path):
    from batchscience.goals import Goal

    workload = replace(WORKLOAD, goal=Goal("val/cross_entropy_error", 100.0))
    report = run_study(Study(workload, 32, Limits(steps=24), stop_at_goal=True), tmp_path, trials=1)
    assert read_study(report.folder).early_stopping is True
    assert read_trial(report.folder / "1").file.steps == 0
    assert json.loads((report.folder / "1" / FACTS_FILE).read_text())["stopped_at_goal"] is True


# ------------------------------------------------------------------- processes of their own


def _started(root: Path, *options: str) -> subprocess.Popen:
    """`tests.train_support study`, with trials, steps, seconds between checkpoints, device, largest file."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.train_support", "study", str(root), *options],
        cwd=ROOT,
        env=quiet_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _finished(root: Path, *options: str) -> dict:
    process = _started(root, *options)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err[-3000:]
    return json.loads(out.splitlines()[-1])


STEPS = "30000"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("undisturbed")
    _finished(root, "3", STEPS, "1e9", "cpu", "0")
    return _contents(root / "digits/fc_16/sgd/32")


def _until(what, process, seconds=200):
    end = time.monotonic() + seconds
    while not what():
        assert process.poll() is None, process.stderr.read()[-3000:]
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_study_killed_in_mid_trial_goes_on_to_the_same_files(tmp_path, undisturbed):
    folder = tmp_path / "digits/fc_16/sgd/32"
    process = _started(tmp_path, "3", STEPS, "0.1", "cpu", "0")
    _until(lambda: (folder / "1" / "metadata.json").exists(), process)
    _until(lambda: any((folder / ".work").glob("2.npz")) or (folder / "2").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = missing_trials(folder, 3)
    assert 1 not in done
    report = _finished(tmp_path, "3", STEPS, "0.1", "cpu", "0")
    assert report["trained"] == done
    assert _contents(folder) == undisturbed
    assert not list(folder.glob(".*"))


def test_two_processes_share_a_study_and_train_no_trial_twice(tmp_path, undisturbed):
    processes = [_started(tmp_path, "3", STEPS, "0.5", "cpu", "0") for _ in range(2)]
    outs = []
    for process in processes:
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err[-3000:]
        outs.append(json.loads(out.splitlines()[-1]))
    trained = [trial for out in outs for trial in out["trained"]]
    assert sorted(trained) == [1, 2, 3]
    assert _contents(tmp_path / "digits/fc_16/sgd/32") == undisturbed
    for out in outs:
        for holder in out["held"].values():
            assert "process" in holder


def test_a_full_disk_ends_with_a_message_and_leaves_all_readable(tmp_path):
    # The kernel refuses files larger than the limit as it refuses them on a full disk.
    process = _started(tmp_path, "3", "3000000000", "0.05", "cpu", "4000")
    _, err = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "the disk is full" in err
    assert "same command again" in err
    folder = tmp_path / "digits/fc_16/sgd/32"
    assert read_study(folder).batch_size == 32
    assert missing_trials(folder, 3) == [1, 2, 3]
    report = _finished(tmp_path / "again", "1", "40", "1e9", "cpu", "0")
    assert report["trained"] == [1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="flock")
def test_the_second_process_says_who_holds_a_trial(tmp_path):
    import fcntl

    folder = tmp_path / STUDY.name
    (folder / ".work").mkdir(parents=True)
    with (folder / ".work" / "2.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 4711 on elsewhere\n")
        lock.flush()
        report = run_study(STUDY, tmp_path, trials=3)
    assert report.trained == [1, 3]
    assert report.held == {2: "process 4711 on elsewhere"}
    assert run_study(STUDY, tmp_path, trials=3).trained == [2]
