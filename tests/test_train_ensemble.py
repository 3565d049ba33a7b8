"""Many trials at once: the curves of trials one at a time, and nothing that reaches from one to another."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time

import numpy as np
import pytest

pytest.importorskip("tensorflow")

import tensorflow as tf

from batchscience.goals import Goal
from batchscience.layout import finished_trials, read_trial
from batchscience.train import EvaluationRule, Limits, NoiseRule, Study, ensemble, models, run_study
from batchscience.train import workload_named as named
from batchscience.train.data import DataSet, NoisyQuadratic, Split, parabola
from batchscience.train.devices import strategy_for
from batchscience.train.ensemble import CannotBatchError, Ensemble, Member, run_trials
from batchscience.train.loop import Checkpoint
from batchscience.train.optimizers import OPTIMIZERS
from tests.train_support import ROOT, normalised, quiet_environment, small_trainer, small_trial

CPU = strategy_for("cpu")
RULE = EvaluationRule(dense_until=2, ratio=2.0)
RATES = {"sgd": 0.1, "momentum": 0.02, "nesterov_momentum": 0.02, "lion": 1e-3}


def _members(rates, *, more=(), checkpoints=None):
    return [
        Member(
            trial,
            {"learning_rate": rate, **{name: value(trial) for name, value in more}},
            (1, trial),
            None if checkpoints is None else Checkpoint(checkpoints / f"{trial}.npz", every=1e9),
        )
        for trial, rate in enumerate(rates, 1)
    ]


def _together(trainer, members, *, steps=12, threads=2, rule=RULE, **options):
    limits = options.pop("limits", Limits(steps=steps))
    made = Ensemble(trainer, threads=threads)
    came = list(run_trials(made, members, rule=rule, limits=limits, **options))
    outcomes = {member.trial: outcome for member, outcome in came}
    assert len(came) == len(outcomes) == len(members)
    return outcomes


def _assert_same(one, other, rel=2e-4):
    """Outcomes that differ by no more than rounding."""
    assert (one.status, one.steps, one.diverged_at) == (other.status, other.steps, other.diverged_at)
    assert [step for step, _ in one.rows] == [step for step, _ in other.rows]
    for (step, row), (_, own) in zip(one.rows, other.rows, strict=True):
        assert list(row) == list(own)
        for name, value in row.items():
            assert value == pytest.approx(own[name], rel=rel, abs=1e-6), (step, name)


def _assert_like_alone(trainer, members, outcomes, *, steps=12, rel=2e-4):
    for member in members:
        alone = small_trial(trainer, member.settings, steps=steps, seed=member.seed)
        _assert_same(outcomes[member.trial], alone, rel)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_trials_together_give_the_curves_of_trials_alone(optimizer):
    trainer = small_trainer(CPU, optimizer)
    rate = RATES.get(optimizer, 0.005)
    more = [("label_smoothing", lambda trial: 0.02 * trial)]
    if "momentum" in OPTIMIZERS[optimizer].defaults:
        more.append(("momentum", lambda trial: 1 - 0.3 / trial))
    members = _members([rate * 1.3**i for i in range(5)], more=more)
    outcomes = _together(trainer, members)
    _assert_like_alone(trainer, members, outcomes)
    ends = {outcome.rows[-1][1]["train/cross_entropy_error"] for outcome in outcomes.values()}
    assert len(ends) == len(members)


def _sentences(count=40, words=11):
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, words, (count, 7)).astype(np.int32)
    tokens[:5, 5:] = 0
    split = Split(tokens[:, :-1], tokens[:, 1:])
    return DataSet("sentences", "language", words, split, split[:9])


def _labelled(count=40):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 6)).astype(np.float32)
    split = Split(x, (x[:, :3] > 0.5).astype(np.uint8))
    return DataSet("labelled", "labels", 3, split, split[:9])


MODELS = {
    "fc": {"forward": models.forward_named("fc_16_8", 10)},
    "tanh": {"forward": models.forward_named("tanh_5", 1), "data_set": parabola(64), "batch_size": 16},
    "batch norm": {"forward": normalised()},
    "ghost batch norm": {"forward": normalised(16)},
    "transformer": {
        "forward": models.transformer(models.TransformerSize(1, 8, 12, 2), 11),
        "data_set": _sentences(),
        "batch_size": 8,
    },
    "labels": {"forward": models.forward_named("fc_7", 3), "data_set": _labelled(), "batch_size": 8},
    "accumulated": {"accumulate": 4},
    "clipped": {"clip_norm": 0.05},
}


@pytest.mark.parametrize("name", MODELS)
def test_every_model_without_convolutions_trains_together(name):
    trainer = small_trainer(CPU, "momentum", **MODELS[name])
    members = _members([0.02, 0.03, 0.05])
    _assert_like_alone(trainer, members, _together(trainer, members))


def test_the_noisy_quadratic_trains_together():
    bowl = NoisyQuadratic()
    forward = models.quadratic(bowl.curvatures, bowl.noise * bowl.curvatures, bowl.start)
    trainer = small_trainer(CPU, data_set=bowl.data_set(), forward=forward, batch_size=4)
    members = _members([0.1, 0.3, 0.5])
    _assert_like_alone(trainer, members, _together(trainer, members))


@pytest.fixture(scope="module")
def trainer():
    return small_trainer(CPU)


def test_a_trial_that_diverges_ends_as_alone_and_reaches_no_other(trainer):
    calm = [0.05, 0.1, 0.2]
    rates = [0.05, 1e30, 0.1, 1e12, 0.2]
    members = _members(rates)
    outcomes = _together(trainer, members)
    assert [outcomes[trial].status for trial in (2, 4)] == ["INFEASIBLE"] * 2
    assert list(outcomes)[:2] == [2, 4]
    _assert_like_alone(trainer, members, outcomes)
    # Without the two that diverge, on as many lanes, the others are the same to the last bit.
    others = [member for member in members if member.settings["learning_rate"] in calm]
    extra = [Member(number, {"learning_rate": 0.01}, (5, number)) for number in (8, 9)]
    alone = _together(trainer, [others[0], extra[0], others[1], extra[1], others[2]])
    for member in others:
        assert alone[member.trial].rows == outcomes[member.trial].rows


def test_trials_that_leave_make_room_in_narrower_strands(trainer, monkeypatch):
    monkeypatch.setattr(ensemble, "WORTH_COMPILING", 0.0)
    made = Ensemble(trainer, threads=1)
    made.widest = 4
    members = _members([0.1, 1e30, 1e30, 0.2, 1e30, 1e30, 1e30, 0.3, 1e30, 1e30])
    outcomes = {
        member.trial: outcome
        for member, outcome in run_trials(made, members, rule=RULE, limits=Limits(steps=12))
    }
    # Ten trials fill three strands of four; the three that stay fit into one, and need no narrower one.
    assert made._ready == {4}
    _assert_like_alone(trainer, [members[i] for i in (0, 3, 7)], outcomes)
    few = _members([0.1, 1e30, 1e30, 1e30])
    outcomes = {
        member.trial: outcome for member, outcome in run_trials(made, few, rule=RULE, limits=Limits(steps=12))
    }
    assert made._ready == {4, 1}
    _assert_like_alone(trainer, few[:1], outcomes)


@pytest.mark.parametrize(
    ("runs", "threads", "widest", "width"),
    [
        (32, 1, 6, 4),
        (100, 1, 6, 5),
        (64, 2, 6, 4),
        (12, 2, 6, 6),
        (33, 1, 6, 5),
        (10, 2, None, 5),
        (3, 1, 6, 3),
    ],
)
def test_strands_are_as_wide_as_the_cache_holds_with_few_idle_lanes(trainer, runs, threads, widest, width):
    made = Ensemble(trainer, threads=threads)
    made.widest = widest
    assert made.width(runs) == width


def test_memory_limits_how_many_trials_go_together(trainer, monkeypatch):
    monkeypatch.setattr(ensemble, "MOST_BYTES", 2 * ensemble.bytes_of_a_trial(trainer, 512))
    made = Ensemble(trainer, threads=1)
    members = _members([0.1] * 5)
    came = list(run_trials(made, members, rule=RULE, limits=Limits(steps=3)))
    assert [(member.trial, outcome.steps) for member, outcome in came] == [(t, 3) for t in range(1, 6)]
    assert max(made._ready) <= 2


def test_a_goal_ends_each_trial_at_its_own_step(trainer):
    members = _members([0.5, 0.05, 0.001])
    rows = dict(small_trial(trainer, members[1].settings, steps=16, seed=members[1].seed).rows)
    goal = Goal("train/cross_entropy_error", 1.001 * rows[16]["train/cross_entropy_error"])
    outcomes = _together(trainer, members, steps=32, threads=1, goal=goal)
    for member in members:
        alone = small_trial(trainer, member.settings, steps=32, seed=member.seed, goal=goal)
        _assert_same(outcomes[member.trial], alone)
        assert outcomes[member.trial].stopped_at_goal == alone.stopped_at_goal
    steps = [outcomes[trial].steps for trial in (1, 2, 3)]
    assert steps[0] < steps[1] == 16
    assert steps[2] == 32
    assert not outcomes[3].stopped_at_goal


def test_the_noise_scale_of_each_trial_is_that_of_the_trial_alone(trainer):
    noise = NoiseRule((0, 3), batch=8, batches=8)
    members = _members([0.3, 0.1])
    outcomes = _together(trainer, members, steps=4, threads=1, noise=noise)
    for member in members:
        alone = small_trial(trainer, member.settings, steps=4, seed=member.seed, noise=noise)
        assert [row["step"] for row in outcomes[member.trial].noise] == [0, 3]
        for row, own in zip(outcomes[member.trial].noise, alone.noise, strict=True):
            assert row["trace"] == pytest.approx(own["trace"], rel=1e-3)


def test_an_interrupted_chunk_goes_on_from_its_checkpoints_to_the_last_bit(trainer, tmp_path, monkeypatch):
    whole = _together(trainer, _members([0.05, 1e30, 0.1, 0.2]), threads=1)
    calls = []
    advance = Ensemble.advance

    def interrupted(self, strand, start, count):
        calls.append(start)
        if start == 5:
            raise KeyboardInterrupt
        return advance(self, strand, start, count)

    members = _members([0.05, 1e30, 0.1, 0.2], checkpoints=tmp_path)
    monkeypatch.setattr(Ensemble, "advance", interrupted)
    came = run_trials(
        Ensemble(trainer, threads=1), members, rule=EvaluationRule(dense_until=5), limits=Limits(steps=12)
    )
    assert next(came)[0].trial == 2
    with pytest.raises(KeyboardInterrupt):
        next(came)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.npz", "3.npz", "4.npz"]
    monkeypatch.setattr(Ensemble, "advance", advance)
    left = [member for member in members if member.trial != 2]
    again = _together(trainer, left, threads=1)
    for trial in (1, 3, 4):
        assert again[trial].steps == 12
        ends = [outcome[trial].rows[-1][1] for outcome in (again, whole)]
        for name, value in ends[0].items():
            assert value == pytest.approx(ends[1][name], rel=1e-6), name
    # A trial alone reads the same file.
    alone = small_trial(trainer, members[0].settings, seed=members[0].seed, checkpoint=members[0].checkpoint)
    assert [step for step, _ in alone.rows[:6]] == [0, 1, 2, 3, 4, 5]
    assert alone.rows[-1][1]["train/cross_entropy_error"] == pytest.approx(
        whole[1].rows[-1][1]["train/cross_entropy_error"], rel=1e-4
    )


def test_trials_at_different_steps_are_finished_in_groups(trainer, tmp_path):
    members = _members([0.05, 0.1, 0.2], checkpoints=tmp_path)
    ahead = members[1]
    short = small_trial(trainer, ahead.settings, steps=4, seed=ahead.seed)
    state = trainer.start(np.random.default_rng([*ahead.seed, 0]))
    examples, scalars = trainer.examples([*ahead.seed, 1]), trainer.scalars(ahead.settings)
    state = trainer.advance(state, examples, 0, 4, scalars).state
    facts = {"step": 4, "seconds": 0.0, "loss": 1.0, "rows": short.rows, "noise": []}
    ahead.checkpoint.save(trainer.arrays(state), facts)
    outcomes = _together(trainer, members, threads=1)
    _assert_like_alone(trainer, members, outcomes)


REFUSED = {
    "a convolution": {
        "forward": lambda scope, x: scope.dense(
            tf.reshape(scope.convolution(tf.reshape(x, (-1, 8, 8, 1)), 2, 3), (-1, 128)), 10
        )
    },
    "has no form for many trials": {
        "forward": models.lstm(1, 5, 11),
        "data_set": _sentences(),
        "batch_size": 8,
    },
    "not compiled": {"compiled": False},
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_cannot_be_batched_says_why(reason):
    trainer = small_trainer(CPU, **REFUSED[reason])
    with pytest.raises(CannotBatchError, match=reason):
        _together(trainer, _members([0.1, 0.2]), threads=1)


def test_trials_that_end_by_time_do_not_share_it(trainer):
    with pytest.raises(CannotBatchError, match="end by time"):
        _together(trainer, _members([0.1, 0.2]), limits=Limits(seconds=0.1))


# --------------------------------------------------------------------------- studies


def _study(name="digits/fc_16/sgd", **options):
    from dataclasses import replace

    workload = replace(named(name), rule=RULE, goal=Goal("val/classification_error", 0.5))
    return Study(workload, 64, options.pop("limits", Limits(steps=12)), **options)


def _trials(folder, study):
    place = folder / study.name
    return {trial: read_trial(place / str(trial)) for trial in finished_trials(place)}


def test_a_study_trained_together_equals_one_trained_trial_by_trial(tmp_path):
    study = _study()
    report = run_study(study, tmp_path / "together", trials=5, together=5)
    assert sorted(report.trained) == [1, 2, 3, 4, 5]
    run_study(study, tmp_path / "alone", trials=5)
    one, other = _trials(tmp_path / "together", study), _trials(tmp_path / "alone", study)
    for trial, held in one.items():
        assert held.file == other[trial].file
        assert held.curve.steps == other[trial].curve.steps
        for name, values in held.curve.metrics.items():
            for value, own in zip(values, other[trial].curve.metrics[name], strict=True):
                assert value == (own if own is None else pytest.approx(own, rel=1e-4, abs=1e-6)), name
    facts = json.loads((tmp_path / "together" / study.name / "3" / "facts.json").read_text())
    assert facts["together"] == 5
    assert not list((tmp_path / "together" / study.name).glob(".*"))


def test_finished_trials_are_kept_and_the_rest_trained_in_chunks(tmp_path):
    study = _study()
    run_study(study, tmp_path, trials=2, together=2)
    before = {trial: (tmp_path / study.name / str(trial)).stat().st_mtime_ns for trial in (1, 2)}
    report = run_study(study, tmp_path, trials=5, together=2)
    assert report.found == [1, 2]
    assert report.trained == [3, 4, 5]
    assert {trial: (tmp_path / study.name / str(trial)).stat().st_mtime_ns for trial in (1, 2)} == before


_CHILD = """
import sys
from tests.test_train_ensemble import _study, run_study
run_study(_study(limits=sys.modules["tests.test_train_ensemble"].LONG), sys.argv[1], trials=6, together=3)
"""
LONG = Limits(steps=3000)


def test_a_study_killed_in_the_middle_of_a_chunk_is_finished_and_nothing_finished_is_trained_again(tmp_path):
    study = _study(limits=LONG)
    place = tmp_path / "killed" / study.name
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(tmp_path / "killed")],
        cwd=ROOT,
        env=quiet_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 300
        while not finished_trials(place) and child.poll() is None and time.monotonic() < until:
            time.sleep(0.001)
    finally:
        child.kill()
        child.wait()
    found = finished_trials(place)
    assert 0 < len(found) < 6
    before = {trial: (place / str(trial)).stat().st_mtime_ns for trial in found}
    report = run_study(study, tmp_path / "killed", trials=6, together=3)
    assert report.found == found
    assert sorted([*report.trained, *found]) == [1, 2, 3, 4, 5, 6]
    assert {trial: (place / str(trial)).stat().st_mtime_ns for trial in found} == before
    assert not list(place.glob(".*"))
    run_study(study, tmp_path / "whole", trials=6, together=3)
    one, other = _trials(tmp_path / "killed", study), _trials(tmp_path / "whole", study)
    for trial, held in one.items():
        assert held.file == other[trial].file
        assert held.curve.steps == other[trial].curve.steps
        ends = [curve.metrics["train/cross_entropy_error"][3] for curve in (held.curve, other[trial].curve)]
        assert ends[0] == pytest.approx(ends[1], rel=1e-5)


def test_a_model_that_cannot_be_batched_is_trained_one_at_a_time_and_says_so(tmp_path, caplog):
    study = _study(limits=Limits(seconds=0.05))
    report = run_study(study, tmp_path, trials=2, together=2)
    assert report.trained == [1, 2]
    assert "one at a time: its trials end by time" in caplog.text


@pytest.fixture(scope="module")
def unpruned(tmp_path_factory):
    """A study of eight trials, and the measured steps at which each reached the goal."""
    study, folder = _study(limits=Limits(steps=64)), tmp_path_factory.mktemp("unpruned")
    run_study(study, folder, trials=8, together=8)
    return study, {trial: _reached(study, held) for trial, held in _trials(folder, study).items()}


def _reached(study, trial):
    values = zip(trial.curve.steps, trial.curve.metrics[study.workload.goal.metric], strict=True)
    return next((step for step, value in values if study.workload.goal.met(value)), math.inf)


@pytest.mark.parametrize("together", [1, 8])
def test_pruned_trials_are_incomplete_and_the_winner_stays(tmp_path, unpruned, together):
    from dataclasses import replace

    full, reached = unpruned
    study = replace(full, prune=1.0)
    run_study(study, tmp_path, trials=8, together=together)
    trials = _trials(tmp_path, study)
    assert min(_reached(study, held) for held in trials.values()) == min(reached.values()) < 32
    grid, expected = [1, 2, 4, 8, 16, 32], {}
    for trial, steps in reached.items():
        known = reached.values() if together == 8 else [reached[t] for t in range(1, trial)]
        cuts = [step for step in grid if any(best < step for best in known) and steps > step]
        if cuts:
            expected[trial] = cuts[0]
    cut = {trial: held.file.steps for trial, held in trials.items() if held.file.status == "INCOMPLETE"}
    assert cut == expected
    assert cut
    for trial in trials:
        facts = json.loads((tmp_path / study.name / str(trial) / "facts.json").read_text())
        assert facts["pruned"] == (trial in cut)
    assert json.loads((tmp_path / study.name / "run.json").read_text())["prune"] == 1.0


def test_nothing_is_pruned_unless_asked(tmp_path):
    study = _study()
    assert study.prune is None
    assert "prune" not in json.loads(study.run_file().text())


def test_a_narrowed_study_keeps_its_trials_and_draws_the_next_from_the_narrower_space(tmp_path):
    from dataclasses import replace

    from batchscience.errors import TrainingError
    from batchscience.spaces import Parameter, SearchSpace

    wide = _study(limits=Limits(steps=2))
    narrow = SearchSpace((Parameter("learning_rate", "DOUBLE", 0.05, 0.1, "LOG_SCALE"),))
    run_study(wide, tmp_path, trials=3, together=3)
    before = {trial: held.file for trial, held in _trials(tmp_path, wide).items()}
    source = json.loads((tmp_path / wide.name / "run.json").read_text())["source"]
    with pytest.raises(TrainingError, match="narrowed"):
        run_study(replace(wide, narrowed=((3, narrow),)), tmp_path, trials=5)
    study = replace(wide, narrowed=((4, narrow),))
    assert run_study(study, tmp_path, trials=6, together=3).trained == [4, 5, 6]
    after = {trial: held.file for trial, held in _trials(tmp_path, study).items()}
    assert {trial: after[trial] for trial in (1, 2, 3)} == before
    for trial in (4, 5, 6):
        assert after[trial].parameters == study.settings(trial)
        assert 0.05 <= after[trial].parameters["learning_rate"] <= 0.1
    run = json.loads((tmp_path / study.name / "run.json").read_text())
    assert run["source"] == source
    assert run["narrowed"][0]["from_trial"] == 4
    # The wide study would draw the next trials from elsewhere.
    with pytest.raises(TrainingError, match="narrowed"):
        run_study(wide, tmp_path, trials=7)


def test_a_space_that_is_not_narrower_is_refused():
    from batchscience.spaces import Parameter, SearchSpace

    beyond = SearchSpace((Parameter("learning_rate", "DOUBLE", 0.1, 100.0, "LOG_SCALE"),))
    other = SearchSpace((Parameter("momentum", "DOUBLE", 0.1, 0.2),))
    with pytest.raises(ValueError, match="not within"):
        _study(narrowed=((4, beyond),))
    with pytest.raises(ValueError, match="same metaparameters"):
        _study(narrowed=((4, other),))
