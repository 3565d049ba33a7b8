"""The command `train`: what it lists, trains, goes on with, refuses, and leaves behind when interrupted."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from batchscience.cli import app
from batchscience.layout import read_study, read_trial

from .train_support import ROOT, quiet_environment

Run = Callable[..., Result]

PARABOLA = "parabola/tanh_5/sgd"


@pytest.fixture
def train(tmp_path: Path) -> Run:
    """The command in this process, writing to a folder `out`."""

    def run(*words: object) -> Result:
        return CliRunner().invoke(app, ["train", *map(str, words), "--out", str(tmp_path / "out")])

    return run


def apart(folder: Path, *words: object) -> subprocess.Popen[str]:
    """The command in a process of its own, for what TensorFlow takes once only and for signals."""
    start = "from batchscience.cli import app; app()"
    return subprocess.Popen(
        [sys.executable, "-c", start, "train", *map(str, words), "--out", str(folder)],
        cwd=ROOT,
        env=quiet_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file that declares the parabola with learning rates at which nothing diverges."""
    path = tmp_path / "mine.py"
    path.write_text(WORKLOAD)
    return path


WORKLOAD = """
from batchscience.spaces import Parameter, SearchSpace
from batchscience.train import Workload

workload = Workload(
    "parabola/tanh_5/sgd",
    space=SearchSpace((Parameter("learning_rate", "DOUBLE", 0.01, 0.1, "LOG_SCALE"),)),
)
"""


def said(result: Result) -> str:
    """Standard error without the line breaks and frames of a terminal."""
    return " ".join(result.stderr.replace("│", " ").split())


def all_files(folder: Path) -> dict[str, bytes]:
    """Contents of the published files by their place; what stands beside them tells of times."""
    names = ("study.json", "metadata.json", "measurements.csv")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in names
    }


def test_list_names_the_workloads_of_the_paper_and_those_that_need_no_download(train: Run) -> None:
    done = train("--list")
    assert done.exit_code == 0
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert {
        "mnist/simple_cnn_base/nesterov_momentum",
        "lm1b/transformer_base/nesterov_momentum",
        PARABOLA,
    } <= set(names)
    assert len(names) == len(set(names)) > 35
    assert train().stdout == done.stdout


def test_two_batch_sizes_are_trained_and_the_same_command_goes_on(
    train: Run, mine: Path, tmp_path: Path
) -> None:
    words = (mine, "--batch-size", 8, "--batch-size", 32, "--steps", 30, "--seed", 3)
    first = train(*words, "--trials", 1, "--format", "json")
    assert first.exit_code == 0
    assert "2 trials trained" in said(first)
    rows = json.loads(first.stdout)
    assert [(row["batch_size"], row["trials"], row["missing"]) for row in rows] == [(8, 1, 0), (32, 1, 0)]
    before = all_files(tmp_path / "out")
    for size in (8, 32):
        place = tmp_path / "out" / PARABOLA / str(size)
        file = read_study(place)
        assert (file.batch_size, file.train_steps, file.optimizer) == (size, 30, "sgd")
        curve = read_trial(place / "1").curve
        assert (curve.steps[0], curve.steps[-1]) == (0, 30)
    more = train(*words, "--trials", 2, "--format", "csv")
    assert more.exit_code == 0
    assert "2 trials trained" in said(more)
    assert more.stdout.splitlines()[0].startswith("workload,batch_size,trials,")
    after = all_files(tmp_path / "out")
    assert before.items() <= after.items()
    assert len(after) == len(before) + 2 * 2
    again = train(*words, "--trials", 2)
    assert "0 trials trained" in said(again)
    assert all_files(tmp_path / "out") == after


def test_a_dry_run_says_what_there_is_to_do_and_writes_nothing(train: Run, tmp_path: Path) -> None:
    done = train(PARABOLA, "--batch-size", 8, "--steps", 30, "--trials", 4, "--dry-run", "--format", "json")
    assert done.exit_code == 0
    (row,) = json.loads(done.stdout)
    assert (row["workload"], row["batch_size"], row["missing"], row["total_steps"]) == (PARABOLA, 8, 4, 120)
    assert "4 trials to train" in said(done)
    assert not (tmp_path / "out").exists()


def test_a_file_declares_a_workload(train: Run, mine: Path, tmp_path: Path) -> None:
    done = train(mine, "--batch-size", 16, "--steps", 5, "--trials", 3)
    assert done.exit_code == 0, said(done)
    place = tmp_path / "out" / PARABOLA / "16"
    assert list(read_study(place).parameter_configs) == ["learning_rate"]
    rates = [read_trial(place / str(trial)).file.parameters["learning_rate"] for trial in (1, 2, 3)]
    assert all(0.01 <= float(rate) <= 0.1 for rate in rates)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["digits/fc_16/adamm", "--steps", 3], 1, "optimizer 'adamm': expected one of sgd, momentum"),
        (["digits/fc_x/sgd", "--steps", 3], 1, "model 'fc_x': expected one of fc_W"),
        (["nowhere/fc_16/sgd", "--steps", 3], 1, "data set 'nowhere': expected one of digits"),
        (["digits/sgd", "--steps", 3], 1, "digits/sgd"),
        (["missing.py", "--steps", 3], 1, "missing.py"),
        (["missing.toml"], 1, "missing.toml"),
        (
            ["digits/fc_16/sgd", "--batch-size", 5000, "--steps", 3],
            1,
            "batch size 5000 is larger than the training set of 1280 examples",
        ),
        (["digits/fc_16/sgd", "--steps", 3, "--device", "abacus"], 1, "device 'abacus': expected 'cpu'"),
        (
            ["digits/fc_16/sgd", "--steps", 3, "--device", "tpu:grpc://127.0.0.1:1"],
            1,
            "looked for a TPU named 'grpc://127.0.0.1:1', found nothing there",
        ),
        (["digits/fc_16/sgd", "--steps", 3, "--device", "tpu"], 1, "looked for a TPU attached to this"),
        (["digits/fc_16/sgd", "--steps", 3, "--device", "workers"], 1, "looked for $TF_CONFIG"),
        (["digits/fc_16/sgd"], 2, "training ends after steps"),
        (["digits/fc_16/sgd", "--steps", 0], 2, "Invalid value for '--steps'"),
        (["digits/fc_16/sgd", "--steps", 3, "--batch-size", "many"], 2, "Invalid value for '--batch-size'"),
        (["digits/fc_16/sgd", "--steps", 3, "--trial-resources", "CPU"], 1, "expected for example 'CPU=1"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    train: Run, monkeypatch: pytest.MonkeyPatch, words: list[object], code: int, message: str
) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)
    done = train(*words)
    assert done.exit_code == code
    assert message in said(done)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_missing_data_set_says_where_it_was_sought_and_how_to_get_it(train: Run, tmp_path: Path) -> None:
    done = train("common_crawl/lstm/sgd", "--steps", 3, "--trials", 1, "--datasets", tmp_path / "empty")
    assert done.exit_code == 1
    assert str(tmp_path / "empty") in done.stderr
    assert "--datasets DIR" in said(done)


def test_replicas_write_what_one_device_writes(train: Run, mine: Path, tmp_path: Path) -> None:
    words = (mine, "--batch-size", 16, "--steps", 20, "--trials", 1)
    process = apart(tmp_path / "two", *words, "--device", "cpu:2")
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    assert "1 trials trained" in errors
    assert PARABOLA in output
    assert train(*words).exit_code == 0
    one, two = (read_trial(root / PARABOLA / "16" / "1") for root in (tmp_path / "out", tmp_path / "two"))
    assert one.file.parameters == two.file.parameters
    assert one.curve.steps == two.curve.steps
    for name, values in one.curve.metrics.items():
        numbers, others = (
            [math.nan if v is None else v for v in column] for column in (values, two.curve.metrics[name])
        )
        assert others == pytest.approx(numbers, rel=1e-4, nan_ok=True), name
    facts = json.loads((tmp_path / "two" / PARABOLA / "16" / "1" / "facts.json").read_text())
    assert (facts["replicas"], facts["examples_per_replica"]) == (2, 8)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_local_workers_report_once(tmp_path: Path) -> None:
    process = apart(tmp_path, PARABOLA, "--batch-size", 16, "--steps", 5, "--trials", 1, "--local-workers", 2)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    assert errors.count("trials trained, they are in") == 1
    assert output.count(PARABOLA) == 1
    facts = json.loads((tmp_path / PARABOLA / "16" / "1" / "facts.json").read_text())
    assert (facts["replicas"], facts["examples_per_replica"]) == (2, 8)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_ends_with_130_and_the_same_command_goes_on(train: Run, mine: Path, tmp_path: Path) -> None:
    words = (mine, "--batch-size", 8, "--trials", 3, "--steps", 60_000)
    process = apart(tmp_path / "out", *words)
    place = tmp_path / "out" / PARABOLA / "8"
    until = time.monotonic() + 120
    while not (place / "1" / "metadata.json").exists():
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()[1][-3000:]
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors[-3000:]
    assert "interrupted; what is finished stays, and the same command goes on" in errors
    assert output == ""
    assert "Traceback" not in errors
    finished = all_files(place / "1")
    assert not (place / "3").exists()
    done = train(*words)
    assert done.exit_code == 0
    assert "2 trials trained" in said(done)
    assert all_files(place / "1") == finished
