"""The noise scale of best trials beside the critical batch size: which trial, which step, what is missing."""

from __future__ import annotations

import json
import math
from pathlib import Path

import fsspec
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from batchscience import shipped
from batchscience.cli import app
from batchscience.errors import LayoutError
from batchscience.goals import Goal
from batchscience.ingest import ingest
from batchscience.layout import (
    NOISE_FILE,
    RUN_FILE,
    Curve,
    RunFile,
    StudyFile,
    TrialFile,
    write_study,
    write_trial,
)
from batchscience.noise_scales import COLUMNS, at_goal, noise_scales
from batchscience.regimes import stored_regimes
from batchscience.results import steps_by_batch_size
from batchscience.store import Store

WORKLOAD = "mine/tiny/sgd"
GOAL = Goal("val/classification_error", 0.2)
SIZES = (1, 4, 16, 64, 256, 1024)


def noise_of(trial: int, size: int, steps: tuple[int, ...]) -> str:
    """A file in which every number says where it is from."""
    lines = ["step,noise_scale,low,high,gradient_squared,trace,batch,batches"]
    lines += [f"{step},{trial + step / 1000},{size},,1.0,2.0,16,64" for step in steps]
    return "\n".join(lines) + "\n"


def write_raw(raw: Path, *, measured_at: dict[int, tuple[int, ...]]) -> None:
    """Studies by the law steps = 20 + 3200 / batch size, in which the second of twelve trials is the best."""
    for size in SIZES:
        place = raw / WORKLOAD / str(size)
        goal = {"metric": GOAL.metric, "threshold": 0.2, "maximize": False, "inclusive": False}
        write_study(
            place,
            StudyFile(batch_size=size, dataset="mine", model="tiny", optimizer="sgd", train_steps=99_999),
            run=RunFile(source="trained abc", goal=goal),
        )
        for trial in range(1, 13):
            steps = (20 + 3200 // size) * (10 if trial == 2 else 11) // 10
            curve = Curve([0, steps], {GOAL.metric: [0.9, 0.1]})
            file = TrialFile(
                trial_id=trial, status="COMPLETE", steps=99_999, parameters={"learning_rate": 0.1}
            )
            extras = {NOISE_FILE: noise_of(trial, size, measured_at[size])} if size in measured_at else None
            write_trial(place, file, curve, extras=extras)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    # At 64 the best trial takes 70 steps, at 16 it takes 220; the two asymptotes cross at 160.
    write_raw(tmp_path / "raw", measured_at={16: (200,), 64: (10, 60, 90)})
    ingest(tmp_path / "raw", tmp_path / "tables")
    return Store(tmp_path / "tables")


def test_the_noise_scale_is_that_of_the_best_trial_at_each_step_where_it_was_measured(
    store: Store, tmp_path: Path
) -> None:
    table = noise_scales(tmp_path / "raw", store, draws=99)
    assert table["batch_size"].tolist() == [16, 64, 64, 64]
    assert table["trial"].tolist() == [2, 2, 2, 2]
    assert table["steps"].tolist() == [220, 70, 70, 70]
    assert table["step"].tolist() == [200, 10, 60, 90]
    assert table["noise_scale"].tolist() == [2.2, 2.01, 2.06, 2.09]
    assert table["noise_low"].tolist() == [16, 64, 64, 64]
    assert table["noise_high"].isna().all()
    assert (table["goal"] == 0.2).all()
    np.testing.assert_allclose(table["ratio"], table["noise_scale"] / table["critical_batch_size"])


def test_the_critical_batch_size_is_that_of_the_same_tables(store: Store, tmp_path: Path) -> None:
    table = noise_scales(tmp_path / "raw", store, draws=99)
    answer = stored_regimes(store, WORKLOAD, GOAL, draws=99)
    assert answer.law is not None
    assert set(table["critical_batch_size"]) == {answer.law.critical_batch_size}
    assert answer.law.critical_batch_size == pytest.approx(160, rel=0.3)


def test_at_the_goal_stands_the_nearest_step_of_the_batch_size_nearest_to_the_critical_one(
    store: Store, tmp_path: Path
) -> None:
    row = at_goal(noise_scales(tmp_path / "raw", store, draws=99)).iloc[0]
    # By ratio 60 is nearer to 70 than 90 is, and 64 nearer to 160 than 16 is.
    assert (row["batch_size"], row["step"], row["noise_scale"]) == (64, 60, 2.06)


def test_another_goal_has_other_best_steps(store: Store, tmp_path: Path) -> None:
    table = noise_scales(tmp_path / "raw", store, goal=Goal(GOAL.metric, 0.05), draws=99)
    # No trial gets there, so none is the best.
    assert table["trial"].isna().all()
    assert len(at_goal(table)) == 1


def test_a_workload_without_noise_scale_keeps_its_row(tmp_path: Path) -> None:
    write_raw(tmp_path / "raw", measured_at={})
    ingest(tmp_path / "raw", tmp_path / "tables")
    row = at_goal(noise_scales(tmp_path / "raw", Store(tmp_path / "tables"), draws=99)).iloc[0]
    assert row["workload"] == WORKLOAD
    assert row["critical_batch_size"] == pytest.approx(160, rel=0.3)
    assert math.isnan(row["noise_scale"])
    assert math.isnan(row["ratio"])
    assert row["step"] is pd.NA


def test_the_studies_may_lie_at_a_url(store: Store, tmp_path: Path) -> None:
    fsspec.filesystem("memory").put(f"{tmp_path}/raw", "/bucket/raw", recursive=True)
    there = noise_scales("memory://bucket/raw", store, draws=99)
    pd.testing.assert_frame_equal(there, noise_scales(tmp_path / "raw", store, draws=99))


def test_damaged_and_missing_files_are_named(store: Store, tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="nowhere: holds no workload of the tables"):
        noise_scales(tmp_path / "nowhere", store, draws=99)
    with pytest.raises(LayoutError, match="no study there states the goal"):
        noise_scales(tmp_path / "nowhere", store, workloads=[WORKLOAD], draws=99)
    (tmp_path / "raw" / WORKLOAD / "64" / "2" / NOISE_FILE).write_text("step,other\n1,2\n")
    with pytest.raises(LayoutError, match=r"64/2/noise\.csv: not a table of noise scales"):
        noise_scales(tmp_path / "raw", store, draws=99)
    for damaged in ("[1]", '{"goal": {"other": 1}}', '{"goal": {"metric": "a", "threshold": "low"}}'):
        (tmp_path / "raw" / WORKLOAD / str(SIZES[0]) / RUN_FILE).write_text(damaged)
        with pytest.raises(LayoutError, match=r"run\.json: does not state a goal"):
            noise_scales(tmp_path / "raw", store, draws=99)


def test_workloads_that_only_the_tables_hold_are_left_out(store: Store, tmp_path: Path) -> None:
    alone = noise_scales(tmp_path / "raw", store, draws=99)
    other = tmp_path / "other" / "mine" / "other" / "sgd" / "8"
    write_study(other, StudyFile(batch_size=8, dataset="mine", model="other", optimizer="sgd"))
    ingest(tmp_path / "other", tmp_path / "tables")
    both = Store(tmp_path / "tables")
    assert len(both.workloads()) == 2
    pd.testing.assert_frame_equal(noise_scales(tmp_path / "raw", both, draws=99), alone)


def test_the_command_prints_the_table_for_scripts(store: Store, tmp_path: Path) -> None:
    command = ["noise-scale", str(tmp_path / "raw"), "--data", str(tmp_path / "tables"), "--format", "json"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    (row,) = json.loads(result.stdout)
    assert list(row) == list(COLUMNS)
    assert (row["step"], row["noise_scale"], row["noise_high"]) == (60, 2.06, None)
    every = CliRunner().invoke(app, [*command, "--every-step", "--workload", "mine/*"])
    assert len(json.loads(every.stdout)) == 4
    none = CliRunner().invoke(app, [*command, "--workload", "others/*"])
    assert (none.exit_code, none.stdout) == (2, "")


# -- the tables that come with the package


def test_each_shipped_workload_has_a_row_of_its_noise_scale_and_critical_batch_size() -> None:
    table = shipped.noise_scale()
    assert list(table.columns) == list(COLUMNS)
    assert table["workload"].tolist() == Store.bundled().workloads()
    pd.testing.assert_frame_equal(at_goal(shipped.noise_scale_by_step()), table)


@pytest.mark.filterwarnings("ignore:.*studies have")  # a shipped search differs in its trials, and says so
def test_the_shipped_numbers_are_those_of_the_shipped_tables() -> None:
    store, goals = Store.bundled(), shipped.goals()
    for row in shipped.noise_scale().to_dict("records"):
        goal = goals[row["workload"]]
        assert (goal.metric, goal.threshold) == (row["metric"], row["goal"])
        answer = stored_regimes(store, row["workload"], goal, draws=99)
        if answer.law is None or not answer.law.determined:
            assert math.isnan(row["critical_batch_size"])
        else:
            assert row["critical_batch_size"] == pytest.approx(answer.law.critical_batch_size, rel=1e-6)
        if row["trial"] is not pd.NA:
            steps = steps_by_batch_size(store, row["workload"], goal).set_index("batch_size")
            best = steps.loc[row["batch_size"]]
            assert (best["trial"], best["steps"]) == (row["trial"], row["steps"])
