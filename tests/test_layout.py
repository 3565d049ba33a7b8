"""The raw layout: what is written reads back to the last bit, and damage is named."""

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscience.errors import LayoutError
from batchscience.layout import (
    Curve,
    RawRows,
    StudyFile,
    TrialFile,
    finished_trials,
    parse_rows,
    read_study,
    read_trial,
    settle,
    write_study,
    write_trial,
)
from batchscience.spaces import Parameter, SearchSpace

from .raw import metadata_json, study_json

cells = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def same(a: float | None, b: float | None) -> bool:
    """Equal to the last bit, the sign of zero included; NaN equals NaN, None only None."""
    if a is None or b is None:
        return a is b
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    steps = sorted(draw(st.sets(st.integers(0, 10**12), max_size=8)))
    name = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zs", "Zl", "Zp")), min_size=1, max_size=12)
    names = draw(st.sets(name.filter(lambda n: n not in ("step", "﻿") and n.strip() == n), max_size=4))
    column = st.lists(cells, min_size=len(steps), max_size=len(steps))
    return Curve(steps, {n: draw(column) for n in sorted(names)})


@given(curves())
def test_a_curve_written_as_csv_reads_back_to_the_last_bit(curve: Curve) -> None:
    rows = parse_rows(curve.text().encode(), "here")
    assert rows.steps == list(curve.steps)
    assert list(rows.metrics) == list(curve.metrics)
    for name, values in curve.metrics.items():
        assert all(same(a, b) for a, b in zip(values, rows.metrics[name], strict=True))


@given(curves())
def test_settling_a_curve_that_is_in_order_changes_nothing(curve: Curve) -> None:
    settled = settle(RawRows(list(curve.steps), {n: list(v) for n, v in curve.metrics.items()}))
    assert settled.note() == ""
    assert list(settled.curve.steps) == list(curve.steps)
    for name, values in curve.metrics.items():
        assert all(same(a, b) for a, b in zip(values, settled.curve.metrics[name], strict=True))


@pytest.mark.parametrize(
    "text",
    [
        b"\xef\xbb\xbfstep,val/e\n0,1.5\n10,0.5\n",
        b"step,val/e\r\n0,1.5\r\n10,0.5\r\n",
        b'"step","val/e"\n"0","1.5"\n"10","0.5"\n',
        b"step,val/e\n0,1.5\n\n10,0.5\n\n\n",
        b"step,val/e\n0.0,1.5\n10.0,0.5",
        b" step , val/e \n 0 , 1.5 \n1e1,0.5\n",
    ],
    ids=["byte order mark", "CRLF", "quoted", "blank lines", "steps as floats", "spaces"],
)
def test_liberties_of_trackers_exports_are_parsed(text: bytes) -> None:
    rows = parse_rows(text, "here")
    assert rows.steps == [0, 10]
    assert rows.metrics == {"val/e": [1.5, 0.5]}


def test_fractional_epochs_beside_the_steps_are_a_metric_like_any_other() -> None:
    rows = parse_rows(b"epoch,step,val/e\n0,0,1.5\n0.25,10,0.5\n", "here")
    assert rows.steps == [0, 10]
    assert rows.metrics == {"epoch": [0.0, 0.25], "val/e": [1.5, 0.5]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "expected a header line"),
        (b"epoch,val/e\n1,2\n", "expected a column 'step', found 'epoch,val/e'"),
        (b"step,a,a\n1,2,3\n", "distinct column names"),
        (b"step,a\n1,2\n2\n", "line 3: expected 2 cells, found 1"),
        (b"step,a\n1,2,3\n", "line 2: expected 2 cells, found 3"),
        (b"step,a\n0.5,2\n", "a step is a whole number of optimizer updates, found '0.5'"),
        (b"step,a\n-1,2\n", "a step is a whole number"),
        (b"step,a\nnan,2\n", "a step is a whole number"),
        (b"step,a\n,2\n", "could not convert"),
        (b"step,a\n1,two\n", "line 2: could not convert string to float: 'two'"),
        (b"step,a\n1,\xff\n", "not UTF-8"),
        (b"<html><body>503</body></html>\n", "expected a column 'step'"),
    ],
)
def test_a_damaged_curve_is_refused_with_its_place(text: bytes, message: str) -> None:
    with pytest.raises(LayoutError, match=r"^over/there.csv: ") as caught:
        parse_rows(text, "over/there.csv")
    assert message in str(caught.value)


def test_a_missing_cell_is_not_a_nan() -> None:
    rows = parse_rows(b"step,a\n0,\n1,nan\n2,inf\n3,-inf\n", "here")
    assert rows.metrics["a"][0] is None
    assert math.isnan(rows.metrics["a"][1] or 0)
    assert rows.metrics["a"][2:] == [math.inf, -math.inf]


def test_rows_of_one_step_that_fill_each_others_gaps_are_merged() -> None:
    settled = settle(
        RawRows([0, 0, 10, 10], {"train": [1.0, None, 2.0, None], "val": [None, 3.0, None, 4.0]})
    )
    assert settled.curve.metrics == {"train": [1.0, 2.0], "val": [3.0, 4.0]}
    assert (settled.merged, settled.conflicting, settled.replaced) == (2, 0, 0)


def test_training_rows_followed_by_evaluation_rows_are_merged_not_taken_for_a_resumed_run() -> None:
    settled = settle(
        RawRows([0, 10, 0, 10], {"train": [1.0, 2.0, None, None], "val": [None, None, 3.0, 4.0]})
    )
    assert settled.curve.metrics == {"train": [1.0, 2.0], "val": [3.0, 4.0]}
    assert settled.replaced == 0


def test_exact_repeats_are_dropped() -> None:
    settled = settle(RawRows([0, 10, 10, 20], {"a": [1.0, 2.0, 2.0, 3.0]}))
    assert list(settled.curve.steps) == [0, 10, 20]
    assert (settled.repeated, settled.conflicting) == (1, 0)


def test_of_conflicting_repeats_the_later_is_kept_and_reported() -> None:
    settled = settle(RawRows([0, 10, 10, 20], {"a": [1.0, 2.0, 2.0000001, 3.0]}))
    assert settled.curve.metrics == {"a": [1.0, 2.0000001, 3.0]}
    assert "1 conflicting repeats" in settled.note()


def test_a_resumed_run_replaces_the_abandoned_attempt_and_says_how_many_rows() -> None:
    # The abandoned attempt reached 0.05 at step 30; the resumed one, from the checkpoint at 10, did not.
    settled = settle(RawRows([0, 10, 20, 30, 10, 20], {"a": [1.0, 0.5, 0.2, 0.05, 0.5, 0.3]}))
    assert list(settled.curve.steps) == [0, 10, 20]
    assert settled.curve.metrics == {"a": [1.0, 0.5, 0.3]}
    assert settled.replaced == 3


def test_a_curve_repeated_whole_is_dropped_as_a_repeat() -> None:
    settled = settle(RawRows([0, 10, 0, 10], {"a": [1.0, 0.5, 1.0, 0.5]}))
    assert settled.curve.metrics == {"a": [1.0, 0.5]}
    assert (settled.repeated, settled.replaced) == (2, 0)


def test_whole_numbers_may_be_ints_floats_or_strings() -> None:
    for batch_size in (64, 64.0, "64", "64.0"):
        assert StudyFile.parse(study_json(batch_size=batch_size), "x").batch_size == 64  # type: ignore[arg-type]
    with pytest.raises(LayoutError, match="here: batch_size"):
        StudyFile.parse(b'{"batch_size": "many"}', "here")
    with pytest.raises(LayoutError, match="here: batch_size"):
        StudyFile.parse(b'{"batch_size": 1.5}', "here")


def test_optional_keys_may_be_missing_and_unknown_keys_are_kept() -> None:
    study = StudyFile.parse(b'{"batch_size": 8, "goal": 0.1}', "x")
    assert study.train_steps is None
    assert study.unknown() == ["goal"]
    trial = TrialFile.parse(metadata_json(3, host="a"), "x")
    assert trial.unknown() == ["host"]
    assert TrialFile.parse(b"{}", "x").parameters == {}


def test_bad_json_is_refused_with_its_place() -> None:
    with pytest.raises(LayoutError, match=r"^a/study.json: Invalid JSON"):
        StudyFile.parse(b'{"batch_size": ', "a/study.json")
    with pytest.raises(LayoutError, match=r"^a/study.json: "):
        StudyFile.parse(b"[]", "a/study.json")


def test_a_study_and_its_search_space_read_back(tmp_path: Path) -> None:
    space = SearchSpace(
        (
            Parameter("learning_rate", "DOUBLE", 1e-4, 1.0, "LOG_SCALE"),
            Parameter("label_smoothing", "DISCRETE", feasible_points=(0.0, 0.1)),
            Parameter("learning_rate_decay_steps", "INTEGER", 10, 100),
        )
    )
    study = StudyFile.of(
        batch_size=8, dataset="mnist", model="fc", optimizer="sgd", train_steps=5, space=space
    )
    write_study(tmp_path / "8", study)
    assert read_study(tmp_path / "8") == study
    assert read_study(tmp_path / "8").space() == space
    published = json.loads((tmp_path / "8/study.json").read_text())
    assert set(published) == {
        *("batch_size", "dataset", "early_stopping", "model", "optimizer", "parameter_configs", "train_steps")
    }


@given(curve=curves(), number=st.integers(1, 10**6))
def test_a_trial_written_and_read_is_the_same(
    curve: Curve, number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("study")
    file = TrialFile(trial_id=number, status="COMPLETE", steps=5, parameters={"learning_rate": 0.1, "x": "é"})
    write_trial(folder, file, curve, extras={"facts.json": "{}"})
    trial = read_trial(folder / str(number))
    assert trial.file == file
    assert list(trial.curve.steps) == list(curve.steps)
    assert finished_trials(folder) == [number]
    assert (folder / str(number) / "facts.json").read_text() == "{}"


def test_a_finished_trial_is_never_overwritten(tmp_path: Path) -> None:
    write_trial(tmp_path, TrialFile(trial_id=1), Curve([0], {"a": [1.0]}))
    with pytest.raises(FileExistsError):
        write_trial(tmp_path, TrialFile(trial_id=1), Curve([0], {"a": [2.0]}))
    assert read_trial(tmp_path / "1").curve.metrics == {"a": [1.0]}


def test_a_trial_that_fails_while_being_written_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_trial(tmp_path, TrialFile(trial_id=1), Curve([0], {}), extras={".": ""})
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_writer_left_is_not_a_trial(tmp_path: Path) -> None:
    (tmp_path / ".3.99.tmp").mkdir()
    (tmp_path / ".3.99.tmp" / "metadata.json").write_bytes(metadata_json(3))
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "metadata.json").write_bytes(metadata_json(4))
    assert finished_trials(tmp_path) == []


def test_a_folder_named_after_another_trial_is_refused(tmp_path: Path) -> None:
    write_trial(tmp_path, TrialFile(trial_id=1), Curve([0], {}))
    (tmp_path / "1").rename(tmp_path / "2")
    with pytest.raises(LayoutError, match="trial 1 in the folder of trial 2"):
        read_trial(tmp_path / "2")


def test_a_curve_has_columns_of_one_length_and_increasing_steps() -> None:
    with pytest.raises(ValueError, match="expected 2 values"):
        Curve([0, 1], {"a": [1.0]})
    with pytest.raises(ValueError, match="must increase"):
        Curve([1, 1], {})
