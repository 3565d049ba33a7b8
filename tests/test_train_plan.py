"""A study.toml is read strictly, estimated before it runs, followed while it runs, and summed up after it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from batchscience.cli import app
from batchscience.errors import TrainingError
from batchscience.goals import Goal
from batchscience.layout import Curve, TrialFile, write_trial
from batchscience.spaces import Parameter
from batchscience.train import EvaluationRule, Limits, missing_trials
from batchscience.train.plan import Plan, Progress, edges, expected, found, read_plan, run_plan

from .train_support import QUICK_PLAN, ROOT

BOWL = QUICK_PLAN.format(batch_sizes=[4, 16], more="", steps=40)


def written(folder: Path, text: str = BOWL) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


# --------------------------------------------------------------------------- the file


def test_a_file_declares_studies_relative_to_itself(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path))
    assert [study.name for study, _ in plan.studies] == [
        "noisy_quadratic/quadratic/sgd/4",
        "noisy_quadratic/quadratic/sgd/16",
    ]
    assert {trials for _, trials in plan.studies} == {3}
    assert plan.out == tmp_path / "studies"
    assert plan.studies[0][0].limits == Limits(steps=40)
    assert plan.studies[0][0].workload.rule == EvaluationRule(dense_until=2, ratio=2.0)


def test_the_example_in_the_docs_is_a_plan() -> None:
    plan = read_plan(ROOT / "docs" / "study.toml")
    assert len(plan.studies) == 3 * 11
    assert (plan.engine, plan.workers, plan.together) == ("processes", 2, 32)
    spaces = {study.workload.optimizer: study.workload.space for study, _ in plan.studies}
    rates = {name: next(p for p in space if p.name == "learning_rate") for name, space in spaces.items()}
    assert (rates["sgd"].min_value, rates["sgd"].max_value) == (1e-3, 10.0)
    assert (rates["momentum"].min_value, rates["momentum"].max_value) == (1e-3, 1.0)
    assert {rate.scale for rate in rates.values()} == {"LOG_SCALE"}
    momentum = next(p for p in spaces["momentum"] if p.name == "momentum")
    assert (momentum.max_value, momentum.scale) == (0.99, "REVERSE_LOG_SCALE")


def test_tables_of_studies_go_before_the_top(tmp_path: Path) -> None:
    text = BOWL.replace("trials = 3", "trials = 3\nfixed.label_smoothing = 0.1") + (
        "[[studies]]\n[[studies]]\nbatch_sizes = { smallest = 32, largest = 200 }\n"
        "trials = 7\nlimits.examples = 640\n"
    )
    plan = read_plan(written(tmp_path, text))
    assert [(study.batch_size, trials, study.steps) for study, trials in plan.studies] == [
        (4, 3, 40),
        (16, 3, 40),
        (32, 7, 20),
        (64, 7, 10),
        (128, 7, 5),
    ]
    assert plan.studies[0][0].workload.fixed == {"label_smoothing": 0.1}


def test_what_is_fixed_is_not_searched(tmp_path: Path) -> None:
    text = BOWL.replace("trials = 3", "trials = 3\nfixed.learning_rate = 0.1")
    text, space = text.split("[space")
    study = read_plan(written(tmp_path, text)).studies[0][0]
    assert list(study.space) == []
    with pytest.raises(TrainingError, match="learning_rate: fixed and searched"):
        read_plan(written(tmp_path, f"{text}[space{space}"))


def test_later_trials_can_be_drawn_from_a_narrower_space_and_pruned(tmp_path: Path) -> None:
    narrowed = "[[narrowed]]\nfrom_trial = 3\nspace.learning_rate = { min_value = 0.1, max_value = 0.2 }\n"
    study = read_plan(written(tmp_path, "prune = 2.0\n" + BOWL + narrowed)).studies[0][0]
    wide = read_plan(written(tmp_path)).studies[0][0]
    assert study.prune == 2.0
    assert [study.settings(t) for t in (1, 2)] == [wide.settings(t) for t in (1, 2)]
    assert all(0.1 <= study.settings(trial)["learning_rate"] <= 0.2 for trial in range(3, 20))
    with pytest.raises(TrainingError, match="not within the wider"):
        read_plan(written(tmp_path, BOWL + narrowed.replace("0.2", "2.0")))
    with pytest.raises(
        TrainingError, match=r"unknown key .from_tril. in .narrowed.0.; the nearest is .from_trial."
    ):
        read_plan(written(tmp_path, BOWL + narrowed.replace("from_trial", "from_tril")))


def test_a_workload_file_lies_beside_the_plan(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from batchscience.train import workload_named\n"
        "from dataclasses import replace\n"
        "workload = replace(workload_named('digits/fc_16/sgd'), name='digits/mine/sgd')\n"
    )
    plan = read_plan(written(tmp_path, BOWL.replace("noisy_quadratic/quadratic/sgd", "mine.py")))
    assert plan.studies[0][0].name == "digits/mine/sgd/4"


def test_changes_go_before_the_file(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path), out=Path("elsewhere"), trials=9, engine=None)
    assert plan.out == Path("elsewhere")
    assert {trials for _, trials in plan.studies} == {9}
    assert plan.engine == "local"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("trials", "trails", "unknown key 'trails'; the nearest is 'trials'"),
        ("steps =", "stepz =", "unknown key 'stepz' in [limits]; the nearest is 'steps'"),
        ("max_value", "max", "unknown key 'max' in [space.learning_rate]; the nearest is 'max_value'"),
        (
            "$",
            "[[studies]]\nworklod = 'x'",
            "unknown key 'worklod' in [studies.0]; the nearest is 'workload'",
        ),
        (
            "$",
            "[engine]\nname = 'ray'\nworker = 1",
            "unknown key 'worker' in [engine]; the nearest is 'workers'",
        ),
        ("[4, 16]", "{ smalest = 1, largest = 2 }", "unknown key 'smalest' in [batch_sizes]; the nearest is"),
        ("trials = 3", "", "expected a key 'trials'"),
        ("trials = 3", "trials = 'many'", "trials: Input should be a valid integer"),
        ("trials = 3", "trials = 0", "trials: Input should be greater than or equal to 1, found 0"),
        ("trials = 3", "trials = 3\nengine = 'slurm'", "engine: "),
        ("steps = 40", "", "training ends after"),
        ("/sgd", "/sdg", "expected one of sgd"),
        ("[4, 16]", "[4, 4]", "found twice"),
        ("[4, 16]", "[4,", "not TOML"),
        ("[space.learning_rate]\nmin_value = 0.001", "[space.learning_rte]", "did you mean 'learning_rate'?"),
        ("min_value = 0.001", "min_value = 2.0", "min_value <= max_value"),
        ("threshold = 2.0", "", "goal.threshold: Field required"),
    ],
)
def test_a_file_with_a_mistake_says_which(old: str, new: str, message: str, tmp_path: Path) -> None:
    text = BOWL + new if old == "$" else BOWL.replace(old, new)
    with pytest.raises(TrainingError, match=re.escape(message)) as raised:
        read_plan(written(tmp_path, text))
    assert str(raised.value).startswith(str(tmp_path / "study.toml"))


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="No such file"):
        read_plan(tmp_path / "study.toml")


# --------------------------------------------------------------------------- before, while, after


def test_a_plan_is_run_followed_extended_and_summed_up(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path))
    before = expected(plan, calibrate=False)
    assert [(row.batch_size, row.missing, row.total_steps) for row in before] == [(4, 3, 120), (16, 3, 120)]
    assert not plan.out.exists()

    seen: list[Progress] = []
    reports = run_plan(plan, on_progress=seen.append)
    assert [report.trained for report in reports] == [[1, 2, 3], [1, 2, 3]]
    small = [progress for progress in seen if progress.batch_size == 4]
    assert [progress.done for progress in small] == [0, 1, 2, 3]
    assert small[0].seconds_left is None
    assert small[1].seconds_left is not None
    assert small[-1].seconds_left == 0.0

    summary = found(plan)
    assert [(row.complete + row.infeasible, row.missing) for row in summary] == [(3, 0), (3, 0)]
    assert [row.steps for row in summary] == [small[-1].steps, seen[-1].steps]

    more = read_plan(written(tmp_path, BOWL.replace("trials = 3", "trials = 5")))
    assert [row.missing for row in expected(more, calibrate=False)] == [2, 2]
    assert [report.trained for report in run_plan(more)] == [[4, 5], [4, 5]]
    assert run_plan(more)[0].found == [1, 2, 3, 4, 5]
    assert [(row.missing, row.total_steps, row.seconds) for row in expected(more)] == [(0, 0, 0.0)] * 2
    with pytest.raises(TrainingError, match="seed: 0 there, 1 here"):
        run_plan(replace(more, seed=1))


def test_the_calibration_tells_about_how_long_a_plan_takes(tmp_path: Path) -> None:
    one = BOWL.replace("[4, 16]", "[4]")
    (short,) = expected(read_plan(written(tmp_path, one)))
    (long,) = expected(read_plan(written(tmp_path, one.replace("steps = 40", "steps = 4000000000"))))
    assert not (tmp_path / "studies").exists()
    assert short.seconds is not None
    assert long.seconds is not None
    assert 0 < 100 * short.seconds < long.seconds


def test_the_command_says_what_a_plan_takes_runs_it_and_sums_it_up(tmp_path: Path) -> None:
    path = written(tmp_path, BOWL.replace("[4, 16]", "[4]"))
    run = CliRunner()
    dry = run.invoke(app, ["train", str(path), "--dry-run", "--format", "json"])
    assert dry.exit_code == 0
    (row,) = json.loads(dry.stdout)
    assert (row["missing"], row["total_steps"]) == (3, 120)
    assert row["seconds"] > 0
    assert not (tmp_path / "studies").exists()
    out = ["--out", str(tmp_path / "there"), "--seed", "1", "--format", "json"]
    done = run.invoke(app, ["train", str(path), *out])
    assert done.exit_code == 0
    assert "noisy_quadratic/quadratic/sgd/4: 3 of 3 trials" in done.stderr
    (row,) = json.loads(done.stdout)
    assert row["complete"] + row["infeasible"] == 3
    assert (tmp_path / "there" / row["workload"] / "4" / "3").is_dir()
    again = run.invoke(app, ["train", str(path), *out])
    assert "0 trials trained" in again.stderr
    assert json.loads(again.stdout) == [row]


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--steps", "5"], 2, "steps: for a plan this stands in"),
        (["--engine", "slurm"], 1, "expected one of local, processes, ray"),
        (["--workers", "2"], 1, "belongs to the engine 'processes'"),
        (["--trial-resources", "CPU"], 1, "expected for example 'CPU=1,TPU=4'"),
        (["--engine", "ray", "--trial-resources", "CPU=1", "--device", "workers"], 1, "by name"),
    ],
)
def test_options_that_do_not_go_with_a_plan_are_refused(
    options: list[str], code: int, message: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["train", str(written(tmp_path)), *options])
    assert done.exit_code == code
    assert message in " ".join(done.stderr.replace("│", "").split())


def by_hand(plan: Plan, curves: dict[int, tuple[float, str, list[float]]]) -> None:
    """Trials with a learning rate, a status and a loss at steps 0, 10, 20, …"""
    for trial, (rate, status, losses) in curves.items():
        steps = [10 * i for i in range(len(losses))]
        file = TrialFile(trial_id=trial, status=status, steps=steps[-1], parameters={"learning_rate": rate})
        write_trial(plan.out / plan.studies[0][0].name, file, Curve(steps, {"train/loss": losses}))


def test_the_summary_takes_the_first_step_of_the_best_complete_trial(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, BOWL.replace("[4, 16]", "[4]").replace("trials = 3", "trials = 8")))
    assert plan.studies[0][0].workload.goal == Goal("train/loss", 2.0)
    nan = float("nan")
    by_hand(
        plan,
        {
            1: (0.1, "COMPLETE", [9, 5, 1, 3, 0.1]),
            2: (0.2, "COMPLETE", [9, 5, 1, 1, 1]),  # a tie goes to the smaller number
            3: (0.3, "INFEASIBLE", [9, 1, nan]),
            4: (0.4, "COMPLETE", [9, 2, 2, 2, 2]),  # exactly on the goal is not beyond it
            5: (0.5, "INCOMPLETE", [9, 1]),
            6: (0.9, "COMPLETE", [9, nan, 3, 1, 1]),
            7: (0.7, "COMPLETE", [9, 5, 3, 3, 1]),
            9: (0.7, "COMPLETE", [1, 1]),  # beyond the trials asked for
        },
    )
    (row,) = found(plan)
    assert (row.steps, row.trial, row.reached) == (20, 1, 4)
    assert (row.complete, row.incomplete, row.infeasible, row.missing) == (5, 1, 1, 1)
    assert row.settings == "learning_rate 0.1"
    assert row.warning == "1 trials are missing; the same command trains them; only 4 trials reached the goal"


def test_the_summary_warns_of_edges_and_of_goals_that_nobody_reached(tmp_path: Path) -> None:
    plan = read_plan(written(tmp_path, BOWL.replace("[4, 16]", "[4]").replace("trials = 3", "trials = 5")))
    by_hand(plan, {trial: (0.99 - trial / 100, "COMPLETE", [9, 1]) for trial in range(1, 6)})
    (row,) = found(plan)
    assert row.warning == "learning_rate 0.98 is near its upper limit 1; a wider search may do better"
    study = plan.studies[0][0]
    for goal, warning in (
        (Goal("train/loss", 0.5), "no trial reached the goal"),
        (Goal("x", 1.0), "no trial measures x"),
    ):
        other = replace(study, workload=replace(study.workload, goal=goal))
        assert found(replace(plan, studies=((other, 5),)))[0].warning == warning
    assert missing_trials(plan.out / study.name, 5) == []


def test_edges_lie_within_a_twentieth_of_the_parameters_own_scale() -> None:
    momentum = Parameter("momentum", "DOUBLE", 0.9, 0.999, "REVERSE_LOG_SCALE")
    points = Parameter("label_smoothing", "DISCRETE", feasible_points=(0.0, 0.1))
    for position, near in ((0.04, ["lower"]), (0.06, []), (0.94, []), (0.96, ["upper"])):
        said = list(
            edges([momentum, points], {"momentum": momentum.value_at(position), "label_smoothing": 0.0})
        )
        assert [side for side in ("lower", "upper") if any(side in each for each in said)] == near
        assert len(said) == len(near)
