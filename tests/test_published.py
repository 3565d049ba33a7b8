"""The bundled tables are whole, typed, and agree with each other."""

import csv
import hashlib

import numpy as np
import pandas as pd
import pytest

from batchscience import published
from batchscience.errors import StoreMissing

TABLES = {
    published.studies: 454,
    published.figure_points: 1388,
    published.offscale_points: 17,
    published.consensus_steps: 291,
    published.stars: 16,
    published.critical_batch_size_points: 45,
    published.critical_batch_size_fits: 5,
}


@pytest.mark.parametrize(("table", "rows"), TABLES.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_table_has_its_rows_and_no_row_twice(table, rows):
    frame = table()
    assert len(frame) == rows
    assert not frame.duplicated().any()


def test_columns_are_numbers_text_or_bool_never_objects():
    for table in TABLES:
        for name, dtype in table().dtypes.items():
            assert dtype in ("int64", "float64", "bool") or isinstance(dtype, pd.StringDtype), (table, name)


def test_missing_numbers_stand_only_where_a_panel_has_none():
    points = published.figure_points()
    no_goal = points["y_name"] == "best_objective_value"
    assert points["goal"].isna().equals(no_goal)
    assert points.drop(columns="goal").notna().all(axis=None)
    stars = published.stars()
    assert stars[stars["learning_rate"].isna()]["panel_title"].tolist() == ["Batch Size 4096"]
    for table in (published.studies, published.consensus_steps, published.critical_batch_size_points):
        assert table().notna().all(axis=None)


def test_studies_are_35_workloads_with_the_published_totals():
    studies = published.studies()
    assert studies["workload"].nunique() == 35
    assert not studies.duplicated(["workload", "batch_size"]).any()
    assert studies[["complete", "incomplete", "infeasible"]].sum().tolist() == [108_194, 43_508, 42_697]
    path = studies["dataset"] + "/" + studies["model"] + "/" + studies["optimizer"]
    assert (path == studies["workload"]).all()


def test_every_point_belongs_to_a_published_study():
    studies = set(published.studies()[["workload", "batch_size"]].itertuples(index=False, name=None))
    points = pd.concat([published.figure_points(), published.offscale_points()])
    assert set(points[["workload", "x"]].itertuples(index=False, name=None)) <= studies
    steps = published.consensus_steps()
    assert set(steps[["workload", "batch_size"]].itertuples(index=False, name=None)) <= studies


def test_consensus_steps_agree_with_each_figure_that_shows_steps():
    points = published.figure_points()
    # Figure 7 splits the trials of a study, so its steps are not those of the whole study.
    points = points[(points["y_name"] == "steps") & (points["figure"] != "7")]
    both = points.merge(
        published.consensus_steps(),
        left_on=["workload", "metric", "goal", "x"],
        right_on=["workload", "metric", "goal", "batch_size"],
    )
    assert len(both) == len(points)
    # The two bounds add up where the readings lie on opposite sides of the truth.
    allowed = both["y_rel_uncertainty"] + both["steps_rel_uncertainty"]
    assert (np.abs(both["y"] / both["steps"] - 1) <= allowed).all()


def test_error_rates_of_figure_11_are_multiples_of_one_in_5000():
    points = published.figure_points()
    rates = points[(points["figure"] == "11") & points["metric"].str.endswith("classification_error")]
    assert len(rates) == 288
    images = rates["y"] * 5000
    assert (np.abs(images - images.round()) <= images * rates["y_rel_uncertainty"] + 1e-6).all()


def test_published_critical_batch_sizes_follow_from_their_fits():
    fits = published.critical_batch_size_fits()
    assert np.allclose(fits["b"] / (5 * fits["a"]) + 1.2 * 256, fits["critical_batch_size"], rtol=1e-12)


def test_six_steps_of_the_fits_differ_from_the_logged_ones():
    points = published.critical_batch_size_points()
    assert int((points["steps_logged"] != points["steps_fitted"]).sum()) == 6


def test_a_file_that_did_not_come_with_the_package_is_named():
    with pytest.raises(StoreMissing, match=r"published/no_such\.csv.*installed whole"):
        published.bundled("published/no_such.csv")


def test_the_readme_of_the_tables_names_each_of_them():
    folder = published.bundled("published")
    text = (folder / "README.md").read_text(encoding="utf-8")
    for path in sorted(folder.glob("*.csv")):
        assert path.name in text
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert digest[:16] in text, f"{path.name} changed ({digest[:16]}); is its README still right?"


def test_numbers_read_back_to_the_last_bit():
    with published.bundled("published/critical_batch_size_fits.csv").open(encoding="utf-8") as file:
        written = [float(row["b"]) for row in csv.DictReader(file)]
    assert published.critical_batch_size_fits()["b"].tolist() == written
