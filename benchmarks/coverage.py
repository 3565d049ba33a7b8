"""Coverage of the limits and accuracy of the transition points, by simulation in several settings.

Usage: python benchmarks/coverage.py [--workloads 400] [--draws 499] [--seed 0]

Prints, for each setting, shares of the simulated workloads with their standard errors.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from pathlib import Path

import numpy as np

# The simulated searches are those of the tests.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.searches import Outcome, Setting, best_of_coverage, draw, outcome

USUAL = Setting()
SETTINGS = {
    "as the simulated archive": USUAL,
    "studies differ by their trials alone": dataclasses.replace(USUAL, study_scatter=0.0),
    "studies differ by 10 % more": dataclasses.replace(USUAL, study_scatter=0.1),
    "10 batch sizes": dataclasses.replace(USUAL, batch_sizes=(10, 10)),
    "50 trials": dataclasses.replace(USUAL, trials=50, diverged=15),
    "batch sizes a factor of 4 apart": dataclasses.replace(USUAL, spacing=4.0, batch_sizes=(10, 10)),
    "hyperbolas": dataclasses.replace(USUAL, sharpness=(1.0,)),
    "sharp corners": dataclasses.replace(USUAL, sharpness=(5.0,)),
    "few good settings (delays 3 times as long)": dataclasses.replace(USUAL, delay=1.5),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", type=int, default=400)
    parser.add_argument("--draws", type=int, default=499)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    columns = [field.name for field in dataclasses.fields(Outcome)]
    print("| setting | " + " | ".join([*columns, "best_of_10_covered"]) + " |")
    print("|---" * (len(columns) + 2) + "|")
    for name, setting in SETTINGS.items():
        rng = np.random.default_rng(options.seed)
        found = [outcome(draw(setting, rng), rng, draws=options.draws) for _ in range(options.workloads)]
        cells = [column([getattr(one, field) for one in found]) for field in columns]
        best = best_of_coverage(setting, rng, 4000)
        cells.append(f"{100 * best:.1f} ± {100 * math.sqrt(best * (1 - best) / 4000):.1f} %")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def column(values: list[bool] | list[float]) -> str:
    """A share with its standard error, or the median of a width in factors of two as a factor."""
    if isinstance(values[0], bool):
        share = float(np.mean(values))
        return f"{100 * share:.1f} ± {100 * math.sqrt(share * (1 - share) / len(values)):.1f} %"
    return f"factor {2 ** float(np.median(values)):.2f}"


if __name__ == "__main__":
    main()
