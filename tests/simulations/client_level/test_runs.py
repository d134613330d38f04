"""Runs with unit=client: what the ledgers say, that epsilon is the accountants', and that no round
is skipped.
"""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from dp_accounting.pld import privacy_loss_distribution as pld

import fedlsg.strategies.protocol.sums
from fedlsg.privacy import SERVER, LedgerError
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.training.client_level import release_round
from tests.noise import no_noise
from tests.simulations.support.runs import SMALL, Run, resume_local, run_local, stopped_after

CLIENT_LEVEL: dict[str, Any] = {
    "unit": "client",
    "trust": "server",
    "sample_rate": None,
    "batch_size": 20,
    "clients": 30,
    "clients_per_round": 9,
    "local_steps": 2,
    "method": "lsg",
    "rounds": 4,
    "clip_norm": 1.0,
    "noise_multiplier": 1.5,
}


def at_client_level(out: Path, **changes: Any) -> Run:
    return run_local(out, **CLIENT_LEVEL | changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return at_client_level(tmp_path_factory.mktemp("runs") / "run")


def records_of(run: Run) -> list[Any]:
    return [json.loads(line) for line in run.directory.charges.path.read_text().splitlines()[1:]]


def golden(q: float, sigma: float, steps: int, delta: float) -> float:
    """Epsilon of a Poisson-sampled Gaussian, add or remove one, by Google's accountant."""
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=q, value_discretization_interval=1e-4)
    return float(one.self_compose(steps).get_epsilon_for_delta(delta))


def test_the_server_charges_every_round_for_all_clients(run):
    entries = run.entries(SERVER)
    assert [(e.round, e.steps, e.sample_rate, e.noise_multiplier) for e in entries] == [
        (round, 1, 0.3, 1.5) for round in (1, 2, 3, 4)
    ]
    assert {(e.unit, e.mechanism, e.num_examples) for e in entries} == {("client", "dp", 30)}


def test_no_client_has_a_ledger_or_a_file_that_would_tell_that_it_took_part(run):
    assert run.directory.charges.clients() == []
    assert {record["charged"]["client"][0] for record in records_of(run)} == {SERVER}
    assert not list(run.path.rglob("client-*"))


@pytest.mark.slow
@pytest.mark.parametrize(("q", "sigma", "rounds"), [(0.3, 1.5, 4), (0.1, 0.8, 40), (1.0, 3.0, 10)])
def test_the_planned_epsilon_is_that_of_another_accountant(q, sigma, rounds):
    settings = CLIENT_LEVEL | {
        "clients_per_round": int(30 * q),
        "noise_multiplier": sigma,
        "rounds": rounds,
    }
    plan = make_plan(from_mapping(SMALL | settings))
    from fedlsg.accounting import compose
    from fedlsg.simulations.planning.client_noise import events_of
    from fedlsg.simulations.planning.faults.model_faults import count_blocks

    found = compose(events_of(plan, plan.terms[0], count_blocks(plan)), delta=1e-5).upper
    assert (
        golden(q, sigma, rounds, 1e-5) * (1 - 1e-3)
        <= found
        <= golden(q, sigma, rounds, 1e-5) * 1.01
    )


def lonely(out: Path) -> Run:
    """One client of thirty is expected in a round: in a third of the rounds there is none."""
    return at_client_level(out, clients_per_round=1, rounds=8, noise_multiplier=0.5, epsilon=50.0)


@pytest.fixture
def drawings(monkeypatch) -> list[list[int]]:
    """The clients that a server drew in each round, which nothing of a run tells."""
    select, found = fedlsg.strategies.protocol.sums.ServerNoiseExchange.select, []

    def watched(self, plan):
        found.append(select(self, plan))
        return found[-1]

    monkeypatch.setattr(fedlsg.strategies.protocol.sums.ServerNoiseExchange, "select", watched)
    return found


def changes(run: Run, drawings: list[list[int]]) -> bool:
    """Whether every round had an update."""
    assert any(not drawn for drawn in drawings), "no round was empty: the test tests nothing"
    return run.checkpoint["server"]["updates"] == len(drawings)


def test_a_server_that_skips_empty_rounds_is_seen(tmp_path, monkeypatch, drawings):
    collect = fedlsg.strategies.protocol.sums.ServerNoiseExchange.collect

    def planted(self, replies):
        received = collect(self, replies)
        return received if received.clients else type(received)()

    monkeypatch.setattr(fedlsg.strategies.protocol.sums.ServerNoiseExchange, "collect", planted)
    assert not changes(lonely(tmp_path / "run"), drawings)


def test_clients_are_drawn_one_by_one_at_the_rate_of_the_ledger(tmp_path, drawings):
    at_client_level(tmp_path / "run")
    counts, draws = [len(drawn) for drawn in drawings], 30 * len(drawings)
    assert len(set(counts)) > 1, "a fixed number in every round is no Poisson sample"
    assert abs(sum(counts) / draws - 0.3) < 4 * math.sqrt(0.3 * 0.7 / draws)


def test_a_run_whose_server_ledger_was_cut_is_not_resumed(tmp_path):
    stopped_after(2, tmp_path / "run", **CLIENT_LEVEL)
    ledger = tmp_path / "run" / "ledger" / "run.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(LedgerError, match=r"run\.jsonl"):
        resume_local(tmp_path / "run")


@pytest.mark.slow
def test_a_round_past_the_budget_ends_the_run_before_anything_is_drawn(tmp_path):
    found = at_client_level(
        tmp_path / "run", rounds=6, epsilon=golden(0.3, 1.5, 3, 1e-5) * 1.005, reproducible=False
    )
    assert found.summary["rounds"] == 3
    assert "budget" in found.summary["stopped"]
    assert found.summary["private"]


@pytest.mark.slow
def test_the_adaptive_clip_norm_is_in_the_ledger_and_in_the_checkpoint(tmp_path):
    found = at_client_level(
        tmp_path / "run", clip_quantile=0.5, clip_norm=0.05, clip_count_noise=2.0
    )
    entries = found.entries(SERVER)
    assert len({e.clip_norm for e in entries}) == 4
    (charged,) = {e.noise_multiplier for e in entries}
    assert charged == pytest.approx(1.5)
    assert found.checkpoint["server"]["clip_norm"] > entries[-1].clip_norm > entries[0].clip_norm
    stopped_after(
        2,
        tmp_path / "cut",
        **CLIENT_LEVEL | {"clip_quantile": 0.5, "clip_norm": 0.05, "clip_count_noise": 2.0},
    )
    assert torch.equal(resume_local(tmp_path / "cut").weights, found.weights)


def test_no_update_without_noise_is_kept(tmp_path, monkeypatch):
    """Recorded: the noisy sum, whose noise is that of the ledger."""
    seen = []

    def watched(updates, **given):
        found = release_round(updates, **given)
        with no_noise():
            plain = release_round(updates, **given)
        seen.append((found[0] - plain[0]).std() / given["mechanism"].clip_norm)
        return found

    monkeypatch.setattr(fedlsg.strategies.protocol.sums, "release_round", watched)
    found = at_client_level(tmp_path / "run", record_updates=True)
    assert found.payloads == {}
    assert not list(found.path.glob("checkpoint/outbox/*"))
    assert len(list(found.path.glob("updates/*/sum.npy"))) == 4
    assert [float(s) for s in seen] == pytest.approx([1.5] * 4, rel=0.1)


def test_a_reply_after_the_timeout_ends_the_run_before_anything_is_released(tmp_path):
    """One slow client must not decide whether those behind it count."""
    silent = []

    def client(message, context):
        if message.metadata.message_type == "train" and not silent:
            silent.append(context.node_config["partition-id"])
            return None  # no reply
        return app(message, context)

    with pytest.raises(
        RuntimeError, match=r"^round 1: a reply did not come within .* give a longer round_timeout"
    ):
        run_local(tmp_path / "run", client=client, **CLIENT_LEVEL)
    entries = Run(tmp_path / "run").entries(SERVER)
    assert len(entries) == 1, "the round stays charged"
    assert not RunDir(tmp_path / "run").rounds.exists() or not Run(tmp_path / "run").rows


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"trust": "client"}, "take trust=server"),
        ({"trust": "aggregate"}, "take trust=server"),
        ({"unit": "example"}, "trust=server needs unit=client"),
        ({"batch_size": None, "sample_rate": 0.1}, "give batch_size"),
        ({"method": "dp-ssgd", "prune": "dp-snip"}, "take unit=example, or no pruning"),
        ({"method": "dp-powersgd"}, "factors do not add up"),
        ({"min_survivors": 2}, "leave it out"),
        ({"clip_quantile": 0.5, "clip_count_noise": 0.5}, "raise clip_count_noise above 0.75"),
        ({"codec": "noise-floor"}, "it adds none: choose float32"),
        ({"trust": "secure", "clip_quantile": 0.5}, "needs unit=client and trust=server, got"),
        ({"clip_count_noise": 3.0}, "give clip_quantile"),
        ({"clip_quantile": 0.5, "clip": "per-block"}, "needs clip=joint"),
        ({"delta": 0.1}, "delta"),
    ],
    ids=str,
)
def test_what_would_not_be_true_is_refused_with_the_fix(changes, said):
    with pytest.raises(ValueError, match=said):
        make_plan(from_mapping(SMALL | CLIENT_LEVEL | changes))
