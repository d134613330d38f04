"""Gradient energy kept: closed forms, brute force, a moving average by hand, and what is refused and written."""

import csv
import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch.nn import functional as F
from torch.testing import assert_close

from fedlsg.carriers.probe import Probe, probe_basis
from fedlsg.carriers.statistics import residual
from fedlsg.forms import CORE, TANGENT
from fedlsg.gradients import trainable
from fedlsg.lowrank import project, random_carriers, reconstruct
from fedlsg.public import Public
from fedlsg.randomness import public_generator
from simulations.cli import app as cli
from simulations.inspection.command import inspect_command
from simulations.inspection.energy import KeptRow, kept_rows, private_moments, whole
from simulations.inspection.kinds import DECAY, PRIVATE, moving_averages, rounds_of, weights_at
from simulations.inspection.subject import Subject, batch_gradient, subject_of_run, subject_of_settings
from simulations.inspection.tables import summary_table
from simulations.workloads.public_data import probe_source
from tests.simulations.support.runs import run_local

HIDDEN = "hidden.weight"
KINDS = ("random", "W", "W - W_0", "updates", "probe: leaves", "probe: pink", PRIVATE)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """Four rounds of rgp with little noise and recorded updates."""
    path = tmp_path_factory.mktemp("runs") / "rgp"
    settings = {"method": "rgp", "rank": 4, "rounds": 4, "sample_rate": 0.5, "noise_multiplier": 0.5}
    return subject_of_run(str(run_local(path, record_updates=True, **settings).path))


@pytest.fixture(scope="module")
def found(recorded: Subject) -> dict[tuple[int, str, str], KeptRow]:
    rows = kept_rows(recorded, recorded.rows(30), [1, 3, 5], None)
    return {(row.round, row.carriers, row.form): row for row in rows}


def row(**changes: object) -> KeptRow:
    values = {"round": 1, "layer": "a", "carriers": "W", "form": "core", "rank": 2, "energy": 0.5, "squared_norm": 1.0}
    return KeptRow(**(values | changes))


# Energy


def test_random_carriers_have_a_closed_form():
    """1 - (1 - r/m)(1 - r/n) = (r (m + n) - r^2) / mn in the form tangent, r^2 / mn in the form core."""
    m, n, r = 12, 20, 3
    dW = torch.outer(torch.arange(m) + 1.0, torch.ones(n)) + torch.randn(m, n, generator=public_generator(0))
    pairs = [random_carriers((m, n), r, generator=public_generator(0, draw), like=dW) for draw in range(400)]
    tangent, core = ([1 - residual(dW, L, R, form) ** 2 for L, R in pairs] for form in (TANGENT, CORE))
    for energies, expected in ((tangent, (r * (m + n) - r * r) / (m * n)), (core, r * r / (m * n))):
        error = float(np.std(energies)) / math.sqrt(len(pairs))
        assert abs(float(np.mean(energies)) - expected) < 4 * error
        assert error < expected / 10


def test_energies_of_a_run_against_projections(recorded, found):
    """Oracle: Eq. 3, and spans by QR, of carriers that are made here; the run's own change has more than W."""
    rows = recorded.rows(30)
    weights = weights_at(recorded, 3)
    with recorded.at(weights):
        dW = batch_gradient(recorded, rows)[HIDDEN].double()
    generator = public_generator(recorded.state.seed, "inspect energy", 3, HIDDEN, 4)
    L, R = (X.double() for X in random_carriers((64, 64), 4, generator=generator, like=weights[HIDDEN]))
    tangent, core = reconstruct(*project(dW, L, R), L, R), L @ L.mT @ dW @ R.mT @ R
    for form, kept in (("tangent", tangent), ("core", core)):
        assert found[3, "random", form].energy == pytest.approx(float((kept.norm() / dW.norm()) ** 2), rel=1e-6)
        assert found[3, "random", form].squared_norm == pytest.approx(float(dW.square().sum()), rel=1e-6)
        assert all(found[t, kind, "core"].energy <= found[t, kind, "tangent"].energy for t in (3, 5) for kind in KINDS)
    assert found[3, "W - W_0", "tangent"].energy > 2 * found[3, "W", "tangent"].energy
    assert found[3, PRIVATE, "tangent"].energy > 0.7
    assert found[1, PRIVATE, "tangent"].energy != found[3, PRIVATE, "tangent"].energy


def test_a_probes_energy_is_that_of_the_carriers_that_a_run_would_have(recorded, found):
    """Oracle: ``probe_basis`` at the weights of the round. They hold more than W - W_0."""
    weights = weights_at(recorded, 3)
    source = probe_source(recorded.base.workload, "pink")
    with recorded.at(weights):
        dW = batch_gradient(recorded, recorded.rows(30))[HIDDEN]
        carrier, model = Probe(rank=4), recorded.model
        public = Public(
            weights=weights, carried={HIDDEN: carrier.sizes(weights[HIDDEN])}, updates=2, seed=recorded.state.seed,
            time=recorded.base.schedule.time(3), make_model=lambda: deepcopy(model),
        )  # fmt: skip
        pair = probe_basis(carrier, public, source).pairs[HIDDEN]
    energy = 1 - residual(dW, pair.L, pair.R) ** 2
    assert found[3, "probe: pink", "tangent"].energy == pytest.approx(energy, abs=1e-5)
    assert found[3, "W - W_0", "tangent"].energy < energy < found[3, PRIVATE, "tangent"].energy


def test_before_the_first_update_there_is_no_change(found):
    assert all(
        math.isnan(found[1, kind, form].energy) for kind in ("W - W_0", "updates") for form in ("tangent", "core")
    )
    assert not any(math.isnan(row.energy) for (round, _, _), row in found.items() if round > 1)


def test_moments_of_the_private_data_against_a_loop(recorded):
    """Oracle: autograd, one example at a time, divided by its norm over all parameters."""
    rows = recorded.rows(7)
    moments = private_moments(recorded, rows, [HIDDEN])[HIDDEN]
    parameters = trainable(recorded.model)
    A, B = torch.zeros(64, 64), torch.zeros(64, 64)
    for one in rows:
        inputs, targets = recorded.base.workload.train.batch(one[None])
        loss = F.cross_entropy(recorded.model(inputs), targets)
        grads = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
        g = grads[HIDDEN] / torch.cat([grad.flatten() for grad in grads.values()]).norm()
        A, B = A + g.mT @ g, B + g @ g.mT
    assert_close(moments.A, A, rtol=1e-4, atol=1e-5)
    assert_close(moments.B, B, rtol=1e-4, atol=1e-5)


def test_several_ranks(recorded):
    """A larger rank keeps more; what no rank carries is refused."""
    rows = kept_rows(recorded, recorded.rows(10), [5], [1, 16])
    energies = {(row.carriers, row.rank): row.energy for row in rows if row.form == "tangent"}
    assert all(energies[kind, 16] > energies[kind, 1] for kind in KINDS)
    with pytest.raises(ValueError, match="rank=64 carries no layer"):
        kept_rows(recorded, recorded.rows(10), [5], [64])


def test_all_layers_together_by_hand():
    """(.5 * 1 + .9 * 3) / 4 = .8; another kind, form or round is another group."""
    rows = [row(), row(layer="b", energy=0.9, squared_norm=3.0), row(form="tangent", energy=0.1), row(round=2)]
    assert whole(rows)[1, "W", "core", 2] == pytest.approx(0.8)
    table = summary_table([*rows[:2], row(carriers="random", energy=math.nan)])
    assert table.columns == ("carriers from", "form", "r", "round 1")
    assert [r.cells for r in table.rows] == [("W", "core", "2", "0.800")]


# Weights on record


def test_weights_and_their_moving_average(recorded):
    """Oracle: the files, and the sum of decayed steps. The model is as it was afterwards."""
    files = [recorded.run / "updates" / f"round-{t:06d}" / "weights.npy" for t in range(1, 6)]
    W = [torch.from_numpy(np.load(file)) for file in files]

    def flat(weights: object) -> torch.Tensor:
        return torch.cat([w.flatten() for w in weights.values()])  # type: ignore[attr-defined]

    assert all(torch.equal(flat(weights_at(recorded, t)), W[t - 1]) for t in range(1, 6))
    assert torch.equal(W[4], flat(recorded.weights))
    average = moving_averages(recorded, [1, 4])
    expected = DECAY**2 * (W[1] - W[0]) + DECAY * (W[2] - W[1]) + (W[3] - W[2])
    assert average[1] is None
    assert_close(flat(average[4]), expected)
    kept_rows(recorded, recorded.rows(5), [2], None)
    assert torch.equal(W[4], flat(recorded.weights))


def test_a_run_without_a_record_has_its_first_and_last_weights(small, tmp_path):
    bare = replace(subject_of_run(str(small.path)), run=tmp_path)
    assert rounds_of(bare, "1,last") == [1, 3]
    assert moving_averages(bare, [1, 3]) == {1: None, 3: None}
    assert rounds_of(subject_of_settings({"workload": "digits"}), "last") == [1]
    for given, message in (
        ("2", "round 2 are not on record"),
        ("4", "round 4 are"),
        ("0", "round 0"),
        ("a", "as last"),
    ):
        with pytest.raises(ValueError, match=message):
            rounds_of(bare, given)


def test_a_damaged_record_is_named(recorded, tmp_path):
    folder = tmp_path / "updates" / "round-000002"
    folder.mkdir(parents=True)
    (folder / "weights.npy").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="cannot read the weights of round 2"):
        rounds_of(replace(recorded, run=tmp_path), "2")


# The command


@pytest.mark.slow
def test_the_command_shows_and_writes_them(recorded, tmp_path, monkeypatch, capsys):
    given = ["--energy", "2,last", "--examples", "12", "--sparsities", "0", "--out", str(tmp_path / "out")]
    monkeypatch.setattr("sys.argv", ["fedlsg", "inspect", str(recorded.run), *given])
    with pytest.raises(SystemExit):
        cli.main()
    shown = " ".join(capsys.readouterr().out.split())
    assert "carriers from form r round 2 round 5" in shown
    with (tmp_path / "out" / "carriers.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * len(KINDS) * 2
    assert (tmp_path / "out" / "carriers.png").stat().st_size > 10_000
    assert "no method may use them" in (tmp_path / "out" / "inspection.html").read_text()
    inspect_command(str(recorded.run), {}, Console(quiet=True), out=str(tmp_path / "out"), examples=5, sparsities="0")
    assert not (tmp_path / "out" / "carriers.csv").exists()
