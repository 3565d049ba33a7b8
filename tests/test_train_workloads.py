"""Workloads by name, from one file, and from installed packages."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest

from batchscience import paper
from batchscience.errors import TrainingError
from batchscience.spaces import Parameter, SearchSpace
from batchscience.train import Workload, known_workloads, workload_named
from batchscience.train.workloads import ENTRY_POINTS, OPTIMIZER_NAMES, OWN_WORKLOADS

SPACE = SearchSpace((Parameter("learning_rate", "DOUBLE", 0.01, 1.0, "LOG_SCALE"),))

ONE_FILE = '''
"""Two moons and a small network."""
import keras
import numpy as np

from batchscience.goals import Goal
from batchscience.spaces import Parameter, SearchSpace
from batchscience.train import Workload


def moons():
    from sklearn.datasets import make_moons

    from batchscience.train.data import DataSet, Split

    x, y = make_moons(600, noise=0.2, random_state=0)
    whole = Split(x.astype(np.float32), y.astype(np.int32))
    return DataSet("moons", "classification", 2, whole[:512], whole[512:])


def model(data_set):
    layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(data_set.outputs)]
    return keras.Sequential([keras.Input((2,)), *layers])


rate = Parameter("learning_rate", "DOUBLE", 1e-3, 1.0, "LOG_SCALE")
workload = Workload(
    "moons/tanh/momentum", SearchSpace((rate,)), moons, model, goal=Goal("val/classification_error", 0.1)
)
'''


def test_all_workloads_of_the_paper_and_those_made_here_are_known_and_can_be_made():
    known = known_workloads()
    assert {workload.name for workload in paper.WORKLOADS} <= set(known)
    assert {"digits/fc_128_128_128/sgd", "parabola/tanh_5/sgd", "noisy_quadratic/quadratic/sgd"} <= set(known)
    for name in known:
        workload = workload_named(name)
        assert workload.name == name
        assert workload.optimizer in OPTIMIZER_NAMES
        assert "learning_rate" in {parameter.name for parameter in workload.space}


def test_a_published_workload_has_the_papers_goal_and_the_archives_decay():
    vgg = workload_named("imagenet/vgg_11/nesterov_momentum")
    assert vgg.fixed == {"end_learning_rate_factor": 1e-3}
    assert vgg.decays
    cnn = workload_named("mnist/simple_cnn_base/nesterov_momentum")
    assert str(cnn.goal) == "val/classification_error < 0.01"
    assert not cnn.decays


def test_parts_that_are_known_may_be_combined():
    workload = workload_named("mnist1d/fc_32/adam")
    assert workload.parts == ("mnist1d", "fc_32", "adam")
    assert workload.goal is not None
    assert workload_named("solution_quality/mnist/simple_cnn_base/sgd").parts[0] == "mnist"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("digits/fc_8", "expected dataset/model/optimizer"),
        ("digits/fc_8/adagrad", "expected one of sgd"),
        ("no_such.py", "no such file"),
    ],
)
def test_a_name_that_is_no_workload_says_why(name, message):
    with pytest.raises(TrainingError, match=message):
        workload_named(name)


@pytest.mark.parametrize("name", ["a/b", "a/../b", "a/b/c/", "a b/c/d", ".a/b/c"])
def test_a_workload_needs_a_name_that_can_be_a_path(name):
    with pytest.raises(ValueError, match="dataset/model/optimizer"):
        Workload(name, SPACE)


def test_a_new_workload_in_one_file_is_trained(tmp_path):
    pytest.importorskip("tensorflow")
    from batchscience.train import Limits, Study, run_study

    path = tmp_path / "moons.py"
    path.write_text(ONE_FILE)
    assert len([line for line in ONE_FILE.splitlines() if line.strip()]) < 30
    study = Study(workload_named(str(path)), 32, Limits(steps=200))
    report = run_study(study, tmp_path / "out", trials=2)
    assert report.trained == [1, 2]
    from batchscience.layout import read_trial

    curves = [read_trial(report.folder / str(trial)).curve for trial in (1, 2)]
    best = min(curve.metrics["val/classification_error"][-1] for curve in curves)
    assert best < curves[0].metrics["val/classification_error"][0]
    assert best < 0.25


def test_a_file_without_a_workload_is_refused(tmp_path):
    (tmp_path / "empty.py").write_text("workload = 3\n")
    with pytest.raises(TrainingError, match="found int"):
        workload_named(str(tmp_path / "empty.py"))
    (tmp_path / "tuple.py").write_text(
        "from batchscience.spaces import Parameter\nfrom batchscience.train import Workload\n"
        "workload = Workload('a/b/sgd', (Parameter('learning_rate', 'DOUBLE', 0.1, 1.0, 'LOG_SCALE'),))\n"
    )
    with pytest.raises(TrainingError, match=r"tuple\.py: cannot be run.*space: expected SearchSpace"):
        workload_named(str(tmp_path / "tuple.py"))
    (tmp_path / "none.py").write_text("")
    with pytest.raises(TrainingError, match=re.escape("'workload = Workload(…)'")):
        workload_named(str(tmp_path / "none.py"))


def test_an_installed_package_offers_workloads_by_entry_points(tmp_path, monkeypatch):
    (tmp_path / "a_package.py").write_text(
        "from batchscience.train.workloads import OWN_WORKLOADS\nworkload = OWN_WORKLOADS[0]\n"
    )
    info = tmp_path / "a_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: a-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nsecret/model/sgd = a_package:workload\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert any(p.name == "secret/model/sgd" for p in importlib.metadata.entry_points(group=ENTRY_POINTS))
    assert known_workloads()["secret/model/sgd"] == "from a_package"
    assert workload_named("secret/model/sgd") is OWN_WORKLOADS[0]


def test_naming_workloads_needs_no_tensorflow():
    import subprocess
    import sys

    code = (
        "import sys; from batchscience.train import known_workloads, workload_named; known_workloads(); "
        "workload_named('mnist/simple_cnn_base/sgd'); sys.exit('tensorflow' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent.parent).returncode == 0
