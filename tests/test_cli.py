"""The command line: exit codes, and tables on standard output alone."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batchscience.cli import app
from batchscience.places import bundled
from batchscience.store import Store

from .raw import CURVE, study_files, write_tar

Run = Callable[..., Result]

MNIST = "mnist/simple_cnn_base/nesterov_momentum"


@pytest.fixture
def run() -> Iterator[Run]:
    """A command of the package, in this process."""
    import warnings

    shown = warnings.showwarning
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        yield lambda *words: CliRunner().invoke(app, [str(word) for word in words])
    warnings.showwarning = shown


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from batchscience.cli import app\n"
        "try: app(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'pandas', 'pyarrow', 'scipy', 'matplotlib', 'seaborn', 'tensorflow', 'rich'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == ""
    assert "workloads" in done.stdout


def test_importing_the_package_loads_neither_matplotlib_nor_tensorflow() -> None:
    code = (
        "import sys, batchscience\n"
        "[getattr(batchscience, name) for name in batchscience.__all__]\n"
        "print(*sorted({'matplotlib','seaborn','tensorflow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_public_name_is_there() -> None:
    import batchscience

    assert {name for name in batchscience.__all__ if not hasattr(batchscience, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        batchscience.nothing  # noqa: B018


def test_workloads_as_table_csv_and_json(run: Run, simulated_store: Store) -> None:
    fields = ["workload", "batch_size", "complete", "incomplete", "infeasible", "measurements"]
    as_json = run("workloads", "--data", simulated_store.path, "--format", "json")
    rows = json.loads(as_json.stdout)
    assert len(rows) == 454
    assert list(rows[0]) == fields
    as_csv = run("workloads", "--data", simulated_store.path, "--format", "csv")
    parsed = list(csv.DictReader(io.StringIO(as_csv.stdout)))
    assert [{k: str(v) for k, v in row.items()} for row in rows] == parsed
    as_table = run("workloads", "--data", simulated_store.path)
    assert len(as_table.stdout.splitlines()) == 455


def test_check_lists_every_difference_and_exits_1(run: Run, simulated_store: Store) -> None:
    done = run("workloads", "--data", simulated_store.path, "--check", "--format", "json")
    assert done.exit_code == 1
    rows = json.loads(done.stdout)
    assert list(rows[0]) == ["workload", "batch_size", "status", "published", "found"]
    # A few trials of each study were simulated, so every study differs from the publication.
    assert len({(row["workload"], row["batch_size"]) for row in rows}) == 454
    assert "differences from the 454 published studies" in done.stderr


def test_steps_has_its_documented_fields(run: Run, simulated_store: Store) -> None:
    done = run("steps", MNIST, "--data", simulated_store.path, "--format", "json", "--best-of", 3)
    assert done.exit_code == 0, done.stderr
    rows = json.loads(done.stdout)
    fields = "workload batch_size steps trial after reached trials best_of_k best_of_low best_of_high"
    assert set(fields.split()) <= set(rows[0])
    assert [row["batch_size"] for row in rows] == sorted(row["batch_size"] for row in rows)
    assert all(row["reached"] <= row["trials"] for row in rows)
    assert "fewer than 100 trials" in done.stderr


def test_a_goal_nobody_reaches_is_null_not_missing(run: Run, simulated_store: Store) -> None:
    words = ("steps", MNIST, "--data", simulated_store.path, "--metric", "val/classification_error")
    done = run(*words, "--goal", 0, "--format", "json")
    rows = json.loads(done.stdout)
    assert len(rows) == len(simulated_store.studies(MNIST))
    assert all(row["steps"] is None and row["trial"] is None and row["reached"] == 0 for row in rows)
    as_csv = run(*words, "--goal", 0, "--format", "csv")
    assert next(csv.DictReader(io.StringIO(as_csv.stdout)))["steps"] == ""


@pytest.mark.parametrize("command", ["steps", "metaparameters"])
def test_a_budget_of_epochs_is_one_of_passes_over_the_training_set(
    run: Run, simulated_store: Store, command: str
) -> None:
    words = (command, MNIST, "--data", simulated_store.path, "--format", "json")
    epochs = run(*words, "--budget-epochs", 0.5)
    assert epochs.exit_code == 0, epochs.stderr
    # The paper trains Simple CNN on 55,000 examples of MNIST.
    assert epochs.stdout == run(*words, "--budget-examples", 27_500).stdout
    assert epochs.stdout != run(*words).stdout
    smaller = run(*words, "--budget-epochs", 5.5, "--training-set-size", 5_000)
    assert smaller.stdout == epochs.stdout


def test_epochs_of_a_training_set_of_unknown_size_ask_for_it(run: Run, simulated_store: Store) -> None:
    words = (
        "steps",
        "imagenet/resnet_50/nesterov_momentum",
        "--data",
        simulated_store.path,
        "--budget-epochs",
        1,
    )
    done = run(*words, "--metric", "val/classification_error", "--goal", 0.1)
    assert done.exit_code == 2
    assert "give --training-set-size" in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    "words",
    [
        ("steps", MNIST, "--metric", "val/classification_error"),
        ("steps", "my/own/workload"),
        ("steps", MNIST, "--metric", "val/classification_error", "--goal", "nan"),
        ("steps", MNIST, "--metric", "", "--goal", "0.1"),
        ("figures", "--workload", MNIST, "--metric", "val/classification_error", "--goal", "inf"),
        ("steps", MNIST, "--trials", "some"),
        ("steps", MNIST, "--budget-steps", "1", "--budget-examples", "1"),
        ("steps", MNIST, "--budget-steps", "0"),
        ("steps", MNIST, "--budget-epochs", "0"),
        ("steps", MNIST, "--budget-epochs", "1", "--budget-examples", "1"),
        ("steps", MNIST, "--training-set-size", "100"),
        ("metaparameters", MNIST, "--budget-epochs", "1", "--budget-steps", "1"),
        ("steps",),
        ("nothing",),
    ],
)
def test_wrong_usage_exits_2(run: Run, simulated_store: Store, words: tuple[str, ...]) -> None:
    done = run(*words, *(["--data", simulated_store.path] if len(words) > 1 else []))
    assert done.exit_code == 2
    assert done.stdout == ""


def test_missing_tables_and_unknown_workloads_exit_2(
    run: Run, simulated_store: Store, tmp_path: Path
) -> None:
    done = run("workloads", "--data", tmp_path / "none")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "run 'batchscience fetch'" in done.stderr
    words = ("--metric", "val/classification_error", "--goal", 0.1)
    done = run("steps", MNIST, "--data", simulated_store.path, "--metric", "val/loss", "--goal", 0.1)
    assert done.exit_code == 2
    assert "no metric val/loss; it has test/classification_error" in done.stderr
    done = run("steps", MNIST + "x", "--data", simulated_store.path, *words)
    assert done.exit_code == 2
    assert f"did you mean {MNIST}" in done.stderr


def test_ingest_of_a_damaged_archive_exits_1_with_the_list(run: Run, tmp_path: Path) -> None:
    files = study_files({1: CURVE, 2: "step,a\n1\n"})
    source = write_tar(tmp_path / "a.tar.bz2", files)
    done = run("ingest", source, "--data", tmp_path / "s")
    assert done.exit_code == 1
    assert (
        "damaged: mnist/fc_1024/sgd/64/2/measurements.csv: line 2: expected 2 cells, found 1" in done.stderr
    )
    assert "1 studies, 2 trials, 3 evaluations, 6 measurements" in done.stderr
    strict = run("ingest", source, "--data", tmp_path / "strict", "--strict")
    assert strict.exit_code == 1
    assert "line 2" in strict.stderr
    assert not list((tmp_path / "strict").glob("tables-*"))


def test_fetch_takes_a_file_verifies_and_ingests_it(run: Run, tmp_path: Path) -> None:
    import hashlib

    source = write_tar(tmp_path / "a.tar.bz2", study_files({1: CURVE}))
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    done = run("fetch", "--url", source, "--sha256", digest, "--data", tmp_path / "s")
    assert done.exit_code == 0, done.stderr
    assert Store(tmp_path / "s").workloads() == ["mnist/fc_1024/sgd"]
    wrong = run("fetch", "--url", source, "--data", tmp_path / "t")
    assert wrong.exit_code == 1
    assert digest in wrong.stderr
    assert not (tmp_path / "t" / "CURRENT").exists()


def test_simulate_writes_what_ingest_reads(run: Run, tmp_path: Path) -> None:
    done = run("simulate", "--out", tmp_path / "a.tar.gz", "--scale", 0.001, "--seed", 3)
    assert done.exit_code == 0, done.stderr
    done = run("ingest", tmp_path / "a.tar.gz", "--data", tmp_path / "s", "--workload", "mnist/*/sgd")
    assert done.exit_code == 0, done.stderr
    store = Store(tmp_path / "s")
    assert "mnist/fc_1024/sgd" in store.workloads()
    assert all(source.startswith("simulated") for source in store.studies()["source"])
    again = run("simulate", "--out", tmp_path / "a.tar.gz", "--scale", 0.001)
    assert again.exit_code == 2
    assert "exists" in again.stderr


def test_a_shipped_workload_has_the_goal_of_its_plan(run: Run) -> None:
    command = ["steps", "digits/fc_64/momentum", "--data", bundled("studies") / "tables", "--format", "json"]
    asked = run(*command, "--metric", "val/classification_error", "--goal", "0.03")
    silent = run(*command)
    assert silent.exit_code == 0, silent.output
    assert silent.stdout == asked.stdout


def test_a_workload_mistyped_is_said_before_a_goal_is_asked_for(run: Run) -> None:
    for command in ("steps", "metaparameters"):
        result = run(command, "digits/fc_64/momentun", "--data", bundled("studies") / "tables")
        assert result.exit_code == 2
        assert "did you mean digits/fc_64/momentum" in result.stderr
