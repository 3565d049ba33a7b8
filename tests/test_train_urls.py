"""Training to a URL: the same files as on disk, whole or not there, whatever interrupts it."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pytest

pytest.importorskip("tensorflow")

from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from batchscience.cli import app
from batchscience.errors import TrainingError
from batchscience.ingest import ingest
from batchscience.layout import (
    Curve,
    RunFile,
    StudyFile,
    TrialFile,
    finished_trials,
    write_study,
    write_trial,
)
from batchscience.places import place
from batchscience.store import Store
from batchscience.train import EvaluationRule, Limits, Study, missing_trials, run_study, workload_named
from batchscience.train.engine import Processes
from batchscience.train.mirror import Mirror, mirror_of
from batchscience.train.plan import expected, found, read_plan
from tests.train_support import QUICK_PLAN, ROOT, quiet_environment

WORKLOAD = replace(workload_named("digits/fc_16/momentum"), rule=EvaluationRule(dense_until=2, ratio=2.0))
STUDY = Study(WORKLOAD, 32, Limits(steps=24))
MEMORY = "memory://bucket/studies"

# botocore and aiobotocore warn of their own deprecations.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:botocore"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:aiobotocore"),
]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Become a machine: each has a cache of its own."""

    def become(name: str) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machines" / name))

    become("first")
    return become


@pytest.fixture
def memory() -> Any:
    """An empty file system in memory."""
    fs = fsspec.filesystem("memory")
    fs.store.clear()
    fs.pseudo_dirs[:] = [""]
    yield fs
    fs.store.clear()


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study of four trials, trained into a folder."""
    root = tmp_path_factory.mktemp("disk")
    run_study(STUDY, root, trials=4)
    return root


def contents(study: Path) -> dict[str, bytes]:
    """The published files of a study's folder or URL, by name."""
    names = ("measurements.csv", "metadata.json", "study.json", "run.json")
    found = [path for path in study.rglob("*") if path.name in names]
    return {str(path).removeprefix(f"{study}/"): path.read_bytes() for path in found}


def first(trials: int, of: Path) -> dict[str, bytes]:
    """The files of the study and its first trials."""
    kept = {"study.json", "run.json"} | {str(trial) for trial in range(1, trials + 1)}
    return {name: text for name, text in contents(of / STUDY.name).items() if name.split("/")[0] in kept}


# --------------------------------------------------------------------------- the same as on disk


def test_a_study_at_a_url_is_the_one_on_disk(
    url: str, on_disk: Path, tmp_path: Path, machine: Callable[[str], None]
) -> None:
    report = run_study(STUDY, url, trials=2)
    assert report.trained == [1, 2]
    assert str(report.folder) == f"{url.removeprefix('local://')}/{STUDY.name}"
    assert contents(place(url) / STUDY.name) == first(2, on_disk)
    assert {path.name for path in (place(url) / STUDY.name / "1").iterdir()} == {
        "measurements.csv",
        "metadata.json",
        "facts.json",
    }

    again = run_study(STUDY, url, trials=3)
    assert (again.found, again.trained) == ([1, 2], [3])
    machine("second")
    assert missing_trials(place(url) / STUDY.name, 4) == [4]
    elsewhere = run_study(STUDY, url, trials=4)
    assert (elsewhere.found, elsewhere.trained) == ([1, 2, 3], [4])
    assert contents(place(url) / STUDY.name) == contents(on_disk / STUDY.name)

    ingest(url, tmp_path / "from_url")
    ingest(on_disk, tmp_path / "from_disk")
    one, two = (Store(tmp_path / name) for name in ("from_url", "from_disk"))
    assert one.trials(status=None).equals(two.trials(status=None))
    assert one.measurements(WORKLOAD.name).equals(two.measurements(WORKLOAD.name))


def test_a_url_of_this_machine_is_a_folder_with_all_its_guarantees(tmp_path: Path) -> None:
    assert mirror_of(f"file://{tmp_path}") is None
    assert mirror_of(tmp_path) is None
    report = run_study(STUDY, f"file://{tmp_path}/there", trials=1)
    assert report.folder == tmp_path / "there" / STUDY.name
    assert finished_trials(report.folder) == [1]


def test_another_study_at_the_url_is_refused(
    memory: MemoryFileSystem, on_disk: Path, machine: Callable[[str], None]
) -> None:
    memory.put(f"{on_disk}/", "/bucket/studies/", recursive=True)
    with pytest.raises(TrainingError, match=rf"{MEMORY}/digits.*train_steps: 24 there, 25 here"):
        run_study(replace(STUDY, limits=Limits(steps=25)), MEMORY, trials=1)
    memory.rm(f"/bucket/studies/{STUDY.name}/run.json")
    machine("second")
    with pytest.raises(TrainingError, match="another origin"):
        run_study(STUDY, MEMORY, trials=1)


def test_a_url_that_was_emptied_is_begun_anew(
    memory: MemoryFileSystem, on_disk: Path, machine: Callable[[str], None]
) -> None:
    run_study(STUDY, MEMORY, trials=1)
    memory.rm("/bucket/studies", recursive=True)
    shorter = replace(STUDY, limits=Limits(steps=8))
    assert run_study(shorter, MEMORY, trials=1).trained == [1]
    assert len(contents(place(MEMORY) / STUDY.name)) == 4


# --------------------------------------------------------------------------- whole or not there


def test_a_half_written_trial_at_the_url_is_incomplete_and_run_again(
    memory: MemoryFileSystem, on_disk: Path, tmp_path: Path, machine: Callable[[str], None]
) -> None:
    memory.put(f"{on_disk}/", "/bucket/studies/", recursive=True)
    place_of = f"/bucket/studies/{STUDY.name}"
    memory.rm(f"{place_of}/2/metadata.json")
    memory.pipe_file(f"{place_of}/3/metadata.json", memory.cat_file(f"{place_of}/3/metadata.json")[:40])
    assert missing_trials(f"{MEMORY}/{STUDY.name}", 4) == [2]
    report = ingest(MEMORY, tmp_path / "half")
    assert [problem.path.rsplit("/", 2)[-2:] for problem in report.problems] == [
        ["2", "metadata.json"],
        ["3", "metadata.json"],
    ]
    status = Store(tmp_path / "half").trials(status=None).set_index("trial")["status"]
    assert status[[1, 4]].tolist() == ["COMPLETE", "COMPLETE"]
    assert not status[[2, 3]].isin(["COMPLETE"]).any()

    repaired = run_study(STUDY, MEMORY, trials=4)
    assert (repaired.found, repaired.trained) == ([1, 4], [2, 3])
    assert contents(place(MEMORY) / STUDY.name) == contents(on_disk / STUDY.name)


NAME = "mine/tiny/sgd/8"


def local_study(root: Path, trials: int) -> None:
    """What training has written on this machine."""
    study = StudyFile(batch_size=8, dataset="mine", model="tiny", optimizer="sgd")
    write_study(root / NAME, study, run=RunFile(source="trained abc"))
    for trial in range(1, trials + 1):
        file = TrialFile(trial_id=trial, status="COMPLETE", steps=1, parameters={"learning_rate": 0.1})
        write_trial(root / NAME, file, Curve([0, 1], {"val/loss": [1.0, trial]}), extras={"facts.json": "{}"})


def publish_all(mirror: Mirror) -> None:
    mirror.publish_study(NAME)
    for trial in (1, 2, 3):
        mirror.publish(NAME, trial)


CALLS = ("pipe_file", "cp_file", "rm_file")
FILES = 2 + 3 * 3
"""Of three trials with three files each, after the study's own two."""


@pytest.mark.parametrize("broken_at", range(1, FILES * len(CALLS) + 1))
def test_broken_off_at_any_call_every_trial_is_whole_or_does_not_count(
    broken_at: int, memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    original = MemoryFileSystem.pipe_file

    def breaking(name: str, does: Callable[..., None]) -> Callable[..., None]:
        def call(self: MemoryFileSystem, path: str, *more: Any, **options: Any) -> None:
            target = more[0] if name == "cp_file" else path
            if len(calls) == broken_at - 1:
                calls.append((name, target))
                # A store that does not even write one file at once.
                content = more[0] if name == "pipe_file" else self.cat_file(path)
                if name != "rm_file":
                    original(self, target, content[: len(content) // 2])
                raise ConnectionResetError("gone")
            calls.append((name, target))
            does(self, path, *more, **options)

        return call

    mirror = Mirror(place(MEMORY), tmp_path / "first")
    local_study(mirror.root, 3)
    with monkeypatch.context() as broken:
        for name in CALLS:
            broken.setattr(MemoryFileSystem, name, breaking(name, getattr(MemoryFileSystem, name)))
        with pytest.raises(TrainingError, match=r"ConnectionResetError: gone.*the same command goes on"):
            publish_all(mirror)
    assert all(".tmp/" in path for name, path in calls if name == "pipe_file")

    other = Mirror(place(MEMORY), tmp_path / "second")
    other.fetch(NAME)
    made = calls[:-1]
    there = [t for t in (1, 2, 3) if ("cp_file", f"/bucket/studies/{NAME}/{t}/metadata.json") in made]
    assert finished_trials(other.root / NAME) == there
    # The same machine goes on by itself: what it holds whole it puts there, and trains nothing again.
    mirror.fetch(NAME)
    if ("cp_file", f"/bucket/studies/{NAME}/study.json") not in made:
        # There was no study yet, so none of its trials had begun either.
        assert not (mirror.root / NAME).exists()
        local_study(mirror.root, 3)
        publish_all(mirror)
    assert mirror.finished(NAME) == [1, 2, 3]
    assert contents(place(MEMORY) / NAME) == contents(mirror.root / NAME)
    assert not [path for path in memory.find("/bucket") if ".tmp/" in path]


def test_a_store_that_only_renames_serves_as_well(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: MemoryFileSystem, *paths: str, **options: Any) -> None:
        raise NotImplementedError

    def renamed(self: MemoryFileSystem, old: str, new: str) -> None:
        assert not self.exists(new)
        self.store[new] = self.store.pop(old)

    monkeypatch.setattr(MemoryFileSystem, "cp_file", refused)
    monkeypatch.setattr(MemoryFileSystem, "mv", renamed)
    mirror = Mirror(place(MEMORY), tmp_path / "first")
    local_study(mirror.root, 3)
    publish_all(mirror)
    mirror.publish(NAME, 2)
    assert mirror.finished(NAME) == [1, 2, 3]
    assert contents(place(MEMORY) / NAME) == contents(mirror.root / NAME)
    assert not [path for path in memory.find("/bucket") if ".tmp/" in path]


def test_a_trial_that_could_not_be_put_there_is_not_trained_again(
    memory: MemoryFileSystem, on_disk: Path, monkeypatch: pytest.MonkeyPatch, machine: Callable[[str], None]
) -> None:
    original = MemoryFileSystem.pipe_file

    def breaking(self: MemoryFileSystem, path: str, value: bytes, **options: Any) -> None:
        if path.endswith(".2.tmp/metadata.json"):
            raise TimeoutError("no answer")
        original(self, path, value, **options)

    with monkeypatch.context() as broken:
        broken.setattr(MemoryFileSystem, "pipe_file", breaking)
        with pytest.raises(TrainingError, match="TimeoutError: no answer"):
            run_study(STUDY, MEMORY, trials=3)
    report = run_study(STUDY, MEMORY, trials=3)
    assert (report.found, report.trained) == ([1, 2], [3])
    assert contents(place(MEMORY) / STUDY.name) == first(3, on_disk)


# --------------------------------------------------------------------------- several processes and machines


def test_a_trial_that_another_machine_finishes_meanwhile_is_not_begun(
    memory: MemoryFileSystem, on_disk: Path, machine: Callable[[str], None]
) -> None:
    def meanwhile(trial: int, status: str) -> None:
        if trial == 1:
            memory.put(f"{on_disk}/{STUDY.name}/2", f"/bucket/studies/{STUDY.name}/2", recursive=True)

    report = run_study(STUDY, MEMORY, trials=3, on_trial=meanwhile)
    assert (report.found, report.trained) == ([2], [1, 3])
    assert contents(place(MEMORY) / STUDY.name) == first(3, on_disk)


def test_two_processes_of_one_machine_never_train_the_same_trial(
    memory: MemoryFileSystem, machine: Callable[[str], None]
) -> None:
    mirror = mirror_of(MEMORY)
    assert mirror is not None
    run_study(STUDY, MEMORY, trials=1)
    locks = mirror.root / STUDY.name / ".work"
    locks.mkdir()
    with (locks / "2.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 4711 on this machine\n")
        lock.flush()
        report = run_study(STUDY, MEMORY, trials=3)
    assert report.trained == [3]
    assert report.held == {2: "process 4711 on this machine"}


def test_worker_processes_need_not_reach_the_url(
    memory: MemoryFileSystem, on_disk: Path, machine: Callable[[str], None]
) -> None:
    # Nothing that is in the memory of this process can be seen by another.
    with Processes(1) as engine:
        report = run_study(STUDY, MEMORY, trials=2, engine=engine, together=2)
    assert report.trained == [1, 2]
    assert set(contents(place(MEMORY) / STUDY.name)) == set(first(2, on_disk))


def written_plan(folder: Path, url: str, steps: int = 40) -> Path:
    path = folder / "study.toml"
    path.write_text(QUICK_PLAN.format(batch_sizes=[4], more=f'out = "{url}"', steps=steps))
    return path


def test_a_plan_may_name_a_url_and_the_command_another(
    memory: MemoryFileSystem, tmp_path: Path, machine: Callable[[str], None]
) -> None:
    path = written_plan(tmp_path, MEMORY)
    plan = read_plan(path)
    assert plan.out == MEMORY
    assert [row.missing for row in expected(plan, calibrate=False)] == [3]
    assert not (tmp_path / "machines").exists()  # an estimate copies nothing

    result = CliRunner().invoke(app, ["train", str(path), "--format", "csv"])
    assert result.exit_code == 0, result.output
    assert f"3 trials trained, they are in {MEMORY}" in result.stderr
    assert [row.missing for row in expected(plan, calibrate=False)] == [0]
    machine("second")
    (row,) = found(plan)
    assert (row.trials, row.missing, row.complete + row.infeasible) == (3, 0, 3)

    other = CliRunner().invoke(app, ["train", str(path), "--out", "memory://bucket/other", "--format", "csv"])
    assert other.exit_code == 0, other.output
    assert "they are in memory://bucket/other" in other.stderr
    study = "noisy_quadratic/quadratic/sgd/4"
    assert contents(place("memory://bucket/other") / study) == contents(place(MEMORY) / study)


def test_killed_at_an_object_store_and_gone_on_elsewhere_it_gives_the_same_files(
    s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    environment = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "NO_PROXY": "127.0.0.1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"kill{time.monotonic_ns()}"
    fs = s3fs.S3FileSystem(use_listings_cache=False)
    fs.mkdir(bucket)
    url, study = f"s3://{bucket}/studies", "noisy_quadratic/quadratic/sgd/4"
    path = written_plan(tmp_path, url, steps=20_000)
    marker = f"{bucket}/studies/{study}/1/metadata.json"

    def started(cache: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", "from batchscience.cli import app; app()", "train", str(path)],
            cwd=ROOT,
            env=quiet_environment(XDG_CACHE_HOME=str(tmp_path / cache)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    process = started("first")
    end = time.monotonic() + 200
    while not fs.exists(marker):
        assert process.poll() is None, process.communicate()[1][-3000:]
        assert time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    before = fs.info(marker)["LastModified"]

    second = started("second")
    _, err = second.communicate(timeout=240)
    assert second.returncode == 0, err[-3000:]
    # The finished trial was not written again.
    assert fs.info(marker)["LastModified"] == before
    assert missing_trials(f"{url}/{study}", 3) == []
    undisturbed = CliRunner().invoke(app, ["train", str(path), "--out", str(tmp_path / "disk")])
    assert undisturbed.exit_code == 0, undisturbed.output
    assert contents(place(url) / study) == contents(tmp_path / "disk" / study)
    s3fs.S3FileSystem.clear_instance_cache()
