"""The store: frames filtered on read, typed as documented, and clear words when something is not there."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from batchscience.errors import SchemaError, StoreMissing, UnknownWorkload
from batchscience.ingest import ingest
from batchscience.store import Store, load_workload

from .raw import CURVE, HEADER, metadata_json, study_files, write_files

WORKLOAD = "mnist/fc_1024/sgd"
STATUSES = {
    1: "COMPLETE", 2: "INFEASIBLE", 3: "COMPLETE", 4: "INCOMPLETE", 10: "COMPLETE", 11: "INFEASIBLE",
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("store")
    files: dict[str, bytes] = {}
    for batch_size in (64, 8):
        study = f"{WORKLOAD}/{batch_size}"
        files |= study_files(dict.fromkeys(STATUSES, CURVE), study=study)
        for trial, status in STATUSES.items():
            files[f"{study}/{trial}/metadata.json"] = metadata_json(trial, status=status)
    files |= study_files({1: HEADER}, study="a/b/c/4", parameters={"momentum": 0.9})
    ingest(write_files(folder / "raw", files), folder / "tables")
    return Store(folder / "tables")


def test_workloads_and_metrics_are_listed(store: Store) -> None:
    assert store.workloads() == ["a/b/c", WORKLOAD]
    assert store.metrics(WORKLOAD) == ["train/cross_entropy_error", "val/classification_error"]


@pytest.mark.parametrize(
    ("status", "first", "expected"),
    [
        (("COMPLETE",), None, [1, 3, 10]),
        (None, None, [1, 2, 3, 4, 10, 11]),
        (("INFEASIBLE", "INCOMPLETE"), None, [2, 4, 11]),
        (("COMPLETE",), 2, [1, 3]),
        (("COMPLETE", "INFEASIBLE"), 2, [1, 2, 3]),
        (None, 1, [1]),
        (None, 99, [1, 2, 3, 4, 10, 11]),
        ((), None, []),
    ],
)
def test_trials_and_measurements_are_filtered_alike(
    store: Store, status: tuple[str, ...] | None, first: int | None, expected: list[int]
) -> None:
    trials = store.trials(WORKLOAD, status=status, first=first)
    assert trials["trial"].tolist() == expected * 2
    assert trials["batch_size"].tolist() == [8] * len(expected) + [64] * len(expected)
    measurements = store.measurements(WORKLOAD, status=status, first=first)
    assert measurements["trial"].tolist() == [n for n in expected for _ in range(3)] * 2


def test_types_are_as_documented(store: Store) -> None:
    measurements = store.measurements(WORKLOAD, metrics=["val/classification_error"])
    assert measurements.dtypes.astype(str).to_dict() == {
        "workload": "category",
        "batch_size": "int64",
        "trial": "int64",
        "step": "int64",
        "val/classification_error": "double[pyarrow]",
    }
    trials = store.trials(WORKLOAD)
    assert trials.dtypes.astype(str).to_dict() == {
        "workload": "category",
        "batch_size": "int64",
        "trial": "int64",
        "status": "string",
        "steps": "Int64",
        "learning_rate": "double[pyarrow]",
    }
    studies = store.studies()
    assert str(studies["train_steps"].dtype) == "Int64"
    assert str(studies["early_stopping"].dtype) == "boolean"


def test_a_workloads_trials_lack_the_metaparameters_of_others(store: Store) -> None:
    assert "momentum" not in store.trials(WORKLOAD).columns
    assert store.trials("a/b/c")["momentum"].tolist() == [0.9]
    everything = store.trials()
    assert everything.loc[everything["workload"] == "a/b/c", "learning_rate"].isna().all()


def test_load_workload_is_indexed_by_batch_size_trial_and_step(store: Store) -> None:
    frame = load_workload(WORKLOAD, first=1, data=store.path)
    assert frame.index.names == ["batch_size", "trial", "step"]
    assert frame.index.tolist() == [(b, 1, s) for b in (8, 64) for s in (0, 10, 20)]
    assert frame.loc[(64, 1, 20), "val/classification_error"] == 0.1
    plain = store.measurements(WORKLOAD, first=1).set_index(["batch_size", "trial", "step"])
    pd.testing.assert_frame_equal(frame, plain.drop(columns="workload"))
    assert frame.index.is_monotonic_increasing
    assert frame.index.is_unique


def test_counts_are_by_status(store: Store) -> None:
    counts = store.counts().set_index(["workload", "batch_size"])
    assert counts.loc[(WORKLOAD, 8)].to_dict() == {
        "complete": 3, "incomplete": 1, "infeasible": 2, "other": 0, "measurements": 18,
    }  # fmt: skip
    assert counts.loc[("a/b/c", 4)].to_dict() == {
        "complete": 1, "incomplete": 0, "infeasible": 0, "other": 0, "measurements": 0,
    }  # fmt: skip


def test_a_workload_without_measurements_gives_empty_typed_frames(store: Store) -> None:
    frame = store.measurements("a/b/c")
    assert len(frame) == 0
    assert str(frame["val/classification_error"].dtype) == "double[pyarrow]"
    assert len(load_workload("a/b/c", data=store.path)) == 0


def test_an_unknown_workload_is_answered_with_the_nearest(store: Store) -> None:
    for attempt in (store.trials, store.measurements, store.studies, store.metrics):
        with pytest.raises(UnknownWorkload, match="did you mean mnist/fc_1024/sgd"):
            attempt("mnist/fc_1024/sdg")
    with pytest.raises(KeyError, match="no metric val/loss; it has train/cross_entropy_error"):
        store.measurements(WORKLOAD, metrics=["val/loss"])


def test_missing_tables_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreMissing, match="run 'batchscience fetch'"):
        Store(tmp_path)
    monkeypatch.setenv("BATCHSCIENCE_DATA", str(tmp_path / "here"))
    with pytest.raises(StoreMissing, match="here"):
        Store()
    monkeypatch.delenv("BATCHSCIENCE_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "share"))
    with pytest.raises(StoreMissing, match="share/batchscience"):
        Store()


def test_tables_of_another_schema_are_refused(store: Store, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(store.path, tmp_path / "copy")
    manifest = next((tmp_path / "copy").rglob("manifest.json"))
    manifest.write_text(manifest.read_text().replace('"schema": 1', '"schema": 99'))
    with pytest.raises(SchemaError, match="schema 99"):
        Store(tmp_path / "copy")


def test_a_folder_of_tables_without_a_pointer_is_a_store(store: Store) -> None:
    tables = next(store.path.rglob("manifest.json")).parent
    assert Store(tables).workloads() == store.workloads()


def test_nonsense_is_refused(store: Store) -> None:
    with pytest.raises(TypeError, match="status takes several"):
        store.trials(WORKLOAD, status="COMPLETE")
    with pytest.raises(ValueError, match="counts trials from 1"):
        store.trials(WORKLOAD, first=0)


def test_filters_equal_those_of_pandas_on_random_trials(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    files: dict[str, bytes] = {}
    for batch_size in (1, 2, 4):
        study = f"x/y/z/{batch_size}"
        numbers = rng.choice(50, 20, replace=False)
        files |= study_files({int(n): CURVE for n in numbers}, study=study)
        for n in numbers:
            status = str(rng.choice(["COMPLETE", "INFEASIBLE"]))
            files[f"{study}/{n}/metadata.json"] = metadata_json(int(n), status=status)
    ingest(write_files(tmp_path / "raw", files), tmp_path / "s")
    store = Store(tmp_path / "s")
    everything = store.trials(status=None)
    complete = everything[everything["status"] == "COMPLETE"]
    for first in (1, 3, 5, 100):
        expected = complete.groupby("batch_size").head(first)
        found = store.trials("x/y/z", first=first)
        key = ["batch_size", "trial"]
        assert found[key].to_numpy().tolist() == expected[key].to_numpy().tolist()
        rows = store.measurements("x/y/z", first=first)[key].drop_duplicates()
        assert rows.to_numpy().tolist() == expected[key].to_numpy().tolist()


def test_a_column_empty_in_one_file_changes_no_type(tmp_path: Path) -> None:
    header, *lines = CURVE.splitlines()
    emptied = "\n".join([header, *(line.rpartition(",")[0] + "," for line in lines)]) + "\n"
    files = study_files({1: emptied}, study="x/y/z/1") | study_files({1: CURVE, 2: emptied}, study="x/y/z/2")
    ingest(write_files(tmp_path / "raw", files), tmp_path / "s")
    frame = Store(tmp_path / "s").measurements("x/y/z")
    assert str(frame["val/classification_error"].dtype) == "double[pyarrow]"
    assert frame.groupby(["batch_size", "trial"])["val/classification_error"].count().tolist() == [0, 3, 0]


def test_trials_are_found_however_the_rows_of_their_table_are_grouped(store: Store, tmp_path: Path) -> None:
    import json
    import shutil

    import pyarrow.parquet as pq

    shutil.copytree(store.path, tmp_path / "copy")
    path = next((tmp_path / "copy").rglob("trials.parquet"))
    table = pq.read_table(path)
    for statistics in (True, False):
        pq.write_table(table, path, row_group_size=5, write_statistics=statistics)
        manifest = path.parent / "manifest.json"
        parts = json.loads(manifest.read_text())
        parts["files"]["trials.parquet"] = path.stat().st_size
        manifest.write_text(json.dumps(parts))
        found = Store(tmp_path / "copy").measurements(WORKLOAD, first=2)
        pd.testing.assert_frame_equal(found, store.measurements(WORKLOAD, first=2))


def test_steps_far_apart_are_indexed_like_steps_close_together(tmp_path: Path) -> None:
    far = CURVE.replace("\n10,", "\n10000000000,").replace("\n20,", "\n20000000000,")
    ingest(write_files(tmp_path / "raw", study_files({1: far})), tmp_path / "s")
    frame = load_workload(WORKLOAD, data=tmp_path / "s")
    assert frame.index.tolist() == [(64, 1, 0), (64, 1, 10**10), (64, 1, 2 * 10**10)]


def test_the_bundled_studies_open_and_show_what_their_readme_says() -> None:
    from batchscience.goals import Goal
    from batchscience.results import steps_by_batch_size

    store = Store.bundled()
    digits = [f"digits/fc_64/{name}" for name in ("adam", "momentum", "nesterov_momentum", "sgd")]
    others = {"fashion_mnist/fc_64/momentum": (7, 40), "mnist1d/fc_100/momentum": (11, 60)}
    assert store.workloads() == [*digits, *others]
    counts = store.counts().set_index("workload")
    for workload, (studies, trials) in {**dict.fromkeys(digits, (12, 100)), **others}.items():
        found = counts.loc[workload]
        assert (found["complete"] + found["infeasible"] == trials).all()
        assert len(found) == studies
    assert counts["infeasible"].sum() == counts.loc["mnist1d/fc_100/momentum", "infeasible"].sum() == 131
    goal = Goal("val/classification_error", 0.03)
    steps = {
        workload: steps_by_batch_size(store, workload, goal).set_index("batch_size")["best_of_k"]
        for workload in digits
    }
    # Larger batches need fewer steps until they need no fewer; momentum makes more of them than plain SGD.
    for found in steps.values():
        assert found[1] / found[64] > 20
        assert found[512] / found[1280] < 2
    for momentum in ("momentum", "nesterov_momentum"):
        assert steps["digits/fc_64/sgd"][1280] / steps[f"digits/fc_64/{momentum}"][1280] > 1.5
