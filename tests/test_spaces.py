"""Search spaces: scales of the archive, and settings that are a function of study and trial."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchscience.spaces import Parameter, SearchSpace

PARAMETERS = (
    Parameter("learning_rate", "DOUBLE", 1e-5, 10.0, "LOG_SCALE"),
    Parameter("momentum", "DOUBLE", 0.5, 0.9999, "REVERSE_LOG_SCALE"),
    Parameter("dropout", "DOUBLE", 0.0, 0.8, "LINEAR_SCALE"),
    Parameter("decay_steps", "INTEGER", 100, 200),
    Parameter("label_smoothing", "DISCRETE", feasible_points=(0.0, 0.01, 0.1)),
)
SPACE = SearchSpace(PARAMETERS)


@given(st.sampled_from(PARAMETERS), st.floats(0, 1, exclude_max=True))
def test_every_position_gives_a_feasible_value(parameter: Parameter, position: float) -> None:
    value = parameter.value_at(position)
    assert SearchSpace((parameter,)).contains({parameter.name: value})


@given(st.sampled_from(PARAMETERS[:3]), st.floats(0, 1, exclude_max=True))
def test_position_undoes_value_at(parameter: Parameter, position: float) -> None:
    assert parameter.position(parameter.value_at(position)) == pytest.approx(position, abs=1e-9)


def test_scales_are_uniform_in_what_they_name() -> None:
    assert Parameter("x", "DOUBLE", 1.0, 100.0, "LOG_SCALE").value_at(0.5) == pytest.approx(10)
    assert Parameter("x", "DOUBLE", 0.9, 0.999, "REVERSE_LOG_SCALE").value_at(0.5) == pytest.approx(0.99)
    assert Parameter("x", "DOUBLE", 0.0, 4.0, "LINEAR_SCALE").value_at(0.5) == 2.0
    integer = Parameter("x", "INTEGER", 1, 3)
    assert [integer.value_at(u) for u in (0, 0.34, 0.67, 0.99)] == [1, 2, 3, 3]


def test_settings_are_a_function_of_study_seed_and_trial() -> None:
    settings = SPACE.settings("mnist/fc/sgd/64", 17)
    assert settings == SPACE.settings("mnist/fc/sgd/64", 17)
    assert settings != SPACE.settings("mnist/fc/sgd/64", 18)
    assert settings != SPACE.settings("mnist/fc/sgd/128", 17)
    assert settings != SPACE.settings("mnist/fc/sgd/64", 17, seed=1)
    # The order in which a space lists its parameters does not matter.
    assert settings == SearchSpace(PARAMETERS[::-1]).settings("mnist/fc/sgd/64", 17)


def test_settings_cover_the_space_evenly() -> None:
    positions = sorted(
        PARAMETERS[0].position(SPACE.settings("a/b/c/1", trial)["learning_rate"]) for trial in range(1, 65)
    )
    # 64 points of a Halton sequence in base 2 or more leave no wide gap; random ones would.
    assert max(b - a for a, b in itertools.pairwise(positions)) < 4 / 64


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a positive min_value"):
        Parameter("x", "DOUBLE", 0.0, 1.0, "LOG_SCALE")
    with pytest.raises(ValueError, match="max_value below 1"):
        Parameter("x", "DOUBLE", 0.0, 1.0, "REVERSE_LOG_SCALE")
    with pytest.raises(ValueError, match="min_value <= max_value"):
        Parameter("x", "DOUBLE", 1.0, math.nan)
    with pytest.raises(ValueError, match="feasible_points"):
        Parameter("x", "DISCRETE")
    with pytest.raises(ValueError, match="each parameter once"):
        SearchSpace((PARAMETERS[0], PARAMETERS[0]))
    with pytest.raises(ValueError, match="numbered from 1"):
        SPACE.settings("a", 0)


def test_a_value_off_the_scale_has_no_position() -> None:
    assert math.isnan(PARAMETERS[0].position(0.0))
    assert math.isnan(PARAMETERS[0].position(math.nan))
    assert math.isnan(PARAMETERS[1].position(1.0))
    assert math.isnan(PARAMETERS[4].position(0.05))
    assert PARAMETERS[4].position(0.01) == 0.5


def test_contains_wants_every_parameter_and_no_other() -> None:
    settings = SPACE.settings("a", 1)
    assert SPACE.contains(settings)
    assert not SPACE.contains(settings | {"other": 1.0})
    assert not SPACE.contains({k: v for k, v in settings.items() if k != "momentum"})
    assert not SPACE.contains(settings | {"learning_rate": 100.0})
