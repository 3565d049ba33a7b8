"""Speed-up and cost: hand-worked cases, laws, and what is not read off beyond the data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from batchscience.advice import advise, best_choice, published_curve, read_throughput, speed_up
from batchscience.cli import app
from batchscience.errors import BatchScienceError, UnknownWorkload
from batchscience.goals import Goal
from batchscience.store import Store

ERROR = "val/classification_error"


def curve(sizes: Any, steps: Any, **more: Any) -> pd.DataFrame:
    return pd.DataFrame({"batch_size": sizes, "steps": steps, **more})


def setups(*rows: tuple[float, float, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["batch_size", "accelerators", "examples_per_second"])


def test_efficiency_is_perfect_scaling_over_what_it_takes() -> None:
    table = speed_up(curve([64, 16, 32, 8], pd.array([300, 800, 400, None], dtype="Int64")))
    assert table["batch_size"].tolist() == [8, 16, 32, 64]
    assert table["steps"].isna().tolist() == [True, False, False, False]
    assert table["examples"].tolist()[1:] == [12800, 12800, 19200]
    assert table["speed_up"].tolist()[1:] == [1, 2, 800 / 300]
    assert table["efficiency"].tolist()[1:] == [1, 1, pytest.approx(800 / 300 / 4)]


def test_hours_and_accelerator_hours_of_a_case_worked_by_hand() -> None:
    # 7,200 steps of 64 examples at 128 examples a second: half a second a step, one hour.
    found = advise(curve([64, 128], [7200, 4500]), setups((64, 2, 128), (128, 8, 512)))
    assert found["hours"].tolist() == [1.0, 4500 * 0.25 / 3600]
    assert found["accelerator_hours"].tolist() == [2.0, 8 * 4500 * 0.25 / 3600]
    assert found["examples"].tolist() == [460_800, 576_000]
    assert found["efficiency"].tolist() == [1.0, 0.8]
    assert found["pareto"].tolist() == [True, True]
    # The second is 3.2 times as fast, for 1.25 times the accelerator-hours: the price of that halving.
    assert found["halving_factor"].tolist()[1] == pytest.approx(1.25)
    assert math.isnan(found["halving_factor"].tolist()[0])
    priced = advise(curve([64, 128], [7200, 4500]), setups((64, 2, 128)), price_per_accelerator_hour=3.0)
    assert priced["cost"].tolist() == [6.0]


def test_what_another_set_up_beats_is_not_in_the_pareto_set() -> None:
    found = advise(
        curve([64, 128], [3600, 3600]),
        setups((64, 1, 64), (64, 2, 64), (64, 2, 100), (128, 2, 128)),
    )
    # Twice the accelerators for nothing, and a batch size that takes as many steps, are beaten.
    assert found["pareto"].tolist() == [True, False, True, False]
    assert advise(curve([64], [3600]), setups((64, 1, 64), (64, 1, 64)))["pareto"].all()


def test_between_measured_batch_sizes_the_steps_are_interpolated_and_marked() -> None:
    found = advise(curve([64, 256], [4000, 1000]), setups((64, 1, 64), (128, 1, 64), (256, 1, 64)))
    assert found["steps"].round(6).tolist() == [4000, 2000, 1000]
    assert found["interpolated"].tolist() == [False, True, False]


def test_beyond_the_measured_batch_sizes_there_is_no_answer() -> None:
    with pytest.warns(UserWarning, match="no steps are known for batch size 32, 512"):
        found = advise(curve([64, 256], [4000, 1000]), setups((32, 1, 64), (128, 1, 64), (512, 1, 64)))
    assert found["hours"].isna().tolist() == [True, False, True]
    assert found["pareto"].tolist() == [False, True, False]
    assert "from 64 to 256" in found["warning"].iloc[0]
    assert "not read off beyond" in found["warning"].iloc[2]


def test_a_batch_size_that_missed_the_goal_is_not_bridged() -> None:
    missed = curve([64, 128, 256], [4000, np.nan, 1000])
    with pytest.warns(UserWarning, match="no steps are known for batch size 96, 128, 200"):
        found = advise(missed, setups((64, 1, 64), (96, 1, 64), (128, 1, 64), (200, 1, 64), (256, 1, 64)))
    assert found["steps"].notna().tolist() == [True, False, False, False, True]
    assert found["warning"].iloc[2] == "no trial reached the goal at this batch size"
    with pytest.warns(UserWarning, match="no steps are known"):
        nothing = advise(curve([64], [np.nan]), setups((32, 1, 64), (64, 1, 64)))
    assert not nothing["pareto"].any()
    assert nothing["warning"].iloc[0] == "no trial reached the goal at any batch size"
    assert best_choice(nothing) == "no set-up has a known time to the goal"


def test_the_evaluation_grid_and_the_limits_of_the_search_become_hours() -> None:
    known = curve(
        [64, 128], [3600, 3600], after=[1800, 3000], best_of_low=[2700.0, 0.0], best_of_high=[7200.0, np.inf]
    )
    found = advise(known, setups((64, 1, 64), (128, 1, 128)))
    assert found["hours_low"].tolist() == [0.5, pytest.approx(3000 / 3600)]
    assert found["hours_high"].tolist()[0] == 2.0
    assert math.isnan(found["hours_high"].tolist()[1])
    unknown = advise(curve([64], [3600]), setups((64, 1, 64)))
    assert unknown[["hours_low", "hours_high"]].isna().all(axis=None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from([64.0, 128.0, 256.0, 100.0]),
            st.integers(1, 16).map(float),
            st.floats(10, 1e5),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_set_up_outside_the_pareto_set_is_beaten_by_one_inside(
    rows: list[tuple[float, float, float]],
) -> None:
    found = advise(curve([64, 128, 256], [4000, 2100, 1500]), setups(*rows))
    frontier = found[found["pareto"]]
    assert len(frontier)
    for row in found.to_dict("records"):
        no_worse = frontier[
            (frontier["hours"] <= row["hours"]) & (frontier["accelerator_hours"] <= row["accelerator_hours"])
        ]
        strictly = (no_worse["hours"] < row["hours"]) | (
            no_worse["accelerator_hours"] < row["accelerator_hours"]
        )
        assert strictly.any() != row["pareto"]
    # On the frontier a faster set-up is never cheaper.
    ordered = frontier.sort_values(["hours", "accelerator_hours"])
    assert ordered["accelerator_hours"].is_monotonic_decreasing


@given(st.permutations(range(4)))
def test_the_order_of_the_set_ups_changes_nothing(order: list[int]) -> None:
    rows = setups((64, 1, 64), (64, 2, 120), (128, 2, 128), (256, 8, 500))
    known = curve([64, 128, 256], [4000, 2100, 1500])
    pd.testing.assert_frame_equal(advise(known, rows.iloc[order]), advise(known, rows))


def test_the_choice_under_a_deadline() -> None:
    table = advise(curve([64, 128], [7200, 4500]), setups((64, 2, 128), (128, 8, 512)))
    assert best_choice(table, deadline_hours=2).startswith("cheapest within 2 hours: batch size 64")
    assert best_choice(table, deadline_hours=0.5).startswith("cheapest within 0.5 hours: batch size 128")
    assert best_choice(table, deadline_hours=0.1).startswith("no set-up reaches the goal within 0.1 hours")
    assert best_choice(advise(curve([64], [7200]), setups((64, 2, 128)))).startswith("cheapest and fastest")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch_size,accelerators\n1,2\n", "expected the columns .*examples_per_second"),
        ("batch_size,accelerators,examples_per_second\n64,1,100\n128,x,2\n", "line 3: .* positive numbers"),
        ("batch_size,accelerators,examples_per_second\n64,0,100\n", "line 2: .* positive numbers"),
        ("", "cannot be read as a CSV"),
    ],
)
def test_a_throughput_file_that_makes_no_sense_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "throughput.csv"
    path.write_text(text)
    with pytest.raises(BatchScienceError, match=message):
        read_throughput(path)
    with pytest.raises(BatchScienceError, match="cannot be read"):
        read_throughput(tmp_path / "none.csv")


def test_a_throughput_file_may_have_a_byte_order_mark_and_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "throughput.csv"
    path.write_bytes(b"\xef\xbb\xbfbatch_size, accelerators, examples_per_second, who\r\n64,1,100.5,me\r\n")
    assert read_throughput(path).to_numpy().tolist() == [[64.0, 1.0, 100.5]]


@pytest.mark.parametrize(
    ("known", "rows", "price", "error"),
    [
        (curve([64, 64], [1, 2]), setups((64, 1, 1)), None, ValueError),
        (curve([64], [1]), setups((64, 1, -1)), None, ValueError),
        (curve([64], [1]), setups((64, 1, 1)), -1.0, ValueError),
        (curve([64], [1]), setups((64, 1, 1)).drop(columns="accelerators"), None, KeyError),
    ],
)
def test_nonsense_is_refused(
    known: pd.DataFrame, rows: pd.DataFrame, price: float | None, error: type[Exception]
) -> None:
    with pytest.raises(error):
        advise(known, rows, price_per_accelerator_hour=price)


def test_published_steps_that_are_not_there_are_named() -> None:
    with pytest.raises(UnknownWorkload, match=r"\(their goals: 0.01\)"):
        published_curve("mnist/simple_cnn_base/sgd", Goal(ERROR, 0.5))
    with pytest.raises(UnknownWorkload, match="their goals: none"):
        published_curve("nowhere", Goal(ERROR, 0.5))


FIELDS = [
    "batch_size",
    "accelerators",
    "examples_per_second",
    "steps",
    "interpolated",
    "examples",
    "efficiency",
    "hours",
    "hours_low",
    "hours_high",
    "accelerator_hours",
    "pareto",
    "halving_factor",
    "warning",
]
"""The fields of the JSON, in order: scripts rely on them."""


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["advise", *arguments])


def test_advice_from_published_steps_on_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "throughput.csv"
    path.write_text("batch_size,accelerators,examples_per_second\n256,8,2000\n8192,256,50000\n")
    arguments = ("imagenet/resnet_50/nesterov_momentum", "--throughput", str(path), "--source", "published")
    found = run(*arguments, "--format", "json", "--deadline", "5")
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)
    assert [list(row) for row in rows] == [FIELDS] * 2
    # 382,951 steps of 256 at 2,000 a second, as read from Figure 1.
    assert rows[0]["hours"] == pytest.approx(382_951 * 256 / 2000 / 3600, rel=1e-3)
    assert rows[0]["hours_low"] is None
    assert "cheapest within 5 hours: batch size 8,192 on 256 accelerators" in found.stderr
    assert run(*arguments, "--price", "2", "--format", "csv").stdout.startswith("batch_size,accelerators")
    assert run(*arguments, "--goal", "0.5", "--metric", ERROR).exit_code == 2
    assert (
        run(arguments[0], "--throughput", str(tmp_path / "none.csv"), "--source", "published").exit_code == 1
    )


@pytest.mark.filterwarnings("ignore:.*fewer than 100 trials")
def test_advice_from_a_store_on_the_command_line(simulated_store: Store, tmp_path: Path) -> None:
    path = tmp_path / "throughput.csv"
    path.write_text("batch_size,accelerators,examples_per_second\n64,1,1000\n128,2,2000\n")
    found = run(
        "cifar_10/resnet_8/sgd",
        "--throughput",
        str(path),
        "--data",
        str(simulated_store.path),
        "--format",
        "json",
    )
    assert found.exit_code == 0, found.output
    assert [list(row) for row in json.loads(found.stdout)] == [FIELDS] * 2
