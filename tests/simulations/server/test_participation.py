"""Federations whose clients are away, leave or are late: who is charged, what the update is made
of, what is refused.

The expected charges come from the public draws and from the ledgers alone, not from what the run
says of itself.
"""

from collections import Counter
from typing import Any

import pytest

from fedlsg.participation import Participation
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL, Run, resume_local, run_local, stopped_after

CLIENTS = 20
HARD: dict[str, Any] = {
    "clients": CLIENTS,
    "clients_per_round": 5,
    "rounds": 5,
    "sample_rate": 0.2,
    "availability": "0.8",
    "dropout": 0.3,
    "speed": "lognormal 0.8",
    "over_selection": 0.6,
    "deadline": 0.2,
    "uplink_mbps": 2.0,
}


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("hard") / "run", **HARD, record_updates=True)


def lists(run: Run, name: str) -> list[set[int]]:
    """A column of clients of rounds.csv, by round."""
    return [{int(client) for client in str(row.columns[name]).split()} for row in run.rows]


def charged(run: Run) -> dict[int, Counter[int]]:
    """How often each client was charged for each round, by its ledger."""
    return {
        client: Counter(entry.round for entry in run.entries(client)) for client in range(CLIENTS)
    }


def due(run: Run) -> dict[int, Counter[int]]:
    """How often each should have been: once for each round that selected it, unless it left, by the
    public draws.
    """
    assert run.plan is not None
    draws: Participation = run.plan.clients.participation
    found: dict[int, Counter[int]] = {client: Counter() for client in range(CLIENTS)}
    for round, selected in enumerate(draws.schedule(len(run.rows)), 1):
        for client in set(selected) - draws.leaving(round):
            found[client][round] += 1
    return found


def test_who_trained_is_charged_once_and_who_left_is_not(hard):
    assert charged(hard) == due(hard)
    assert hard.summary is not None
    counts = hard.summary["simulated"]
    assert min(counts[name] for name in ("answered", "dropped", "late")) > 2, (
        "the run has all kinds of clients"
    )
    assert counts["answered"] + counts["late"] == sum(
        sum(rounds.values()) for rounds in charged(hard).values()
    )
    assert counts["rejected"] == 0


def test_a_late_client_that_is_not_charged_would_be_seen(tmp_path, monkeypatch):
    """Negative control: it is left out as if it had dropped out, so it trains nothing and pays
    nothing.
    """
    leaving = Participation.leaving

    def spare(self, round):
        slow = {
            client for client, seconds in enumerate(self.compute_seconds) if seconds > self.deadline
        }
        return leaving(self, round) | slow

    with monkeypatch.context() as patch:
        patch.setattr(Participation, "leaving", spare)
        run = run_local(tmp_path / "run", **HARD)
    assert charged(run) != due(run)


def test_late_values_are_in_no_update_and_the_divisor_stays(hard):
    """Each round's weights come from the payloads of those who answered, over the constant of the
    run.
    """
    assert hard.plan is not None
    assert hard.plan.divisor == 5 * hard.plan.local.expected_batch
    answered, late, dropped = (lists(hard, name) for name in ("answered", "late", "dropped"))
    for round, row in enumerate(hard.rows, 1):
        kept = {
            int(name.rpartition("-")[2][:-4])
            for name in hard.payloads
            if f"round-{round:06d}/" in name
        }
        assert kept == answered[round - 1]
        assert len(answered[round - 1]) <= 5
        assert row.uplink_messages == len(answered[round - 1]) + len(late[round - 1])
        assert row.downlink_messages == len(row.asked.split()), (
            "who leaves has received the announcement"
        )
        assert not late[round - 1] & (answered[round - 1] | dropped[round - 1])


def test_the_clock_uses_expected_examples_and_never_a_drawn_batch(hard):
    """Two runs with other secret batches and other noise have one clock, and the same clients in
    every list.
    """
    other = Run(hard.path.parent / "other")
    run_local(other.path, **HARD, **{"reproducible": False})
    for name in ("simulated_clock", "asked", "answered", "dropped", "late"):
        assert [row.columns[name] for row in other.rows] == [row.columns[name] for row in hard.rows]
    plan = hard.plan
    assert plan is not None
    base = [
        seconds / factor
        for seconds, factor in zip(
            plan.clients.participation.compute_seconds, _factors(hard), strict=True
        )
    ]
    assert base == pytest.approx([0.2 * size * 0.01 for size in plan.clients.sizes])


def _factors(run: Run) -> list[float]:
    from fedlsg.simulations.settings.participation import speed_factors

    return speed_factors(CLIENTS, 0.8, seed=0)


@pytest.mark.slow
def test_nobody_passes_its_epsilon_where_others_are_away(tmp_path):
    """The noise is planned for the client that is asked most often. Planned without availability,
    it would not do.
    """
    settings = HARD | {
        "availability": "0.4",
        "rounds": 12,
        "noise_multiplier": None,
        "epsilon": 4.0,
        "dropout": 0.0,
    }
    settings["reproducible"] = False
    run = run_local(tmp_path / "run", **settings)
    assert run.plan is not None
    most = max(sum(rounds.values()) for rounds in charged(run).values())
    assert most == max(run.plan.clients.steps)
    assert not any(row.rejected for row in run.rows)
    assert run.rows[-1].epsilon_max <= 4.0
    everybody = Participation(clients=CLIENTS, per_round=5, seed=0)
    assert everybody.most_selections(12) < most


@pytest.mark.slow
def test_a_trace_decides_who_is_selected_and_the_plan_knows_it(tmp_path):
    lines = [
        f"{client},{start},{start + 4}"
        for client in range(10)
        for start in range(client % 3, 60, 6)
    ]
    path = tmp_path / "trace.csv"
    path.write_text("\n".join(["client,from,to", *lines]) + "\n")
    settings = HARD | {
        "availability": str(path),
        "uplink_mbps": None,
        "example_seconds": 0.1,
        "deadline": 2.0,
    }
    stopped = stopped_after(2, tmp_path / "run", **settings)
    run = resume_local(stopped.path)
    assert run.plan is not None
    assert lists(run, "asked") == [
        set(clients) for clients in run.plan.clients.participation.schedule(5)
    ]
    starts = [0.0, *(row.columns["simulated_clock"] for row in run.rows[:-1])]
    trace = run.plan.clients.participation.availability
    for start, asked in zip(starts, lists(run, "asked"), strict=True):
        assert all(trace.available(client, start) for client in asked)
    assert charged(run) == due(run)
    again = stopped_after(1, tmp_path / "again", **settings)
    path.write_text("client,from,to\n0,0,1\n")
    with pytest.raises(
        ValueError, match=r"the trace .*trace.csv differs from the one that this run began with"
    ):
        resume_local(again.path)


def test_rounds_in_which_everybody_left_are_not_sent_again_and_end_the_run_after_three(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Participation, "leaving", lambda self, round: frozenset(range(CLIENTS)))
    with pytest.raises(
        RuntimeError, match=r"no valid update in 3 rounds in a row: 8 selected, 8 dropped out"
    ):
        run_local(tmp_path / "run", **HARD)
    run = Run(tmp_path / "run")
    assert "sending the round again" not in run.log
    assert [row.downlink_messages for row in run.rows] == [8, 8, 8]
    assert not any(run.entries(client) for client in range(CLIENTS))


@pytest.mark.slow
def test_a_secure_sum_goes_on_without_those_who_left_or_were_late(tmp_path):
    settings = {
        "clients": CLIENTS,
        "clients_per_round": 10,
        "rounds": 4,
        "trust": "secure",
        "min_survivors": 6,
        "colluders": 1,
        "dropout": 0.15,
        "speed": "lognormal 0.8",
        "deadline": 0.4,
        "sample_rate": 0.2,
    }
    run = run_local(tmp_path / "run", **settings)
    assert charged(run) == due(run)
    assert run.summary is not None
    counts = run.summary["simulated"]
    assert counts["dropped"] > 0
    assert counts["late"] > 0
    assert run.summary["empty_rounds"] == 0


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"method": "topk", "topk_rate": 0.01, "noise_multiplier": None, "deadline": 1.0},
            "deadline=1 does not go with a memory of what was not sent",
        ),
        (
            {
                "method": "sgd",
                "codec": "sign",
                "noise_multiplier": None,
                "clients_per_round": 1,
                "over_selection": 0.5,
            },
            "memory of what was not sent counts as received: leave it out",
        ),
        (
            {"trust": "secure", "clients": 10, "availability": 0.9},
            "does not go with availability below 1 (0.9)",
        ),
        (
            {"trust": "secure", "clients": 10, "over_selection": 0.1},
            "does not go with over_selection=0.1",
        ),
        ({"over_selection": 0.5}, "lower clients_per_round, or leave over_selection out"),
        ({"availability": 1.5}, "expected 0 < availability=1.5 <= 1"),
        ({"availability": 0}, "expected 0 < availability=0 <= 1"),
        ({"availability": "nothing.csv"}, "expected a share such as 0.8, or a trace"),
        ({"dropout": 1.0}, "expected 0 <= dropout=1.0 < 1"),
        ({"speed": "lognormal"}, "expected speed=constant, or speed='lognormal S'"),
        ({"speed": "lognormal -1"}, "expected speed=constant, or speed='lognormal S'"),
        ({"deadline": 0}, "expected 0 < deadline=0.0 < inf"),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_with_the_fix(changes, words):
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the words are compared below
        make_plan(from_mapping(SMALL | changes))
    assert words in str(refused.value)
