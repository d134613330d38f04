"""Plans: gaps filled from the preset, noise calibrated for every client's schedule, everything bad
refused.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedlsg.accounting.certified import epsilon
from fedlsg.accounting.events import Event
from fedlsg.config.selection import UNIFORM
from fedlsg.simulations.planning.base.start_weights import from_root
from fedlsg.simulations.planning.client_noise import check_budget
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.run.commands import run_command
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import write_model
from tests.simulations.support.runs import SMALL, run_local


def plan_of(**settings: object) -> Plan:
    return make_plan(from_mapping(SMALL | settings))


@pytest.mark.parametrize("clip", ["joint", "per-block"])
def test_calibration_reaches_the_target_and_no_less(clip):
    plan = plan_of(noise_multiplier=None, epsilon=8.0, clip=clip)
    (sigma,) = {t.noise_multiplier for t in plan.terms}
    # blocks: dL, dR, bias; classifier weight, bias
    effective = sigma if clip == "joint" else sigma / math.sqrt(5)
    reached = epsilon(sample_rate=0.05, noise_multiplier=effective, steps=2, delta=1e-5).upper
    assert 8.0 * 0.99 < reached <= 8.0
    assert plan.settings.noise_multiplier == sigma


def test_every_client_gets_its_own_noise_for_its_own_rate():
    """batch_size with unequal partitions: q_k = B / N_k, sigma_k for q_k, and each one's epsilon
    within the target.
    """
    plan = plan_of(
        noise_multiplier=None, epsilon=8.0, batch_size=300, sample_rate=None, partition="dirichlet"
    )
    small, large = sorted(plan.terms, key=lambda t: t.num_examples)
    assert small.num_examples < large.num_examples
    for term in (small, large):
        assert term.sample_rate == min(300 / term.num_examples, 1.0)
        reached = epsilon(
            sample_rate=term.sample_rate,
            noise_multiplier=term.noise_multiplier,
            steps=2,
            delta=1e-5,
        )
        assert 8.0 * 0.99 < reached.upper <= 8.0
    assert small.noise_multiplier > large.noise_multiplier
    common = epsilon(
        sample_rate=small.sample_rate, noise_multiplier=large.noise_multiplier, steps=2, delta=1e-5
    )
    assert common.upper > 8.0, (
        "negative control: one sigma for all would break the smaller client's promise"
    )
    assert plan.settings.noise_multiplier is None


def test_noise_covers_the_client_that_is_asked_most_often(tmp_path):
    """Two of four clients a round: sigma targets the largest number of participations, no
    amplification.
    """
    run = run_local(
        tmp_path / "run",
        clients=4,
        clients_per_round=2,
        rounds=5,
        noise_multiplier=None,
        epsilon=4.0,
        reproducible=False,
    )
    asked = [row.asked for row in run.rows]
    expected = [UNIFORM.select(4, 2, round=r, seed=0) for r in range(1, 6)]
    assert asked == [" ".join(map(str, clients)) for clients in expected]
    counts = [sum(client in clients for clients in expected) for client in range(4)]
    assert run.plan.clients.steps == counts
    assert 5 / 2 < max(counts) < 5, "some client is asked more often than the mean, none always"
    spent = []
    for client in range(4):
        entries = run.entries(client)
        assert len(entries) == counts[client]
        (sigma,) = {e.noise_multiplier for e in entries}
        spent.append(
            epsilon(sample_rate=0.05, noise_multiplier=sigma, steps=len(entries), delta=1e-5).upper
        )
    assert max(spent) <= 4.0
    assert max(spent) > 4.0 * 0.99
    assert run.summary["epsilon_max"] == max(spent)
    assert min(spent) < max(spent)
    once_more = epsilon(
        sample_rate=0.05, noise_multiplier=sigma, steps=max(counts) + 1, delta=1e-5
    ).upper
    assert once_more > 4.0, "negative control: noise for one step less would pass the target"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workload": "mnist"}, "unknown workload 'mnist'"),
        ({"model": "resnet"}, "unknown model of digits 'resnet'"),
        ({"workload": "cifar10", "data_dir": "/nowhere/at/all"}, "/nowhere/at/all"),
        ({"rank": 40}, "rank=40 carries no layer"),
        ({"delta": 0.01}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"batch_size": 0, "sample_rate": None}, "batch_size"),
        ({"batch_size": 10, "sample_rate": 0.1}, "either sample_rate .* or batch_size"),
        ({"clients": 0}, "clients"),
        ({"clients": 2000}, "clients=2000"),
        ({"clients_per_round": 3}, "clients_per_round=3 <= clients=2"),
        ({"min_survivors": 3}, "min_survivors=3 <= clients_per_round=2"),
        ({"trust": "aggregate", "local_steps": 2}, "local_steps=1"),
        ({"trust": "aggregate", "codec": "bfloat16"}, "trust=aggregate needs codec=float32"),
        ({"trust": "aggregate", "method": "dp-powersgd"}, "factors do not add up.*trust='client'"),
        (
            {"method": "sgd", "noise_multiplier": 1.0},
            "noise_multiplier=1 needs a mechanism that adds noise",
        ),
        (
            {"mechanism": "clip-only", "noise_multiplier": 1.0},
            "noise_multiplier=1 needs a mechanism that adds noise",
        ),
        ({"method": "dpsgd", "estimator": "averaged"}, "estimator='averaged'.*low-rank carriers"),
        ({"seed": -1}, "seed"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_bad_setting_is_refused_by_name(settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        plan_of(**settings)


def test_a_noise_that_spends_the_budget_in_one_round_is_refused():
    with pytest.raises(
        ValueError, match=r"one round costs epsilon .*more than the budget epsilon=0\.01"
    ):
        plan_of(noise_multiplier=2.0, epsilon=0.01)
    plan = plan_of(noise_multiplier=2.0, epsilon=8.0)
    assert plan.terms[0].noise_multiplier == 2.0
    hundred = Event(
        sample_rate=0.1, noise_multiplier=2.0, steps=100 * plan.local.steps, log_ratio=100.0
    )
    # one round has a hundredth of Lambda: 2 of the budget of 8
    check_budget([hundred], plan.clients)
    with pytest.raises(ValueError, match="one round costs epsilon"):
        check_budget([replace(hundred, log_ratio=401.0)], plan.clients)


WEIGHTS = {"hidden.weight": torch.full((64, 64), 0.01), "hidden.bias": torch.arange(64.0) / 64}


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A working folder with weights of a run, and public rows."""
    folder = tmp_path / "here"
    (folder / "my weights").mkdir(parents=True)
    write_model(
        folder / "my weights",
        WEIGHTS,
        {
            "fedlsg": "0.1.0",
            "workload": "digits",
            "model": "mlp",
            "pretrained_on": {"source": "leaves"},
        },
    )
    (folder / "minilm").mkdir()
    torch.save((torch.rand(30, 1, 8, 8), torch.arange(30) % 10), folder / "rows.pt")
    monkeypatch.chdir(folder)
    return folder


def test_paths_are_from_the_root_and_names_stay(here):
    given = {
        "pretrained": "my weights",
        "features": "my weights",
        "source": "data:rows.pt",
        "public_rows": "data:rows.pt",
    }
    rows = f"data:{here / 'rows.pt'}"
    weights = str(here / "my weights")
    expected = {"pretrained": weights, "features": weights, "source": rows, "public_rows": rows}
    absolute = from_mapping(expected)
    assert from_root(from_mapping(given)) == from_root(absolute) == absolute
    for names in (
        {
            "pretrained": "none",
            "features": "scattering",
            "source": "leaves",
            "public_rows": "synthetic",
        },
        {
            "pretrained": "owner/name",
            "features": "minilm",
            "source": "data:digits",
            "public_rows": "data:cifar10",
        },
        {"source": "data:nowhere", "public_rows": None, "rank": 4},
    ):
        assert from_root(from_mapping(names)) == from_mapping(names)


@pytest.mark.slow
def test_a_run_continues_in_another_folder(here, tmp_path, monkeypatch):
    given = {**SMALL, "workload": "digits", "method": "probe", "rounds": 1, "probes": 20}
    run_command(
        {**given, "pretrained": "my weights", "source": "data:rows.pt"}, "out", Console(quiet=True)
    )
    monkeypatch.chdir(tmp_path)
    kept = RunDir(here / "out").read_config()
    assert kept.pretrained == str(here / "my weights")
    assert kept.parameters["source"] == f"data:{here / 'rows.pt'}"
