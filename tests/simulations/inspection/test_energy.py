"""Gradient energy kept, random sparsification, what noise and clip cost: closed forms, brute
force.
"""

import pytest
from rich.console import Console

from fedlsg.lowrank import project, random_carriers, reconstruct
from fedlsg.randomness import public_generator
from fedlsg.simulations.inspection import Subject, batch_gradient, subject_of_run
from fedlsg.simulations.inspection.energy import PRIVATE, KeptRow, kept_rows, weights_at
from fedlsg.simulations.inspection.inspect_command import measure_costs
from tests.simulations.inspection.test_command import files_of
from tests.simulations.support.runs import run_local

HIDDEN = "hidden.weight"
KINDS = ("random", "W", "W - W_0", "updates", "probe: leaves", "probe: pink", PRIVATE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Four rounds of rgp with little noise and recorded updates."""
    path = tmp_path_factory.mktemp("runs") / "rgp"
    settings = {
        "method": "rgp",
        "rank": 4,
        "rounds": 4,
        "sample_rate": 0.5,
        "noise_multiplier": 0.5,
    }
    return subject_of_run(str(run_local(path, record_updates=True, **settings).path))


@pytest.fixture(scope="module")
def found(recorded: Subject) -> dict[tuple[int, str, str], KeptRow]:
    rows = kept_rows(recorded, recorded.rows(30), [1, 3, 5], None)
    return {(row.round, row.carriers, row.form): row for row in rows}


@pytest.mark.slow
def test_energies_of_a_run_against_projections(recorded, found):
    """Oracle: Eq. 3, and spans by QR, of carriers that are made here; the run's own change has more
    than W.
    """
    rows = recorded.rows(30)
    weights = weights_at(recorded, 3)
    with recorded.at(weights):
        dW = batch_gradient(recorded, rows)[HIDDEN].double()
    generator = public_generator(recorded.state.seed, "inspect energy", 3, HIDDEN, 4)
    L, R = (
        X.double() for X in random_carriers((64, 64), 4, generator=generator, like=weights[HIDDEN])
    )
    tangent, core = reconstruct(*project(dW, L, R), L, R), L @ L.mT @ dW @ R.mT @ R
    for form, kept in (("tangent", tangent), ("core", core)):
        assert found[3, "random", form].energy == pytest.approx(
            float((kept.norm() / dW.norm()) ** 2), rel=1e-6
        )
        assert found[3, "random", form].squared_norm == pytest.approx(
            float(dW.square().sum()), rel=1e-6
        )
        assert all(
            found[t, kind, "core"].energy <= found[t, kind, "tangent"].energy
            for t in (3, 5)
            for kind in KINDS
        )
    assert found[3, "W - W_0", "tangent"].energy > 2 * found[3, "W", "tangent"].energy
    assert found[3, PRIVATE, "tangent"].energy > 0.7
    assert found[1, PRIVATE, "tangent"].energy != found[3, PRIVATE, "tangent"].energy


QUIET = {"noise_multiplier": None}


@pytest.mark.slow
def test_the_same_run_without_noise_and_without_both(small, tmp_path):
    """Oracle: the settings of the run under another mechanism. Nothing of the run changes."""
    settings = {
        key: small.config[key]
        for key in ("method", "seed", "sample-rate", "learning-rate", "rank", "sparsity")
    }
    again = [
        run_local(
            tmp_path / kind,
            **QUIET,
            mechanism=kind,
            **{k.replace("-", "_"): v for k, v in settings.items()},
        )
        for kind in ("clip-only", "none")
    ]
    before = files_of(small.path)
    found = measure_costs(subject_of_run(str(small.path)), Console(quiet=True))
    assert files_of(small.path) == before
    assert found.with_noise == small.summary["accuracy"]
    assert (found.clip_only, found.neither) == tuple(run.summary["accuracy"] for run in again)
    assert found.standard_error is not None
    # negative control: they are not one run
    assert len({found.with_noise, found.clip_only, found.neither}) > 1
