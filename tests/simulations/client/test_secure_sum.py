"""Whole runs under secure sums: what is summed, who is charged, and what a dropout at each stage
leaves.
"""

import pytest
import torch

import fedlsg.training.client_round
from fedlsg.secure_sum.discrete import Release, most_log_ratio
from fedlsg.simulations.engines import ray
from tests.simulations.support.runs import Run, ignore, plan_at, resume_local
from tests.simulations.support.secure_clients import (
    FIVE,
    Seen,
    charged_clients,
    decoded,
    recorded_sum,
    run_five,
    watch_encode,
)

STAGES = ("keys", "shares", "masked", "agree", "unmask")
SECRET = {"reproducible": False}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    """Five clients and two rounds, reproducible, without dropouts. Do not write to it."""
    return run_five(tmp_path_factory.mktemp("secure") / "run", rounds=2)


def test_every_client_is_charged_once_a_round_for_the_planned_event(whole):
    release = whole.plan.initial.server().plan(whole.plan.local, whole.plan.sums).release
    for client in range(5):
        entries = whole.entries(client)
        assert [(e.round, e.attempt, e.steps) for e in entries] == [(1, 0, 1), (2, 0, 1)]
        assert {e.noise_multiplier for e in entries} == {2.0}
        assert all(0 < e.log_ratio <= most_log_ratio(whole.plan.sums) / 2 for e in entries)
    assert whole.entries(0)[0].log_ratio == release.log_ratio


def test_the_sum_is_that_under_an_assumed_secure_sum_but_for_the_noise(tmp_path, monkeypatch):
    """The same batches and clips under both; the noise of five shares is there, and no more."""
    assumed, add_noise = [], fedlsg.training.client_round.add_noise
    monkeypatch.setattr(
        fedlsg.training.client_round,
        "add_noise",
        lambda total, *rest: assumed.append(total) or add_noise(total, *rest),
    )
    run_five(tmp_path / "assumed", trust="aggregate", colluders=None)
    parts = watch_encode(monkeypatch)
    run = run_five(tmp_path / "secure")
    assert len(assumed) == len(parts) == 5
    assert all(
        torch.allclose(part.total, total.double(), atol=1e-5)
        for part, total in zip(parts, assumed, strict=True)
    )
    noise = recorded_sum(run) - sum(part.total for part in parts)
    share = noise.square().mean() / parts[0].release.noise_std(5) ** 2
    assert abs(float(share) - 1) < 5 * (2 / len(noise)) ** 0.5


def test_the_clipped_sum_is_not_rounded_to_float32_before_the_noise(tmp_path, monkeypatch):
    """Rounding in float32 would move the difference that one example makes by more than the plan
    allows for.
    """
    parts = watch_encode(monkeypatch)
    run_five(tmp_path / "run", sample_rate=0.01)
    assert {part.total.dtype for part in parts} == {torch.float64}
    assert any(not part.total.float().double().equal(part.total) for part in parts)


def test_a_grid_that_is_planned_for_all_clients_would_be_seen(whole):
    """The noise of three honest survivors alone is what the ledger says: 2.0 C."""
    release = whole.plan.initial.server().plan(whole.plan.local, whole.plan.sums).release
    clip_norm = whole.plan.method.mechanism.clip_norm
    assert 2.0 * clip_norm <= release.noise_std(3) < 2.0 * clip_norm * 1.01
    assert release.noise_std(4) > 2.2 * clip_norm


def dropping(stage: str, *clients: int, how: str = "silent", times: int = 10) -> Seen:
    left = [times * len(clients)]

    def drop(at: str, client: int) -> str | None:
        if at != stage or client not in clients or not left[0]:
            return None
        left[0] -= 1
        return how

    return Seen(drop=drop)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("how", ["silent", "raises"])
@pytest.mark.parametrize("stage", STAGES)
def test_one_dropout_is_recovered(stage, how, tmp_path, monkeypatch):
    """Without it the sum is that of the others; who has sent masked values is in it."""
    parts = watch_encode(monkeypatch)
    run = run_five(tmp_path / "run", dropping(stage, 2, how=how), **SECRET)
    (row,) = run.rows
    late = stage in ("agree", "unmask")
    others = "0 1 2 3 4" if late else "0 1 3 4"
    assert (row.answered, row.rejected) == (others, "" if late else "2")
    assert recorded_sum(run).equal(decoded(parts)), "who dropped out before had encoded nothing"
    assert charged_clients(run) == [int(client) for client in others.split()]


def test_a_client_whose_masked_values_are_lost_is_charged_and_not_in_the_sum(tmp_path, monkeypatch):
    parts = watch_encode(monkeypatch)
    run = run_five(tmp_path / "run", dropping("masked", 2, how="late"), **SECRET)
    assert run.rows[0].answered == "0 1 3 4"
    assert recorded_sum(run).equal(decoded([*parts[:2], *parts[3:]]))
    assert charged_clients(run) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("stage", STAGES)
def test_a_round_with_too_few_clients_is_given_up(stage, tmp_path, with_weights):
    """Nothing is revealed and the weights stay; who sent masked values is charged."""
    clients = dropping(stage, 2, 3, how="raises")
    run = run_five(tmp_path / "run", clients, **SECRET)
    (row,) = run.rows
    assert (row.answered, row.rejected) == ("", "0 1 2 3 4")
    assert "given up" in row.reasons
    assert recorded_sum(run) is None
    assert run.weights.equal(with_weights)
    assert charged_clients(run) == {
        "masked": [0, 1, 4],
        "agree": [*range(5)],
        "unmask": [*range(5)],
    }.get(stage, [])
    asked = [at for _, at in clients.stages]
    assert asked.count("unmask") == (5 if stage == "unmask" else 0), (
        "nobody is asked for a share in vain"
    )


@pytest.fixture(scope="module")
def with_weights(whole) -> torch.Tensor:
    """The initial weights."""
    state = whole.plan.initial.model().state_dict()
    return torch.cat([state[name].flatten() for name in whole.model])


@pytest.mark.parametrize("stage", ["masked", "agree", "unmask"])
def test_an_attempt_with_values_is_not_repeated(stage, tmp_path):
    """Another one would charge those once more whose reply was lost."""
    clients = dropping(stage, 0, 1, 2, 3, 4, how="late")
    run = run_five(tmp_path / "run", clients, **SECRET)
    assert run.rows[0].answered == ""
    assert [len(run.entries(client)) for client in range(5)] == [1] * 5
    assert [at for _, at in clients.stages].count("keys") == 5


def test_an_interrupted_round_is_a_new_attempt_with_new_noise_and_a_new_charge(
    tmp_path, monkeypatch
):
    parts = watch_encode(monkeypatch)
    watched = Release.encode

    def interrupted(self, total, stream, *, seed, round):
        if round == 2 and len(parts) == 6:
            raise KeyboardInterrupt
        return watched(self, total, stream, seed=seed, round=round)

    monkeypatch.setattr(Release, "encode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_five(tmp_path / "run", rounds=2, **SECRET)
    monkeypatch.setattr(Release, "encode", watched)
    run = resume_local(tmp_path / "run")
    once, twice = [(1, 0), (2, 0)], [(1, 0), (2, 0), (2, 1)]
    assert [[(e.round, e.attempt) for e in run.entries(c)] for c in range(5)] == [twice] * 2 + [
        once
    ] * 3
    second, third = parts[5].integers, parts[6].integers
    assert (second != third).float().mean() > 0.5, (
        "the noise of the first attempt is not used again"
    )
    assert run.rows[-1].answered == "0 1 2 3 4"
    assert run.summary["epsilon_max"] > run.summary["epsilon_median"]


@pytest.mark.slow
@pytest.mark.ray
def test_ray_sums_the_same_bit_for_bit(tmp_path, on_ray, whole):
    plan, directory = plan_at(tmp_path / "ray", **(FIVE | {"engine": "ray", "rounds": 2}))
    run = Run(directory.path, plan, ray.run(plan, directory, on_round=ignore))
    assert run.weights.equal(whole.weights)
    assert run.ledgers == whole.ledgers
    assert run.payloads == whole.payloads
    assert all(recorded_sum(run, round).equal(recorded_sum(whole, round)) for round in (1, 2))
