"""Trials are the same wherever they run, and none is lost or trained twice when something dies."""

from __future__ import annotations

import itertools
import json
import logging
import os
import pickle
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchscience.errors import TrainingError
from batchscience.layout import finished_trials
from batchscience.spaces import Parameter, SearchSpace
from batchscience.train import Limits, Study, Workload, run_study
from batchscience.train.engine import (
    MOST_ATTEMPTS,
    Engine,
    Failure,
    Local,
    Processes,
    RayCluster,
    Task,
    engine_named,
    parse_resources,
)
from batchscience.train.work import TrialWork

from .engine_support import SEED, DescentWork, begun, small_study, train
from .train_support import ROOT, quiet_environment

TRIALS, STEPS = 30, 2000


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The study, trained in one go in this process."""
    out = tmp_path_factory.mktemp("undisturbed")
    report = run_study(small_study(STEPS), out, trials=TRIALS, seed=SEED)
    assert report.trained == list(range(1, TRIALS + 1))
    return report.folder


def files(study: Path, trials: int = TRIALS) -> dict[str, bytes]:
    """The published files of a study, and what determines its trials."""
    names = ["study.json", "run.json"]
    for trial in range(1, trials + 1):
        names += [f"{trial}/metadata.json", f"{trial}/measurements.csv"]
    return {name: (study / name).read_bytes() for name in names}


def assert_never_twice(study: Path, log: Path) -> None:
    """No trial was begun after it had been finished."""
    for trial, _, when in begun(log):
        # The folder's change time is that of its renaming, taken from a clock of 4 ms.
        finished = (study / str(trial)).stat().st_ctime_ns
        assert when < finished + 10_000_000, f"trial {trial} was trained again"


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine_support", *map(str, arguments)],
        cwd=ROOT,
        env=quiet_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(condition: Any, what: str, seconds: float = 120.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds} s in vain for {what}")


def two_more_begun(log: Path, process: subprocess.Popen[str]) -> None:
    seen = len(begun(log))
    until(lambda: process.poll() is not None or len(begun(log)) > seen + 1, "two trials to begin")
    assert process.poll() is None, process.communicate()[1][-2000:]


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def ran(engine: Engine, work: DescentWork, trials: range, together: int = 1) -> dict[int, Any]:
    """What came of each trial; each exactly once."""
    numbers = iter(trials)
    tasks = iter(lambda: tuple(itertools.islice(numbers, together)), ())
    came = [outcome for _, outcome in engine.run(Task(work, each) for each in tasks)]
    assert sorted(outcome.trial for outcome in came) == list(trials)
    return {outcome.trial: outcome for outcome in came}


# --------------------------------------------------------------------------- kill -9


def test_a_driver_killed_at_random_moments_leaves_the_undisturbed_study(
    undisturbed: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    process = start("kills", tmp_path, log, TRIALS, STEPS, 7)
    printed, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-2000:]
    statuses, finished = zip(*json.loads(printed), strict=True)
    study = tmp_path / small_study(STEPS).name
    assert statuses == (-signal.SIGKILL,) * 7 + (0,)
    # Killed at its beginning, in its middle, with much and with little done.
    assert len(set(finished)) >= 4
    assert finished[-2] < finished[-1] == TRIALS
    assert files(study) == files(undisturbed)
    assert_never_twice(study, log)
    assert not [path.name for path in study.iterdir() if path.name.startswith(".")]


def test_killed_workers_and_a_killed_driver_leave_the_undisturbed_study(
    undisturbed: Path, tmp_path: Path
) -> None:
    log, rng = tmp_path / "log", random.Random(7)
    study = tmp_path / small_study(STEPS).name
    for victims in (("worker", "driver"), ("worker",)):
        process = start("driver", tmp_path, log, TRIALS, STEPS, "processes", 2)
        try:
            for victim in victims:
                two_more_begun(log, process)
                time.sleep(rng.uniform(0.0, 0.1))
                worker = begun(log)[-1][1]
                os.kill(worker if victim == "worker" else process.pid, signal.SIGKILL)
                if victim == "driver":
                    process.wait()
                    until(lambda worker=worker: not alive(worker), "the worker to follow its driver", 5)
                    assert len(finished_trials(study)) < TRIALS
            _, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-2000:]
    assert files(study) == files(undisturbed)
    assert_never_twice(study, log)


# --------------------------------------------------------------------------- processes


def test_workers_are_kept_for_the_next_study_and_share_the_trials(tmp_path: Path) -> None:
    work = DescentWork(seconds=0.05)
    here = ran(Local(), DescentWork(), range(1, 9))
    with Processes(2) as engine:
        first = ran(engine, work, range(1, 9))
        second = ran(engine, replace(work, seconds=0.01), range(1, 9), together=3)
        workers = {outcome.process for outcome in first.values()}
        assert len(workers) == 2
        assert os.getpid() not in workers
        assert {outcome.process for outcome in second.values()} <= workers
    assert {t: o.loss for t, o in first.items()} == {t: o.loss for t, o in here.items()}
    assert not [worker for worker in workers if alive(worker)]


def test_a_trial_whose_worker_is_killed_is_trained_again_and_no_other(tmp_path: Path) -> None:
    log = tmp_path / "log"
    work = DescentWork(seconds=0.2, log=str(log))

    def kill_the_worker_of_trial_3() -> None:
        _, worker, _ = until(lambda: next((row for row in begun(log) if row[0] == 3), None), "trial 3")
        os.kill(worker, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_worker_of_trial_3)
    killer.start()
    with Processes(2) as engine:
        tasks = (Task(work, (trial,)) for trial in range(1, 9))
        came = [outcome.trial for _, outcome in engine.run(tasks)]
    killer.join()
    assert sorted(came) == list(range(1, 9))
    times = {trial: [t for t, _, _ in begun(log)].count(trial) for trial in range(1, 9)}
    assert times == {trial: 1 + (trial == 3) for trial in range(1, 9)}


def test_a_trial_that_kills_its_workers_is_given_up_and_the_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Processes(1) as engine, caplog.at_level(logging.WARNING):
        came = ran(engine, DescentWork(deadly=2), range(1, 5), together=2)
    assert isinstance(came[2], Failure)
    assert "SIGKILL, 3 times" in came[2].reason
    assert [trial for trial, outcome in came.items() if isinstance(outcome, Failure)] == [2]
    assert caplog.text.count("trained again") == MOST_ATTEMPTS - 1


@pytest.mark.parametrize("engine", [Local(), Processes(1)], ids=lambda engine: engine.name)
def test_a_trial_that_raises_is_reported_and_the_others_go_on(engine: Engine) -> None:
    with engine:
        came = ran(engine, DescentWork(failing=(2, 5)), range(1, 7), together=3)
    failed = {trial: o for trial, o in came.items() if isinstance(o, Failure)}
    assert sorted(failed) == [2, 5]
    assert failed[2].reason == "ZeroDivisionError: trial 2 divides by zero"
    assert "engine_support.py" in failed[2].details


def test_no_worker_outlives_its_driver(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start("orphans", log)
    until(lambda: len(begun(log)) == 2, "two trials to begin")
    workers = [worker for _, worker, _ in begun(log)]
    assert all(map(alive, workers))
    process.kill()
    process.communicate()
    until(lambda: not any(map(alive, workers)), "the workers to end", 5)


def test_ctrl_c_ends_the_workers_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start("orphans", log)
    until(lambda: len(begun(log)) == 2, "two trials to begin")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert not [worker for _, worker, _ in begun(log) if alive(worker)]


def test_a_workload_from_a_file_is_sent_with_its_functions(tmp_path: Path) -> None:
    declared = tmp_path / "my_line.py"
    declared.write_text(
        "from batchscience.spaces import Parameter, SearchSpace\n"
        "from batchscience.train import Workload\n"
        "workload = Workload(\n"
        "    'digits/my_line/sgd',\n"
        "    SearchSpace((Parameter('learning_rate', 'DOUBLE', 0.01, 0.1, 'LOG_SCALE'),)),\n"
        "    model=lambda data_set: (lambda scope, x: scope.dense(x, data_set.outputs)),\n"
        ")\n"
    )
    from batchscience.train import workload_named

    study = Study(workload_named(str(declared)), 32, Limits(steps=5))
    here = run_study(study, tmp_path / "here", trials=1)
    pickled = pickle.dumps(TrialWork(study, 0))
    declared.unlink()  # as on another machine
    (sent,) = pickle.loads(pickled).begin()((1,))
    assert sent.curve.text().encode() == (here.folder / "1" / "measurements.csv").read_bytes()


def test_a_workload_that_cannot_be_sent_says_so(tmp_path: Path) -> None:
    workload = replace(small_study(10).workload, model=lambda scope, x: x)
    with Processes(1) as engine, pytest.raises(TrainingError, match="take the engine 'local'"):
        run_study(replace(small_study(10), workload=workload), tmp_path, trials=1, engine=engine)


def test_what_concerns_all_trials_ends_the_sweep(tmp_path: Path) -> None:
    study = replace(small_study(10), workload=replace(small_study(10).workload, data_set="nothing"))
    for engine in (Local(), Processes(1)):
        with engine, pytest.raises(TrainingError, match="data set 'nothing'"):
            run_study(study, tmp_path, trials=3, engine=engine)


def test_several_processes_in_one_trial_are_for_this_process_only(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="by name"):
        run_study(small_study(10), tmp_path, trials=1, engine="processes", device="workers")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "slurm"}, "expected one of local, processes, ray"),
        ({"name": "local", "workers": 2}, "belongs to the engine 'processes'"),
        ({"name": "processes", "workers": 0}, "at least one worker"),
        ({"name": "processes", "address": "auto"}, "belong to 'ray'"),
    ],
)
def test_an_engine_with_wrong_options_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        engine_named(**arguments)


@pytest.mark.parametrize("text", ["", "CPU", "CPU=0", "CPU=x", "CPU=1,CPU=2", "=1", "TPU=inf"])
def test_resources_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(TrainingError, match="expected for example 'CPU=1,TPU=4'"):
        parse_resources(text)


# --------------------------------------------------------------------------- Ray


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray cluster whose head only coordinates, to which a test adds nodes."""
    pytest.importorskip("ray", reason="the engine 'ray' needs pip install 'batchscience[cluster]'")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        patch.undo()


# Ray leaves sockets, files and processes of nodes to the garbage collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_node_killed_in_mid_study_costs_no_trial(
    cluster: Any, undisturbed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import ray

    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    log = tmp_path / "log"
    told: list[int] = []
    killed: list[int] = []

    def on_trial(_: Any, came: Any) -> None:
        told.append(came.trial)
        if len({process for _, process, _ in begun(log)}) == 2 and not killed:
            trial, worker, _ = begun(log)[-1]
            raylet = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
            (node,) = (n for n in nodes if n.all_processes["raylet"][0].process.pid == raylet)
            cluster.remove_node(node, allow_graceful=False)
            killed.append(trial)

    with RayCluster(cluster.address, {"CPU": 1}) as engine, caplog.at_level(logging.WARNING):
        sweep = train(tmp_path, log, trials=TRIALS, steps=STEPS, engine=engine, on_trial=on_trial)
        # Ray takes a while to say so.
        until(lambda: sum(node["Alive"] for node in ray.nodes()) == 2, "the node to be called dead")
    assert sorted(told) == list(range(1, TRIALS + 1))
    assert sorted(sweep.report.trained) == list(range(1, TRIALS + 1))
    assert sweep.report.failed == {}
    assert files(sweep.place) == files(undisturbed)
    assert_never_twice(sweep.place, log)
    assert "NodeDiedError" in caplog.text
    assert [trial for trial, n in Counter(t for t, _, _ in begun(log)).items() if n > 1] == killed


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_trials_that_raise_on_a_cluster_are_reported_and_the_others_go_on(cluster: Any) -> None:
    with RayCluster(cluster.address, {"CPU": 1}) as engine:
        came = ran(engine, DescentWork(failing=(2,)), range(1, 6), together=2)
    assert [trial for trial, outcome in came.items() if isinstance(outcome, Failure)] == [2]
    assert came[3].loss == ran(Local(), DescentWork(), range(3, 4))[3].loss


def test_without_ray_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with RayCluster() as engine, pytest.raises(TrainingError, match=r"batchscience\[cluster\]"):
        list(engine.run(iter([Task(DescentWork(), (1,))])))


def test_a_search_space_is_the_same_on_every_engine() -> None:
    space = SearchSpace((Parameter("learning_rate", "DOUBLE", 0.01, 0.1, "LOG_SCALE"),))
    study = Study(Workload("digits/fc_16/sgd", space), 8, Limits(steps=1))
    assert study.settings(17, seed=1) == space.settings_of(study.name, 17, seed=1)[16]
