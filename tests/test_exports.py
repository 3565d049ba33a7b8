"""A tracker's panel exports: read as they come, with declared units, and round to load_workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import Result

from batchscience.errors import LayoutError, UnknownMetric
from batchscience.exports import import_panels
from batchscience.goals import Goal
from batchscience.ingest import ingest
from batchscience.layout import UNIT_FILE, read_study, read_trial
from batchscience.results import steps_to_goal
from batchscience.store import Store, load_workload

from .test_cli import run as run  # the fixture

WORKLOAD = "mine/net/sgd"
ERROR = "val/error"
RUNS = 'run,batch_size,learning_rate\nbrisk-sun-1,64,0.5\n"calm - sea",128,1e-3\n'
PANEL = (
    '"Step","brisk-sun-1 - val/error","brisk-sun-1 - val/error__MIN","brisk-sun-1 - val/error__MAX",'
    '"calm - sea - val/error","calm - sea - val/error__MIN","calm - sea - val/error__MAX"\n'
    '"0","0.9","0.8","0.95","0.91","0.9","0.92"\n'
    '"100","0.30000000000000004","0.1","0.5","","",""\n'
    '"200","0.1","0.05","0.2","0.2","0.1","0.3"\n'
)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a panel and its table of runs, which is the current one."""
    (tmp_path / "panel.csv").write_text(PANEL, encoding="utf-8")
    (tmp_path / "runs.csv").write_text(RUNS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(panels: Sequence[str] = ("panel.csv",), **options: Any) -> pd.DataFrame:
    """What load_workload finds after an import and an ingest."""
    words = {"workload": WORKLOAD, "updates_per_step": 1, **options}
    import_panels(panels, words.pop("runs", "runs.csv"), "studies", **words)
    report = ingest("studies", "tables", replace=True)
    assert report.problems == ()
    return load_workload(words["workload"], data="tables", status=None)


def curve(frame: pd.DataFrame, batch_size: int, metric: str = ERROR, trial: int = 1) -> dict[int, Any]:
    column = frame.loc[(batch_size, trial), metric]
    return {step: None if value is pd.NA else value for step, value in column.items()}


def panel(runs: Mapping[str, Mapping[float, Any]], metric: str = ERROR) -> str:
    """A panel export of one metric, with one column for each run."""
    steps = sorted({step for values in runs.values() for step in values})
    lines = [",".join(['"Step"', *(f'"{run} - {metric}"' for run in runs)])]
    for step in steps:
        lines.append(",".join(f'"{cell}"' for cell in (step, *(v.get(step, "") for v in runs.values()))))
    return "\n".join(lines) + "\n"


def test_quoted_values_are_taken_from_the_value_column_and_batch_sizes_from_the_table(here: Path) -> None:
    frame = imported()
    assert frame.columns.tolist() == [ERROR]
    assert curve(frame, 64) == {0: 0.9, 100: 0.30000000000000004, 200: 0.1}
    # The other run was not measured at step 100, and its name holds the separator.
    assert curve(frame, 128) == {0: 0.91, 200: 0.2}
    trials = Store("tables").trials(WORKLOAD)
    assert trials["learning_rate"].tolist() == [0.5, 0.001]
    assert trials["steps"].tolist() == [200, 200]
    assert trials["status"].tolist() == ["COMPLETE", "COMPLETE"]
    study = read_study(here / "studies" / WORKLOAD / "64")
    assert (study.dataset, study.model, study.optimizer, study.batch_size) == ("mine", "net", "sgd", 64)
    assert set(Store("tables").studies()["source"]) == {"import of panel.csv"}


def test_min_and_max_columns_come_only_on_request(here: Path) -> None:
    frame = imported(ranges=True)
    assert frame.columns.tolist() == [ERROR, f"{ERROR}__MAX", f"{ERROR}__MIN"]
    assert curve(frame, 64, f"{ERROR}__MIN") == {0: 0.8, 100: 0.1, 200: 0.05}
    assert curve(frame, 64, f"{ERROR}__MAX") == {0: 0.95, 100: 0.5, 200: 0.2}
    # A goal that only the minimum of a bucket meets is not met.
    found = steps_to_goal(frame, Goal(ERROR, 0.08))
    assert found["steps"].isna().all()


def test_a_byte_order_mark_crlf_and_blank_lines_are_read(here: Path) -> None:
    plain = imported()
    text = "\ufeff" + PANEL.replace("\n", "\r\n") + "\r\n\r\n"
    (here / "panel.csv").write_bytes(text.encode())
    (here / "runs.csv").write_bytes(("\ufeff" + RUNS.replace("\n", "\r\n") + "\r\n").encode())
    again = imported(workload="mine/net/again")
    pd.testing.assert_frame_equal(again, plain)


def test_a_step_is_an_optimizer_update_by_the_declared_unit(here: Path) -> None:
    frame = imported(updates_per_step=8)
    assert curve(frame, 64) == {0: 0.9, 800: 0.30000000000000004, 1600: 0.1}
    unit = json.loads((here / "studies" / WORKLOAD / "64" / "1" / UNIT_FILE).read_text())
    assert unit == {"run": "brisk-sun-1", "step_column": "Step", "updates_per_step": "8", "seconds": None}
    assert read_trial(here / "studies" / WORKLOAD / "64" / "1").file.steps == 1600


def test_the_unit_may_be_a_column_of_the_table_and_is_then_no_setting(here: Path) -> None:
    (here / "runs.csv").write_text("run,batch_size,unit\nbrisk-sun-1,64,2\ncalm - sea,128,1/50\n")
    frame = imported(updates_per_step="unit")
    assert list(curve(frame, 64)) == [0, 200, 400]
    assert list(curve(frame, 128)) == [0, 4]
    assert "unit" not in Store("tables").trials(WORKLOAD)


def test_several_logged_micro_batches_of_an_update_count_as_their_last(here: Path) -> None:
    (here / "panel.csv").write_text(panel({"brisk-sun-1": {0: 0.9, 8: 0.5, 12: 0.4, 15: 0.3, 16: 0.2}}))
    (here / "runs.csv").write_text("run,batch_size\nbrisk-sun-1,64\n")
    assert curve(imported(updates_per_step="1/8"), 64) == {0: 0.9, 1: 0.3, 2: 0.2}


def test_fractional_epochs_become_updates(here: Path) -> None:
    points = {"0": 0.9, "0.333333333": 0.4, "0.4995": 0.2, "1.0": 0.1}
    text = '"epoch","brisk-sun-1 - val/error"\n' + "".join(f'"{e}","{v}"\n' for e, v in points.items())
    (here / "panel.csv").write_text(text)
    (here / "runs.csv").write_text("run,batch_size,updates_per_epoch\nbrisk-sun-1,64,900\n")
    frame = imported(updates_per_step="updates_per_epoch", step_column="epoch")
    assert curve(frame, 64) == {0: 0.9, 300: 0.4, 449: 0.2, 900: 0.1}


def test_a_panel_with_another_axis_is_read_by_each_runs_own_steps(here: Path) -> None:
    header = '"epoch","brisk-sun-1 - _step","brisk-sun-1 - _step__MIN","brisk-sun-1 - val/error"'
    (here / "panel.csv").write_text(header + '\n"0.5","50","50","0.9"\n"1","100","100","0.1"\n')
    (here / "runs.csv").write_text("run,batch_size\nbrisk-sun-1,64\n")
    assert curve(imported(step_column="_step"), 64) == {50: 0.9, 100: 0.1}
    with pytest.raises(LayoutError, match=r"expected a column 'Step' of logged steps, found 'epoch'.*x axis"):
        imported(workload="mine/net/adam")


def test_panels_of_several_metrics_merge_by_run_and_step(here: Path) -> None:
    losses = {"calm - sea": {0: 2.5, 100: 1.5}, "brisk-sun-1": {50: 2.0, 200: 1.0}}
    (here / "loss.csv").write_text(panel(losses, "train/loss"))
    frame = imported(["panel.csv", "loss.csv"])
    assert curve(frame, 64) == {0: 0.9, 50: None, 100: 0.30000000000000004, 200: 0.1}
    assert curve(frame, 64, "train/loss") == {0: None, 50: 2.0, 100: None, 200: 1.0}
    assert curve(frame, 128, "train/loss") == {0: 2.5, 100: 1.5, 200: None}
    turned = imported(["loss.csv", "panel.csv"], workload="mine/net/turned")
    pd.testing.assert_frame_equal(turned, frame)
    one = imported(["panel.csv", "loss.csv"], workload="mine/net/one", metrics=["train/loss"])
    assert one.columns.tolist() == ["train/loss"]
    assert curve(one, 64, "train/loss") == {50: 2.0, 200: 1.0}


def test_panels_that_contradict_each_other_are_reported_and_the_later_kept(here: Path) -> None:
    (here / "later.csv").write_text(panel({"brisk-sun-1": {200: 0.15, 300: 0.05}}))
    with pytest.warns(UserWarning, match="1 values contradict .* the later panel was kept: brisk-sun-1"):
        frame = imported(["panel.csv", "later.csv"])
    assert curve(frame, 64) == {0: 0.9, 100: 0.30000000000000004, 200: 0.15, 300: 0.05}


def test_a_resumed_run_in_a_panel_keeps_its_last_attempt(here: Path) -> None:
    rows = [(0, 0.9), (100, 0.5), (200, 0.05), (100, 0.45), (200, 0.4)]
    text = "Step,brisk-sun-1 - val/error\n" + "".join(f"{step},{value}\n" for step, value in rows)
    (here / "panel.csv").write_text(text)
    (here / "runs.csv").write_text("run,batch_size\nbrisk-sun-1,64\n")
    with pytest.warns(UserWarning, match="'brisk-sun-1': 2 rows of an abandoned attempt replaced"):
        frame = imported()
    assert curve(frame, 64) == {0: 0.9, 100: 0.45, 200: 0.4}


def test_updates_a_second_that_differ_more_than_tenfold_name_the_runs(here: Path) -> None:
    table = "run,batch_size,Runtime\nbrisk-sun-1,64,{}\ncalm - sea,128,20\n"
    (here / "runs.csv").write_text(table.format(2.1))
    imported()  # 95 and 10 updates a second
    (here / "runs.csv").write_text(table.format(1.9))
    with pytest.warns(
        UserWarning, match=r"'brisk-sun-1' made 105 updates a second and run 'calm - sea' 10, 11 times fewer"
    ):
        frame = imported(workload="mine/net/fast")
    assert "Runtime" not in Store("tables").trials("mine/net/fast")
    assert len(frame) == 5
    unit = json.loads((here / "studies/mine/net/fast/64/1" / UNIT_FILE).read_text())
    assert unit["seconds"] == 1.9
    # Declared run by run, a step is the same in both.
    (here / "runs.csv").write_text(
        "run,batch_size,seconds,unit\nbrisk-sun-1,64,1.9,1\ncalm - sea,128,20,10\n"
    )
    imported(workload="mine/net/declared", updates_per_step="unit")


def test_seconds_that_the_tracker_logged_are_compared_too(here: Path) -> None:
    seconds = {"brisk-sun-1": {0: 0.1, 200: 1.0}, "calm - sea": {0: 1.0, 200: 50.0}}
    (here / "time.csv").write_text(panel(seconds, "_runtime"))
    with pytest.warns(UserWarning, match="'brisk-sun-1' made 200 updates a second and run 'calm - sea' 4"):
        frame = imported(["panel.csv", "time.csv"])
    assert frame.columns.tolist() == [ERROR]


@pytest.mark.parametrize("points", [500, 1000, 1500])
def test_an_import_that_looks_sampled_warns_that_steps_are_upper_bounds(here: Path, points: int) -> None:
    rng = np.random.default_rng(points)
    steps = np.sort(rng.choice(100_000, points, replace=False)).tolist()
    regular = {10 * i: 0.5 for i in range(points)}
    (here / "panel.csv").write_text(panel({"brisk-sun-1": dict.fromkeys(steps, 0.5), "calm - sea": regular}))
    with pytest.warns(UserWarning, match="1 curves .* upper bounds: brisk-sun-1$"):
        imported()
    (here / "panel.csv").write_text(
        panel({"brisk-sun-1": dict.fromkeys(steps[1:], 0.5), "calm - sea": regular})
    )
    imported(workload="mine/net/whole")


def test_sampled_panels_of_other_steps_are_seen_before_they_merge(here: Path) -> None:
    rng = np.random.default_rng(0)
    for name, metric in (("panel.csv", ERROR), ("loss.csv", "train/loss")):
        steps = np.sort(rng.choice(100_000, 1000, replace=False)).tolist()
        (here / name).write_text(panel({"brisk-sun-1": dict.fromkeys(steps, 0.5)}, metric))
    (here / "runs.csv").write_text("run,batch_size\nbrisk-sun-1,64\n")
    with pytest.warns(UserWarning, match="look sampled"):
        assert len(imported(["panel.csv", "loss.csv"])) > 1500


def test_a_run_that_no_panel_shows_is_a_trial_without_measurements(here: Path) -> None:
    (here / "runs.csv").write_text(RUNS + "lost-one,64,0.1\n")
    with pytest.warns(UserWarning, match=r"1 of 3 runs have no values .* without measurements: lost-one;"):
        frame = imported()
    assert set(frame.index.get_level_values("trial")) == {1}
    trials = Store("tables").trials(WORKLOAD)
    found = steps_to_goal(Store("tables").measurements(WORKLOAD), Goal(ERROR, 0.25), trials=trials)
    assert found["steps"].tolist() == [200, pd.NA, 200]


def test_trackers_words_for_how_a_run_ended_and_given_trials_are_taken(here: Path) -> None:
    (here / "runs.csv").write_text(
        "Name,State,batch_size,trial,lr,note\nbrisk-sun-1,CRASHED,64,7,3,\ncalm - sea,diverged,128,2,nan,x\n"
    )
    imported()
    trials = Store("tables").trials(WORKLOAD, status=None)
    assert trials["status"].tolist() == ["INCOMPLETE", "INFEASIBLE"]
    assert trials["trial"].tolist() == [7, 2]
    assert read_trial(here / "studies" / WORKLOAD / "64" / "7").file.parameters == {"lr": 3}
    assert read_trial(here / "studies" / WORKLOAD / "128" / "2").file.parameters == {"lr": "nan", "note": "x"}
    imported(workload="mine/net/lr", settings=["lr"])
    assert read_trial(here / "studies/mine/net/lr/128/2").file.parameters == {"lr": "nan"}


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("panel.csv", PANEL.replace("brisk-sun-1 - ", "other - "),
         "run 'other' of the column 'other - val/error' is not in runs.csv; add a row with its batch size"),
        ("panel.csv", PANEL.replace("brisk-sun-1 - ", "Group: 64 - "), "export the panel ungrouped"),
        ("panel.csv", PANEL.replace("brisk-sun-1 - val/error\"", "Wall time\""),
         "panel.csv: column 'Wall time' is none of a panel, which are called 'RUN - METRIC'"),
        ("panel.csv", "Step,brisk-sun-1 - val/error__MIN\n0,1\n",
         "without the column of its values, 'brisk-sun-1 - val/error'"),
        ("panel.csv", "Step,brisk-sun-1 - a,brisk-sun-1 - a\n0,1,1\n", "comes twice.*rename them"),
        ("panel.csv", "Step,brisk-sun-1 - a\n0,low\n",
         "panel.csv: line 2: column 'brisk-sun-1 - a': expected a number, found 'low'"),
        ("panel.csv", "Step,brisk-sun-1 - a\n-3,1\n",
         "line 2: column 'Step': a logged step is a number from 0"),
        ("panel.csv", "Step,brisk-sun-1 - a\n3\n", "line 2: expected 2 cells, found 1"),
        ("panel.csv", "Step,brisk-sun-1 - a\n1e400,1\n",
         "line 2: column 'Step': a logged step is a number from 0, found '1e400'"),
        ("panel.csv", "Step,brisk-sun-1 - a\n0,\"1\n" + "0,1\n" * 50_000, "line .*: field larger than"),
        ("panel.csv", "Step,brisk-sun-1 - step\n0,1\n", "a metric called 'step' has no place"),
        ("panel.csv", "", "panel.csv: expected a header line, found an empty file"),
        ("panel.csv", "Step,brisk-sun-1 - a\n", "hold no values of any run"),
        ("runs.csv", "run,learning_rate\nx,1\n",
         "runs.csv: expected a column batch_size, found run, learning_rate"),
        ("runs.csv", "batch_size\n1\n", "expected a column run or Name"),
        ("runs.csv", "run,batch_size\n", "holds no run"),
        ("runs.csv", RUNS + "brisk-sun-1,8,1\n", "line 4: run 'brisk-sun-1' comes twice"),
        ("runs.csv", RUNS.replace("64", "6.5"),
         "line 2: batch_size: expected a whole number from 1, found '6.5'"),
        ("runs.csv", RUNS.replace("64", "1e30"), "line 2: batch_size: expected a whole number from 1"),
        ("runs.csv", RUNS.replace("64", ""), "line 2: batch_size: expected a number, found ''"),
        ("runs.csv", "run,batch_size,trial\nbrisk-sun-1,8,1\ncalm - sea,8,1\n",
         "trial 1 of batch size 8 is run 'brisk-sun-1' already"),
        ("runs.csv", "run,batch_size,status\nbrisk-sun-1,8,asleep\n", "status 'asleep' is none of COMPLETE"),
        ("runs.csv", "run,batch_size,unit\nbrisk-sun-1,64,0\ncalm - sea,128,1\n",
         "line 2: expected a positive number of updates per logged step, found '0'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_and_column_and_nothing_is_written(
    here: Path, file: str, text: str, message: str
) -> None:
    (here / file).write_text(text)
    unit = "unit" if "unit" in text else 1
    with pytest.raises(LayoutError, match=message):
        import_panels(["panel.csv"], "runs.csv", "studies", workload=WORKLOAD, updates_per_step=unit)
    assert not (here / "studies").exists()


def test_wrong_arguments_are_refused(here: Path) -> None:
    for workload in ("net/sgd", "mine/../sgd", "mine//sgd"):
        with pytest.raises(ValueError, match="dataset/model/optimizer"):
            imported(workload=workload)
    for unit in (0, "-1", "often", "1/0"):
        with pytest.raises(ValueError, match=r"positive number, a fraction such as 1/8, or a column"):
            imported(updates_per_step=unit)
    with pytest.raises(ValueError, match="no panel"):
        imported([])
    with pytest.raises(UnknownMetric, match="no values of val/loss; they hold val/error"):
        imported(metrics=["val/loss"])
    with pytest.raises(LayoutError, match=r"run 'brisk-sun-1': its last step is more than"):
        imported(updates_per_step="1e300")
    with pytest.raises(LayoutError, match=r"nowhere.csv: No such file"):
        imported(["nowhere.csv"])
    with pytest.raises(LayoutError, match=r"no column momentum; it has run, batch_size, learning_rate"):
        imported(settings=["momentum"])


def test_a_trial_that_is_there_is_not_overwritten(here: Path) -> None:
    imported()
    before = (here / "studies" / WORKLOAD / "64" / "1" / "measurements.csv").read_bytes()
    with pytest.raises(FileExistsError, match="64/1 exists; remove it or name another folder"):
        imported(updates_per_step=2)
    assert (here / "studies" / WORKLOAD / "64" / "1" / "measurements.csv").read_bytes() == before


values = st.floats(allow_nan=True, allow_infinity=True, width=64)
curves = st.dictionaries(st.integers(0, 10**12), values, min_size=1, max_size=8)
names = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), min_size=1, max_size=8).filter(
    lambda name: name == name.strip() and not name.startswith(("_", "Step")) and "__M" not in name
)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(names, curves, min_size=1, max_size=4),
    names.filter(lambda name: name not in ("step", "trial", "batch_size", "workload") and " - " not in name),
    st.integers(1, 7),
)
def test_what_is_imported_and_ingested_is_what_was_exported(
    tmp_path_factory: pytest.TempPathFactory,
    runs: dict[str, dict[int, float]],
    metric: str,
    unit: int,
) -> None:
    folder = tmp_path_factory.mktemp("export")

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    steps = sorted({step for values in runs.values() for step in values})
    lines = [",".join(['"Step"', *(quoted(f"{run} - {metric}") for run in runs)])]
    for step in steps:
        cells = [repr(values[step]) if step in values else "" for values in runs.values()]
        lines.append(",".join(f'"{cell}"' for cell in (step, *cells)))
    (folder / "panel.csv").write_text("\n".join(lines), encoding="utf-8")
    rows = [f"{quoted(run)},{2**i}" for i, run in enumerate(runs)]
    (folder / "runs.csv").write_text("\n".join(["run,batch_size", *rows]), encoding="utf-8")
    import_panels(
        [folder / "panel.csv"], folder / "runs.csv", folder / "raw", workload="a/b/c", updates_per_step=unit
    )
    report = ingest(folder / "raw", folder / "tables")
    assert report.problems == ()
    frame = Store(folder / "tables").measurements("a/b/c")
    found = {
        (size, step): repr(float(value))
        for size, step, value in zip(frame["batch_size"], frame["step"], frame.iloc[:, -1], strict=True)
    }
    expected = {
        (2**i, step * unit): repr(float(value))
        for i, values in enumerate(runs.values())
        for step, value in values.items()
    }
    assert found == expected


def test_the_command_imports_what_ingest_and_steps_read(here: Path, run: Callable[..., Result]) -> None:
    words = ("import", "panel.csv", "--runs", "runs.csv", "--workload", WORKLOAD, "--out", "mine")
    done = run(*words, "--updates-per-step", 4)
    assert done.exit_code == 0, done.stderr
    assert done.stdout == ""
    assert (
        "2 studies, 2 trials, 5 evaluations of val/error are in mine; batchscience ingest mine" in done.stderr
    )
    done = run("ingest", "mine", "--data", "tables")
    assert done.exit_code == 0, done.stderr
    done = run(
        "steps",
        WORKLOAD,
        "--data",
        "tables",
        "--metric",
        ERROR,
        "--goal",
        0.25,
        "--best-of",
        1,
        "--format",
        "json",
    )
    assert [(row["batch_size"], row["steps"]) for row in json.loads(done.stdout)] == [(64, 800), (128, 800)]
    again = run(*words, "--updates-per-step", 4)
    assert again.exit_code == 2
    assert "exists" in again.stderr
    assert run(*words[:-1], "other").exit_code == 2  # no unit declared
    wrong = run(*words[:-1], "other", "--updates-per-step", 1, "--metric", "loss")
    assert (wrong.exit_code, wrong.stdout) == (2, "")
    assert "no values of loss; they hold val/error" in wrong.stderr
    (here / "panel.csv").write_text(PANEL.replace("brisk-sun-1 - ", "other - "))
    wrong = run(*words[:-1], "other", "--updates-per-step", 1)
    assert wrong.exit_code == 1
    assert "error: panel.csv: run 'other' of the column" in wrong.stderr
    assert not (here / "other").exists()


def test_the_command_warns_of_unlike_rates_and_takes_ranges_and_settings(
    here: Path, run: Callable[..., Result]
) -> None:
    (here / "runs.csv").write_text(
        "run,batch_size,seconds,lr,note\nbrisk-sun-1,64,1,0.1,a\ncalm - sea,128,50,0.2,b\n"
    )
    done = run(
        "import", "panel.csv", "--runs", "runs.csv", "--workload", WORKLOAD, "--out", "mine", "--ranges",
        "--updates-per-step", 1, "--setting", "lr",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    assert "warning: run 'brisk-sun-1' made 200 updates a second" in done.stderr
    trial = read_trial(here / "mine" / WORKLOAD / "64" / "1")
    assert set(trial.curve.metrics) == {ERROR, f"{ERROR}__MIN", f"{ERROR}__MAX"}
    assert trial.file.parameters == {"lr": 0.1}
