"""Made-up patients with many rows: accuracy at one epsilon of a patient, by what is clipped.

Five hospitals have 120 patients each. A patient has 1 to 12 rows (mean 4.5) of 16 values, which are
shifted by the patient's own offset, and each row has one of four classes. Test rows are of other
patients. Every line but the last two gives the same epsilon to a patient with all rows:

    12 rows        rows are clipped, and sigma is that of a group of 12 rows (sigma / 12 at rate
                   1 - (1 - q)^12, ``fedlsg.config.units``), the most that a patient has
    4 rows, 1 row  the same with the first 4 rows of a patient, or the first one; the others are
                   left out
    person, mean   unit=patient: the mean over a patient's rows is clipped
    person, sum    the sum over at most 4 rows of a patient
    hospital       unit=client: a whole hospital, which is more than a patient
    rows           epsilon protects a row, which is less than a patient

Each has the best of ``RATES`` on a seed of its own, 100. Command: python -m
benchmarks.privacy.persons --seeds 3 --out docs/results/persons.md
"""

import argparse
import math
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import fedlsg
from fedlsg.accounting import calibrate_noise_multiplier

HOSPITALS, PATIENTS, MOST_ROWS = 5, 120, 12
WIDTH, CLASSES, TEST_PATIENTS = 16, 4, 500
EPSILON, DELTA, SAMPLE_RATE, ROUNDS = 2.0, 1e-3, 0.25, 40
GROUPS = {"12 rows": MOST_ROWS, "4 rows": 4, "1 row": 1}
RATES = (0.1, 0.3, 1.0, 3.0)
TUNING = 100
NAMES = [f"x{column}" for column in range(WIDTH)]


def build() -> nn.Module:
    """A small network of the values."""
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, CLASSES))


def made(patients: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, classes and the patient of each row."""
    rng, task = np.random.default_rng(seed), np.random.default_rng(7)
    centres = 1.2 * task.normal(size=(CLASSES, WIDTH))
    counts = np.minimum(rng.geometric(0.2, size=patients), MOST_ROWS)
    patient = np.repeat(np.arange(patients), counts)
    offset = 1.5 * rng.normal(size=(patients, WIDTH))
    label = rng.integers(0, CLASSES, size=len(patient))
    values = centres[label] + offset[patient] + rng.normal(size=(len(patient), WIDTH))
    return values.astype(np.float32), label, patient


def places(patient: np.ndarray) -> np.ndarray:
    """How many rows before it each row's patient has."""
    _, starts, counts = np.unique(patient, return_index=True, return_counts=True)
    return np.arange(len(patient)) - np.repeat(starts, counts)


def patients(seed: int = 0) -> fedlsg.Workload:
    """The workload, for ``fedlsg audit -c workload=benchmarks/privacy/persons.py:patients``."""
    values, label, patient = made(HOSPITALS * PATIENTS, seed)
    test = made(TEST_PATIENTS, 10_000)[:2]
    return fedlsg.Workload(
        model=build,
        train=(values, label),
        test=test,
        loss=nn.CrossEntropyLoss(),
        partition=[np.flatnonzero(patient // PATIENTS == one) for one in range(HOSPITALS)],
        unit=patient,
        name="patients",
    )


def group_sigma(rows: int) -> float:
    """Noise over C at which so many rows together have the epsilon."""
    rate = -math.expm1(rows * math.log1p(-SAMPLE_RATE))
    return rows * calibrate_noise_multiplier(
        epsilon=EPSILON, delta=DELTA, sample_rate=rate, steps=ROUNDS
    )


def settings_of(line: str) -> dict[str, Any]:
    """What a run of the line is given."""
    of_rows = {"epsilon": EPSILON, "sample_rate": SAMPLE_RATE}
    of_persons = {**of_rows, "unit": "person"}
    return {
        "rows": of_rows,
        **{
            name: {"sample_rate": SAMPLE_RATE, "noise_multiplier": group_sigma(rows)}
            for name, rows in GROUPS.items()
        },
        "hospital": {
            "unit": "client",
            "trust": "server",
            "clients_per_round": 2,
            "batch_size": 100,
            "epsilon": EPSILON,
            "delta": 0.1,
        },
        "person, mean": of_persons,
        "person, sum": {**of_persons, "person_gradient": "sum", "person_rows": 4},
    }[line]


LINES = (*GROUPS, "person, mean", "person, sum", "hospital", "rows")


def accuracy(line: str, rate: float, seed: int) -> float:
    """Test accuracy in percent of one run."""
    values, label, patient = made(HOSPITALS * PATIENTS, seed)
    if line in GROUPS:
        kept = places(patient) < GROUPS[line]
        values, label, patient = values[kept], label[kept], patient[kept]
    of = patient // PATIENTS
    given = {"learning_rate": rate, "delta": DELTA, **settings_of(line)}
    if given.get("unit") == "person":
        given["unit"] = patient
    with tempfile.TemporaryDirectory() as folder:
        run = fedlsg.simulate(
            model=build,
            train=(values, label),
            test=made(TEST_PATIENTS, 10_000)[:2],
            loss=nn.CrossEntropyLoss(),
            partition=[np.flatnonzero(of == one) for one in np.unique(of)],
            method="dpsgd",
            optimizer="sgd",
            rounds=ROUNDS,
            engine="local",
            evaluate_every=ROUNDS,
            seed=seed,
            out=Path(folder) / "run",
            quiet=True,
            **given,
        )
        return 100 * float(run.summary["accuracy"])


def lines(seeds: int) -> list[str]:
    """The table."""
    found = [
        "| clipped | epsilon is of | sigma over C | learning rate | test accuracy, % |",
        "|---|---|---|---|---|",
    ]
    of = {"rows": "a row", "hospital": "a hospital, at delta 0.1"}
    for line in LINES:
        rate = max(RATES, key=lambda one: accuracy(line, one, TUNING))
        values = [accuracy(line, rate, seed) for seed in range(seeds)]
        sigma = settings_of(line).get("noise_multiplier")
        noise = "calibrated" if sigma is None else f"{sigma:.1f}"
        spread = statistics.stdev(values) if seeds > 1 else math.nan
        found.append(
            f"| {line} | {of.get(line, 'a patient')} | {noise} "
            f"| {rate:g} | {statistics.mean(values):.1f} ± {spread:.1f} |"
        )
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    start = time.monotonic()
    table = lines(given.seeds)
    minutes = math.ceil((time.monotonic() - start) / 60)
    table += [
        "",
        f"Epsilon {EPSILON:g} at delta {DELTA:g}, {ROUNDS} rounds, q = {SAMPLE_RATE:g}; mean ± "
        f"standard deviation over seeds 0 to {given.seeds - 1}, which draw patients, weights and "
        f"noise; {platform.machine()}, one thread of a 2-core virtual machine, no GPU, {minutes} "
        f"minutes; torch {torch.__version__}. Command: `python -m benchmarks.privacy.persons "
        f"--seeds {given.seeds}`",
    ]
    print("\n".join(table[-1:]))
    if given.out is not None:
        given.out.write_text("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
