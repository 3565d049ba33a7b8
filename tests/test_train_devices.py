"""The curve of a trial does not depend on who computes it; processes end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("tensorflow")

from batchscience.errors import TrainingError
from batchscience.train.devices import run_local_workers, strategy_for
from tests.train_support import OPTIMIZERS, ROOT, child, quiet_environment

CLOSE = 2e-5


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    """Curves of every case on every number of replicas, from one process of its own."""
    out = tmp_path_factory.mktemp("replicas") / "curves.json"
    done = child("replicas", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


def _same(curve, expected, rel=CLOSE):
    assert [step for step, _ in curve] == [step for step, _ in expected]
    for (_, row), (_, wanted) in zip(curve, expected, strict=True):
        assert row == pytest.approx(wanted, rel=rel, abs=1e-6)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("replicas", ["2", "4", "8"])
def test_replicas_give_the_curve_of_one_device(curves, replicas, optimizer):
    _same(curves[replicas][optimizer], curves["1"][optimizer])
    first, last = curves["1"][optimizer][0][1], curves["1"][optimizer][-1][1]
    assert last["train/cross_entropy_error"] < first["train/cross_entropy_error"]


@pytest.mark.parametrize("replicas", ["2", "8"])
def test_the_logged_loss_is_the_mean_per_example_on_any_number_of_replicas(curves, replicas):
    one = [row["train/batch_loss"] for _, row in curves["1"]["sgd"][1:]]
    many = [row["train/batch_loss"] for _, row in curves[replicas]["sgd"][1:]]
    assert many == pytest.approx(one, rel=CLOSE)
    # A network that knows nothing loses about ln 10 per example.
    assert 1.8 < one[0] < 3.0


@pytest.mark.parametrize("case", ["accumulated", "clipped"])
def test_accumulation_and_clipping_on_eight_replicas_are_those_of_one_device(curves, case):
    _same(curves["8"][case], curves["1"][case])
    if case == "clipped":
        assert curves["1"][case][-1] != curves["1"]["sgd"][-1]
    else:
        _same(curves["8"][case], curves["1"]["sgd"])


def test_batch_norm_sees_a_replicas_share_unless_ghost_batches_make_it_the_same_everywhere(curves):
    _same(curves["8"]["ghost"], curves["1"]["ghost"])
    split = curves["8"]["batch_norm"][-1][1]["train/cross_entropy_error"]
    whole = curves["1"]["batch_norm"][-1][1]["train/cross_entropy_error"]
    assert abs(split / whole - 1) > 1e-3


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_strategy_of_one_device_changes_not_a_bit(curves, optimizer):
    assert curves["strategy"][optimizer] == curves["1"][optimizer]


@pytest.fixture(scope="module")
def of_workers(tmp_path_factory):
    out = tmp_path_factory.mktemp("workers") / "curves.json"
    done = child("workers", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(out.with_suffix(f".{index}.json").read_text()) for index in (0, 1)]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_two_processes_give_the_curve_of_one(of_workers, curves, optimizer):
    for curve in of_workers:
        _same(curve[optimizer], curves["1"][optimizer])


WAITS = "import json, os, sys, time; i = json.loads(os.environ['TF_CONFIG'])['task']['index']; "


def _running(marker):
    found = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return [line for line in found.splitlines() if marker in line and "import json" in line]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_when_one_worker_fails_the_others_are_ended_and_its_status_is_returned(tmp_path):
    marker = f"# {tmp_path.name}-{os.getpid()}"
    code = WAITS + f"sys.exit(3) if i == 1 else time.sleep(60) {marker}"
    begun = time.monotonic()
    assert run_local_workers([sys.executable, "-c", code], 3) == 3
    assert time.monotonic() - begun < 20
    assert not _running(marker)


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_worker_outlives_the_process_that_started_it(tmp_path, how):
    marker = f"# {tmp_path.name}-{os.getpid()}"
    ready = tmp_path / "ready"
    code = WAITS + f"open({str(ready)!r} + str(i), 'w').close(); time.sleep(120) {marker}"
    parent_code = (
        "import sys; from batchscience.train.devices import run_local_workers; "
        f"run_local_workers([sys.executable, '-c', {code!r}], 2)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", parent_code],
        cwd=ROOT,
        env=quiet_environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while not all((tmp_path / f"ready{i}").exists() for i in (0, 1)):
        assert time.monotonic() < until
        assert parent.poll() is None
        time.sleep(0.1)
    parent.send_signal(how)
    parent.wait(30)
    until = time.monotonic() + 10
    while [line for line in _running(marker) if "run_local_workers" not in line]:
        assert time.monotonic() < until
        time.sleep(0.1)


def test_every_worker_knows_all_addresses_and_its_own_number(tmp_path):
    code = (
        "import json, os, sys; config = json.loads(os.environ['TF_CONFIG']); "
        f"open({str(tmp_path)!r} + '/' + str(config['task']['index']), 'w').write(os.environ['TF_CONFIG'])"
    )
    assert run_local_workers([sys.executable, "-c", code], 3) == 0
    configs = [json.loads((tmp_path / str(i)).read_text()) for i in range(3)]
    assert all(config["cluster"] == configs[0]["cluster"] for config in configs)
    assert len(set(configs[0]["cluster"]["worker"])) == 3


def test_a_batch_that_does_not_split_evenly_is_refused():
    done = child("uneven", "unused")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "batch size 30 does not split evenly over 4 replicas" in done.stdout
    assert "multiple of 4" in done.stdout


def test_without_a_tpu_the_error_says_what_was_looked_for():
    with pytest.raises(TrainingError, match=r"looked for a TPU attached to this machine"):
        strategy_for("tpu")
    with pytest.raises(TrainingError, match=r"looked for a TPU named 'grpc://127.0.0.1:1'"):
        strategy_for("tpu:grpc://127.0.0.1:1")


def test_without_a_gpu_the_error_says_what_was_found():
    import tensorflow as tf

    count = len(tf.config.list_physical_devices("GPU")) + 1
    with pytest.raises(TrainingError, match=f"looked for {count} GPU .*found {count - 1}"):
        strategy_for(f"gpu:{count}")


def test_workers_need_their_configuration(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(TrainingError, match=r"\$TF_CONFIG.*--local-workers"):
        strategy_for("workers")
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(TrainingError, match="not what TensorFlow expects"):
        strategy_for("workers")


@pytest.mark.parametrize("name", ["cuda", "cpu:", "cpu:0", "cpu:many", "workers:3", ""])
def test_a_name_that_is_no_device_is_refused(name):
    with pytest.raises(TrainingError, match=r"expected"):
        strategy_for(name)


def test_replicas_asked_for_too_late_are_refused():
    import tensorflow as tf

    tf.constant(1.0) + 1.0
    with pytest.raises(TrainingError, match="TensorFlow already runs"):
        strategy_for("cpu:64")


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one processor has one thread anyway")
def test_a_trial_stays_on_its_thread_and_that_changes_not_a_bit():
    code = (
        "import hashlib, sys\n"
        "import tensorflow as tf\n"
        "from batchscience.train.devices import processors, strategy_for\n"
        "from tests.train_support import small_trainer, small_trial\n"
        "trainer = small_trainer(strategy_for('cpu'), 'momentum', together=sys.argv[1] == 'together')\n"
        "rows = small_trial(trainer, {'learning_rate': 0.05}, steps=60).rows\n"
        "print(tf.config.threading.get_intra_op_parallelism_threads(), processors())\n"
        "print(hashlib.sha256(repr(rows).encode()).hexdigest())\n"
    )
    environment = quiet_environment()
    environment.pop("TF_NUM_INTRAOP_THREADS", None)
    alone, together = (
        subprocess.run(
            [sys.executable, "-c", code, how],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        ).stdout.splitlines()
        for how in ("alone", "together")
    )
    # 0: TensorFlow's default, a thread for each processor.
    assert [line.split()[0] for line in (alone[0], together[0])] == ["1", "0"]
    assert alone[0].split()[1] == together[0].split()[1] != "1"
    assert alone[1] == together[1]
