"""Ingest: what was in the raw files is in the tables, damage is listed, and a kill costs nothing."""

import json
import math
import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batchscience
from batchscience.errors import ArchiveRefused, BatchScienceError, LayoutError, SourceConflict, StoreMissing
from batchscience.ingest import Problem, ingest
from batchscience.layout import Curve, TrialFile, write_trial
from batchscience.store import Store, load_workload
from batchscience.tables import staging
from batchscience.writer import Spill

from .raw import (
    CURVE,
    HEADER,
    STUDY,
    contents,
    metadata_json,
    study_files,
    study_json,
    write_files,
    write_tar,
)

WORKLOAD = "mnist/fc_1024/sgd"


def tables_of(store: Path) -> dict[str, bytes]:
    """Everything in a store except its lock."""
    return {name: content for name, content in contents(store).items() if name != ".lock"}


def bits(value: float | None) -> bytes | None:
    if value is None:
        return None
    return b"nan" if math.isnan(value) else struct.pack("<d", value)


names = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp"), exclude_characters="﻿"),
    min_size=1,
    max_size=10,
).filter(lambda name: name == name.strip() and name != "step")
floats = st.none() | st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    steps = sorted(draw(st.sets(st.integers(0, 2**53), max_size=6)))
    column = st.lists(floats, min_size=len(steps), max_size=len(steps))
    return Curve(steps, {name: draw(column) for name in draw(st.sets(names, max_size=3))})


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    trials=st.dictionaries(st.integers(0, 10**9), curves(), min_size=1, max_size=5),
    rates=st.lists(st.floats(allow_nan=False), min_size=5, max_size=5),
)
def test_raw_layout_to_parquet_to_frame_is_the_identity(
    trials: dict[int, Curve], rates: list[float], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("identity")
    study = folder / "raw" / STUDY
    write_files(folder / "raw", {f"{STUDY}/study.json": study_json()})
    for (number, curve), rate in zip(trials.items(), rates, strict=False):
        write_trial(study, TrialFile(trial_id=number, status="COMPLETE", parameters={"lr": rate}), curve)
    report = ingest(folder / "raw", folder / "store")
    assert report.problems == ()

    frame = load_workload(WORKLOAD, data=folder / "store")
    for number, curve in trials.items():
        rows = frame[frame.index.get_level_values("trial") == number]
        assert rows.index.get_level_values("step").tolist() == list(curve.steps)
        for name, values in curve.metrics.items():
            column = f"metric:{name}" if name in ("trial", "steps", "status", "workload") else name
            read = rows[column].array._pa_array.to_pylist()
            assert [bits(value) for value in read] == [bits(value) for value in values]
    read_rates = Store(folder / "store").trials(WORKLOAD)
    for number, rate in zip(trials, rates, strict=False):
        assert bits(read_rates.loc[read_rates["trial"] == number, "lr"].item()) == bits(rate)


def test_the_same_archive_gives_byte_identical_tables_in_any_compression(tmp_path: Path) -> None:
    files = study_files({1: CURVE, 2: CURVE, 10: HEADER}) | study_files({3: CURVE}, study="a/b/c/8")
    one = write_tar(tmp_path / "one.tar.bz2", files)
    ingest(one, tmp_path / "s1")
    ingest(one, tmp_path / "s2")
    assert tables_of(tmp_path / "s1") == tables_of(tmp_path / "s2")
    # Ingesting it again into the same store changes nothing.
    ingest(one, tmp_path / "s1")
    assert tables_of(tmp_path / "s1") == tables_of(tmp_path / "s2")


def test_the_order_of_members_does_not_matter(tmp_path: Path) -> None:
    files = study_files(dict.fromkeys(range(1, 30), CURVE)) | study_files(
        {3: CURVE, 1: HEADER}, study="a/b/c/8"
    )
    shuffled = dict(random.Random(3).sample(list(files.items()), len(files)))
    ingest(write_files(tmp_path / "raw", files), tmp_path / "s1")
    ingest(write_tar(tmp_path / "raw.tar", shuffled), tmp_path / "s2")
    for name in ("trials", "search_space"):
        one, two = (pq.read_table(next((tmp_path / s).rglob(f"{name}.parquet"))) for s in ("s1", "s2"))
        assert one.equals(two)
    for workload in ("a/b/c", WORKLOAD):
        one, two = (load_workload(workload, data=tmp_path / s, status=None) for s in ("s1", "s2"))
        assert one.equals(two)


def test_curves_beyond_what_is_held_in_memory_wait_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = study_files(dict.fromkeys(range(1, 9), CURVE)) | study_files({3: CURVE}, study="a/b/c/8")
    source = write_tar(tmp_path / "raw.tar", files)
    ingest(source, tmp_path / "s1")
    monkeypatch.setattr("batchscience.writer._MOST_HELD", 500)
    waited = []
    get = Spill.get
    monkeypatch.setattr(Spill, "get", lambda self, kept: waited.append(kept) or get(self, kept))
    ingest(source, tmp_path / "s2")
    assert any(isinstance(kept, tuple) for kept in waited)
    assert tables_of(tmp_path / "s1") == tables_of(tmp_path / "s2")


def test_a_workload_whose_files_are_scattered_in_the_archive_is_written_whole(tmp_path: Path) -> None:
    first = study_files(dict.fromkeys(range(1, 6), CURVE))
    other = study_files({1: CURVE}, study="a/b/c/8")
    second = study_files(dict.fromkeys(range(3, 9), CURVE)) | study_files(
        {2: CURVE}, study=f"{WORKLOAD}/4096"
    )
    there = list(first)[:-4]
    parts = {name: first[name] for name in there} | other
    parts |= {name: text for name, text in (first | second).items() if name not in parts}
    ingest(write_tar(tmp_path / "scattered.tar", parts), tmp_path / "s1")
    ingest(write_files(tmp_path / "raw", first | second | other), tmp_path / "s2")
    one, two = (load_workload(WORKLOAD, data=tmp_path / s, status=None) for s in ("s1", "s2"))
    assert one.equals(two)
    assert not list((tmp_path / "s1").rglob("*.before"))
    report = ingest(write_tar(tmp_path / "again.tar", parts), tmp_path / "s3")
    assert (report.studies, report.trials) == (3, 10)


@pytest.mark.parametrize("seed", range(4))
def test_a_study_that_takes_the_place_of_another_has_nothing_of_it_however_its_files_are_scattered(
    tmp_path: Path, seed: int
) -> None:
    old = study_files({1: CURVE, 2: CURVE, 7: CURVE}) | study_files({1: CURVE}, study=f"{WORKLOAD}/8")
    new = study_files({1: CURVE, 3: CURVE}) | study_files({1: CURVE}, study=f"{WORKLOAD}/128")
    new |= study_files({1: CURVE}, study="a/b/c/8")
    scattered = dict(random.Random(seed).sample(list(new.items()), len(new)))
    ingest(write_tar(tmp_path / "old.tar", old), tmp_path / "s")
    ingest(write_tar(tmp_path / "new.tar", scattered), tmp_path / "s", replace=True)
    rows = load_workload(WORKLOAD, data=tmp_path / "s", status=None).index.droplevel("step")
    assert rows.unique().tolist() == [(8, 1), (64, 1), (64, 3), (128, 1)]
    assert len(rows) == 4 * 3


def test_trials_and_batch_sizes_sort_as_numbers(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for batch_size in (128, 16, 1024, 2):
        files |= study_files(dict.fromkeys((10, 9, 100, 1), CURVE), study=f"a/b/c/{batch_size}")
    ingest(write_tar(tmp_path / "a.tar", files), tmp_path / "s")
    trials = Store(tmp_path / "s").trials("a/b/c")
    assert trials["batch_size"].drop_duplicates().tolist() == [2, 16, 128, 1024]
    assert trials["trial"].tolist()[:4] == [1, 9, 10, 100]
    assert trials["batch_size"].dtype == "int64"


def test_a_csv_with_a_header_only_is_a_trial_without_measurements(tmp_path: Path) -> None:
    report = ingest(write_files(tmp_path / "raw", study_files({1: HEADER, 2: CURVE})), tmp_path / "s")
    assert report.problems == ()
    assert (report.trials, report.rows, report.measurements) == (2, 3, 6)
    frame = Store(tmp_path / "s").measurements(WORKLOAD)
    assert frame["trial"].unique().tolist() == [2]
    assert frame["val/classification_error"].dtype == "double[pyarrow]"


@pytest.mark.parametrize(
    ("name", "content", "what"),
    [
        (f"{STUDY}/study.json", b'{"batch_size": 64', "Invalid JSON"),
        (f"{STUDY}/1/metadata.json", b"{", "Invalid JSON"),
        (f"{STUDY}/1/measurements.csv", b"", "found an empty file"),
        (f"{STUDY}/1/measurements.csv", b"epoch,val/e\n1,2\n", "expected a column 'step'"),
        (f"{STUDY}/1/measurements.csv", (CURVE + "30,1\n").encode(), "line 5: expected 3 cells, found 2"),
        (f"{STUDY}/1/measurements.csv", (CURVE + "30,x,1\n").encode(), "line 5: could not convert"),
        (f"{STUDY}/1/measurements.csv", (CURVE + "30,1,1\n3").encode(), "line 6: expected 3 cells"),
        (f"{STUDY}/1/measurements.csv", (CURVE + "1e20,1,1\n").encode(), "line 5: a step is a whole number"),
        (f"{STUDY}/1/measurements.csv", (CURVE + '30,"1,1\n' + "31,1,1\n" * 20_000).encode(), "field larger"),
        (f"{STUDY}/1/metadata.json", b'{"status": "COMPLETE", "steps": 1e30}', "less than or equal to"),
        (f"{STUDY}/study.json", None, "missing; its search space is not known"),
        (f"{STUDY}/1/metadata.json", None, "missing; taken for INCOMPLETE"),
        (f"{STUDY}/1/measurements.csv", None, "missing; a trial without measurements"),
    ],
)
def test_damage_becomes_a_line_of_the_report_and_the_rest_is_read(
    tmp_path: Path, name: str, content: bytes | None, what: str
) -> None:
    files = study_files({1: CURVE, 2: CURVE, 3: CURVE})
    if content is None:
        del files[name]
    else:
        files[name] = content
    source = write_tar(tmp_path / "a.tar.gz", files)
    report = ingest(source, tmp_path / "s")
    assert [problem.path for problem in report.problems] == [name]
    assert what in report.problems[0].what
    # The trial is in the table all the same, and the others are whole.
    trials = Store(tmp_path / "s").trials(WORKLOAD, status=None)
    assert trials["trial"].tolist() == [1, 2, 3]
    rows = Store(tmp_path / "s").measurements(WORKLOAD, status=None).groupby("trial").size()
    assert rows.loc[[2, 3]].tolist() == [3, 3]
    with pytest.raises(LayoutError) as caught:
        ingest(source, tmp_path / "strict", strict=True)
    assert name in str(caught.value)
    with pytest.raises(StoreMissing):
        Store(tmp_path / "strict")


def test_liberties_in_one_file_do_not_disturb_its_neighbours(tmp_path: Path) -> None:
    files = study_files(
        {
            1: CURVE,
            2: "﻿" + CURVE,
            3: CURVE.replace("\n", "\r\n"),
            4: CURVE + "\n\n",
            5: CURVE.replace("10,", '"10",'),
            6: CURVE.replace("10,", "10.0,"),
            7: "step,val/classification_error,train/cross_entropy_error\n0,0.9,2.5\n10,0.25,0.5\n20,0.1,0.25",
        }
    )
    report = ingest(write_files(tmp_path / "raw", files), tmp_path / "s")
    assert report.problems == ()
    frame = load_workload(WORKLOAD, data=tmp_path / "s")
    for trial in range(2, 8):
        assert frame.loc[(64, trial)].equals(frame.loc[(64, 1)]), trial


def test_repeated_and_resumed_rows_are_settled_and_noted(tmp_path: Path) -> None:
    resumed = HEADER + "0,2,0.9\n10,1,0.5\n20,1,0.001\n10,1,0.5\n20,1,0.4\n"
    report = ingest(write_files(tmp_path / "raw", study_files({1: CURVE, 2: resumed})), tmp_path / "s")
    assert report.problems == ()
    assert [note.path for note in report.notes] == [f"{STUDY}/2/measurements.csv"]
    assert "2 rows of an abandoned attempt replaced" in report.notes[0].what
    frame = load_workload(WORKLOAD, data=tmp_path / "s")
    assert frame.loc[(64, 2), "val/classification_error"].tolist() == [0.9, 0.5, 0.4]


def test_a_curve_that_looks_sampled_is_noted(tmp_path: Path) -> None:
    def curve(steps: list[int]) -> str:
        return "step,val/e\n" + "".join(f"{step},0.5\n" for step in steps)

    uneven = sorted(random.Random(0).sample(range(100_000), 1000))
    curves = {1: curve(uneven), 2: curve(uneven[:-1]), 3: curve(list(range(0, 10_000, 10))), 4: curve([])}
    report = ingest(write_files(tmp_path / "raw", study_files(curves)), tmp_path / "s")
    assert report.problems == ()
    assert [note.path for note in report.notes] == [STUDY]
    assert "1 curves of 500, 1,000 or 1,500 irregular points" in report.notes[0].what
    assert "upper bounds" in report.notes[0].what


def test_unknown_keys_are_reported_and_other_settings_kept(tmp_path: Path) -> None:
    parameters: dict[str, Any] = {
        "learning_rate": "0.25",
        "momentum": 1,
        "nesterov": True,
        "schedule": "cosine",
        "layers": [1, 2],
        "big": 2**53 + 1,
        "steps": 3,
        "nothing": None,
    }
    files = study_files({1: CURVE}, parameters=parameters, host="a")
    files[f"{STUDY}/study.json"] = study_json(goal=0.1)
    report = ingest(write_files(tmp_path / "raw", files), tmp_path / "s")
    assert set(report.notes) == {
        Problem("study.json", "unknown key 'goal'"),
        Problem("metadata.json", "unknown key 'host'"),
    }
    trial = Store(tmp_path / "s").trials(WORKLOAD).iloc[0]
    assert (trial["learning_rate"], trial["momentum"], trial["parameter:steps"]) == (0.25, 1.0, 3.0)
    assert json.loads(trial["other_settings"]) == {
        "nesterov": True,
        "schedule": "cosine",
        "layers": [1, 2],
        "big": 2**53 + 1,
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (f"{STUDY}/1/metadata.json", metadata_json(2), "trial 2 in the folder of trial 1"),
        (f"{STUDY}/study.json", study_json(batch_size=32), "batch size 32 in the folder of batch size 64"),
    ],
)
def test_a_folder_that_disagrees_with_its_metadata_is_refused(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    files = study_files({1: CURVE}) | {name: content}
    with pytest.raises(ArchiveRefused, match=message):
        ingest(write_tar(tmp_path / "a.tar", files), tmp_path / "s")
    with pytest.raises(StoreMissing):
        Store(tmp_path / "s")


@pytest.mark.parametrize("again", [f"{STUDY}/1/measurements.csv", f"./{STUDY}/1/measurements.csv"])
def test_a_member_that_comes_twice_is_refused(tmp_path: Path, again: str) -> None:
    import io
    import tarfile

    path = write_tar(tmp_path / "a.tar", study_files({1: CURVE}), root="")
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo(again)
        info.size = len(CURVE)
        tar.addfile(info, io.BytesIO(CURVE.encode()))
    with pytest.raises(ArchiveRefused, match="comes twice"):
        ingest(path, tmp_path / "s")


def test_a_hostile_archive_leaves_the_previous_store_whole(tmp_path: Path) -> None:
    ingest(write_tar(tmp_path / "a.tar", study_files({1: CURVE})), tmp_path / "s")
    before = tables_of(tmp_path / "s")
    bad = write_tar(
        tmp_path / "b.tar", study_files({2: CURVE}, study="a/b/c/8") | {"../x/1/study.json": b"{}"}
    )
    with pytest.raises(ArchiveRefused, match="leads out of the archive"):
        ingest(bad, tmp_path / "s")
    assert tables_of(tmp_path / "s") == before
    assert not (tmp_path / "x").exists()


def test_an_archive_without_studies_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="holds no study"):
        ingest(write_tar(tmp_path / "a.tar", {"README.md": b"hello"}), tmp_path / "s")
    with pytest.raises(LayoutError, match="of workloads like cifar"):
        ingest(write_tar(tmp_path / "a.tar", study_files({1: CURVE})), tmp_path / "s", workloads=["cifar*"])


def test_files_in_the_wrong_place_are_listed(tmp_path: Path) -> None:
    files = study_files({1: CURVE}) | {
        "measurements.csv": b"step\n",
        "mnist/sgd/study.json": b"{}",
        f"{STUDY}/best/metadata.json": b"{}",
        f"{STUDY}/{10**25}/metadata.json": b"{}",
        f"mnist/net/sgd/{10**30}/study.json": b"{}",
        f"{STUDY}/.5.99.tmp/metadata.json": b"{}",
        "README.md": b"",
        f"{STUDY}/1/facts.json": b"{}",
        f"{STUDY}/1/unit.json": b"{}",
        f"{STUDY}/1/noise.csv": b"",
        "__MACOSX/a/b/c/8/study.json": b"",
    }
    report = ingest(write_tar(tmp_path / "a.tar", files), tmp_path / "s")
    assert sorted(problem.path.removeprefix("batch_science/") for problem in report.problems) == [
        "measurements.csv",
        f"{STUDY}/{10**25}/metadata.json",
        f"{STUDY}/best/metadata.json",
        f"mnist/net/sgd/{10**30}/study.json",
        "mnist/sgd/study.json",
    ]
    # What this package writes beside a trial is nothing to wonder at.
    assert {note.path for note in report.notes if "files passed over" in note.what} == {"*.md"}
    assert Store(tmp_path / "s").workloads() == [WORKLOAD]


def test_the_path_is_the_key_of_a_study(tmp_path: Path) -> None:
    files = study_files({1: CURVE}) | study_files({1: CURVE}, study=f"solution_quality/{STUDY}")
    ingest(write_tar(tmp_path / "a.tar", files), tmp_path / "s")
    studies = Store(tmp_path / "s").studies()
    assert studies["workload"].tolist() == [WORKLOAD, f"solution_quality/{WORKLOAD}"]
    assert studies["dataset"].tolist() == ["mnist", "solution_quality/mnist"]


def test_only_workloads_that_match_are_read(tmp_path: Path) -> None:
    files = study_files({1: CURVE}) | study_files({1: CURVE}, study="cifar_10/resnet_8/sgd/2")
    ingest(write_tar(tmp_path / "a.tar", files), tmp_path / "s", workloads=["cifar_10/*"])
    assert Store(tmp_path / "s").workloads() == ["cifar_10/resnet_8/sgd"]


def test_a_second_source_adds_its_workloads_and_does_not_mix_with_the_first(tmp_path: Path) -> None:
    first = write_tar(tmp_path / "a.tar", study_files({1: CURVE, 2: CURVE}))
    run = json.dumps({"source": "run 7", "seed": 1}).encode()
    second = write_tar(
        tmp_path / "b.tar",
        study_files({1: CURVE}, study="x/y/z/8")
        | study_files({5: CURVE}, study=f"{WORKLOAD}/128")
        | {"x/y/z/8/run.json": run, f"{WORKLOAD}/128/run.json": run},
    )
    ingest(first, tmp_path / "s")
    ingest(second, tmp_path / "s")
    store = Store(tmp_path / "s")
    assert store.workloads() == [WORKLOAD, "x/y/z"]
    assert store.trials(WORKLOAD)[["batch_size", "trial"]].to_numpy().tolist() == [[64, 1], [64, 2], [128, 5]]
    assert len(store.measurements(WORKLOAD)) == 9
    assert store.studies("x/y/z")["source"].item() == "run 7"

    # The same study from elsewhere: refused, and with replace it takes the place of the first.
    third = write_tar(tmp_path / "c.tar", study_files({9: CURVE}))
    before = tables_of(tmp_path / "s")
    with pytest.raises(SourceConflict, match=r"mnist/fc_1024/sgd/64: there from 'archive .*--replace"):
        ingest(third, tmp_path / "s")
    assert tables_of(tmp_path / "s") == before
    ingest(third, tmp_path / "s", replace=True)
    store = Store(tmp_path / "s")
    assert store.trials(WORKLOAD)[["batch_size", "trial"]].to_numpy().tolist() == [[64, 9], [128, 5]]
    assert len(store.measurements(WORKLOAD)) == 6
    assert len(store.measurements("x/y/z")) == 3


def test_a_run_that_went_on_replaces_itself(tmp_path: Path) -> None:
    run = {f"{STUDY}/run.json": b'{"source": "run 7"}'}
    ingest(write_files(tmp_path / "raw", study_files({1: CURVE}) | run), tmp_path / "s")
    ingest(write_files(tmp_path / "raw", study_files({1: CURVE, 2: CURVE}) | run), tmp_path / "s")
    assert Store(tmp_path / "s").trials(WORKLOAD)["trial"].tolist() == [1, 2]


def test_two_writers_do_not_meet_in_one_store(tmp_path: Path) -> None:
    source = write_files(tmp_path / "raw", study_files({1: CURVE}))
    with (
        staging(tmp_path / "s"),
        pytest.raises(BatchScienceError, match=f"process {os.getpid()} is writing tables"),
    ):
        ingest(source, tmp_path / "s")
    ingest(source, tmp_path / "s")


def test_a_table_cut_short_is_noticed(tmp_path: Path) -> None:
    ingest(write_files(tmp_path / "raw", study_files({1: CURVE})), tmp_path / "s")
    path = next((tmp_path / "s").rglob("trials.parquet"))
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BatchScienceError, match=r"trials.parquet: expected .* bytes, found .*ingest"):
        Store(tmp_path / "s")


KILLED = """
import sys
from batchscience.ingest import ingest
print("ready", flush=True)
ingest(sys.argv[1], sys.argv[2])
"""


def test_an_ingest_killed_at_any_moment_and_run_again_gives_the_undisturbed_store(tmp_path: Path) -> None:
    rng = random.Random(5)
    rows = "".join(f"{10 * i},{rng.random()!r},{rng.random()!r}\n" for i in range(300))
    files: dict[str, bytes] = {}
    for batch_size in (1, 2, 4, 8, 16, 32):
        files |= study_files(dict.fromkeys(range(1, 80), HEADER + rows), study=f"a/b/c/{batch_size}")
    source = write_tar(tmp_path / "a.tar.bz2", files)
    first = write_tar(tmp_path / "first.tar", study_files({1: CURVE}))
    ingest(first, tmp_path / "undisturbed")
    ingest(first, tmp_path / "s")
    previous = tables_of(tmp_path / "s")
    began = time.perf_counter()
    ingest(source, tmp_path / "undisturbed")
    takes = time.perf_counter() - began
    undisturbed = tables_of(tmp_path / "undisturbed")

    killed = 0
    for _ in range(10):
        command = [sys.executable, "-c", KILLED, str(source), str(tmp_path / "s")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0, 1.1 * takes))
            process.send_signal(signal.SIGKILL)
        killed += process.returncode == -signal.SIGKILL
        found = Store(tmp_path / "s")
        if (tmp_path / "s" / "CURRENT").read_bytes() == previous["CURRENT"]:
            # Not published yet: the old tables are what they were, whatever else lies about.
            assert found.workloads() == [WORKLOAD]
            assert tables_of(tmp_path / "s").items() >= previous.items()
        else:
            assert tables_of(tmp_path / "s").items() >= undisturbed.items()
    assert killed >= 3
    ingest(source, tmp_path / "s")
    assert tables_of(tmp_path / "s") == undisturbed


def test_a_full_disk_stops_the_ingest_and_leaves_the_previous_store(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", mount], check=False, capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small tmpfs needs root")
    try:
        ingest(write_tar(tmp_path / "a.tar", study_files({1: CURVE})), mount / "s")
        before = tables_of(mount / "s")
        rng = random.Random(0)
        curves = {
            trial: HEADER + "".join(f"{i},{rng.random()!r},{rng.random()!r}\n" for i in range(2000))
            for trial in range(1, 60)
        }
        files = study_files(curves, study="a/b/c/2")
        with pytest.raises(BatchScienceError, match=r"No space left on device.*free some space"):
            ingest(write_tar(tmp_path / "b.tar.bz2", files), mount / "s")
        assert tables_of(mount / "s") == before
    finally:
        subprocess.run(["umount", mount], check=True)


def test_the_files_say_where_they_come_from(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", study_files({1: CURVE}))
    ingest(source, tmp_path / "s")
    import hashlib

    metadata = pq.read_schema(next((tmp_path / "s").rglob("sgd.parquet"))).metadata
    assert (
        metadata[b"batchscience.archive_sha256"].decode() == hashlib.sha256(source.read_bytes()).hexdigest()
    )
    assert metadata[b"batchscience.schema"] == b"1"
    assert metadata[b"batchscience.version"].decode() == batchscience.__version__


def test_an_ingest_does_not_import_pandas(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "raw.tar", study_files({1: CURVE, 2: HEADER}))
    code = (
        "import sys; from batchscience.ingest import ingest; ingest(*sys.argv[1:]);"
        "assert 'pyarrow' in sys.modules; assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, source, tmp_path / "s"], check=True)
