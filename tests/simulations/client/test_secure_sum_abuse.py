"""Messages that a server must not send, and replies that a client must not: refused by name, and
nobody is charged.
"""

from dataclasses import replace

import pytest
from flwr.app import Context, Message, RecordDict

from fedlsg.accounting import epsilon
from fedlsg.privacy import Entry, Ledger, RunLedger
from fedlsg.secure_sum import messages as wire
from fedlsg.secure_sum.discrete import Release, SumTerms
from fedlsg.secure_sum.keys import TAG_BYTES
from fedlsg.secure_sum.terms import Terms
from fedlsg.simulations.client.client_app import app as honest
from fedlsg.simulations.engines import local
from fedlsg.strategies.protocol.stages import MESSAGE, Stage, read_stage, write_stage
from fedlsg.strategies.protocol.wire import IN_RUN_LOG, read_update
from fedlsg.strategies.protocol.wire import STAGE as TERMS
from tests.simulations.support.late_charges import charge_late
from tests.simulations.support.runs import Run, ignore, plan_at
from tests.simulations.support.secure_clients import (
    FIVE,
    Abused,
    charged_clients,
    planted,
    recorded_sum,
    run_five,
    stage_in,
    watch_encode,
)


def terms_of(stage: Stage) -> Terms:
    sums = SumTerms(
        clients=5, min_survivors=4, colluders=1, expected_examples=5, releases=1, delta=1e-5
    )
    return stage.terms(sums)


def survivors(*clients: int):
    """The message that names these survivors, as the protocol's server would write it."""

    def attack(stage: Stage) -> Stage:
        terms = terms_of(stage)
        return replace(
            stage, message=wire.write(wire.SURVIVORS, 1, terms, wire.write_set(clients, terms))
        )

    return attack


def tags(*true: int):
    """A request for shares with the tags of these clients, and wrong ones of all others."""

    def attack(stage: Stage) -> Stage:
        terms, honest = terms_of(stage), stage.message[wire.HEADER.size : -wire.CHECKSUM_BYTES]
        size = wire.set_bytes(terms)
        table = wire.read_table(honest[size:], TAG_BYTES, {0, 2, 3, 4}, of="test")
        table = {who: tag if who in true else bytes(TAG_BYTES) for who, tag in table.items()}
        body = honest[:size] + wire.write_table(table)
        return replace(stage, message=wire.write(wire.REQUEST, 1, terms, body))

    return attack


def flipped(stage: Stage) -> Stage:
    middle = len(stage.message) // 2
    bad = bytes([stage.message[middle] ^ 1])
    return replace(stage, message=stage.message[:middle] + bad + stage.message[middle + 1 :])


def with_terms(**changes: object):
    return lambda stage: replace(stage, **changes)


def longer(stage: Stage) -> Stage:
    return replace(stage, length=stage.length + 1)


def without_terms(stage: Stage) -> RecordDict:
    content = write_stage(RecordDict(), stage)
    del content[TERMS]["run"]
    return content


LATE = ("agree", "unmask")
"""Stages after the values."""
STALE = "has not announced keys for this attempt"
BEFORE = {
    "shares before keys": ("keys", with_terms(name="shares"), STALE),
    "unmask before shares": (
        "shares",
        with_terms(name="unmask"),
        "out of order, the next stage is shares",
    ),
    "unmask before values": (
        "masked",
        with_terms(name="unmask"),
        "out of order, the next stage is masked",
    ),
    "another round's terms": ("shares", with_terms(round=2), STALE),
    "another attempt's roster": ("shares", with_terms(attempt=1), STALE),
    "another run's roster": ("shares", with_terms(run=bytes(32)), STALE),
    "other clients": (
        "keys",
        with_terms(clients=(0, 1, 2, 3)),
        "expected the clients that round 1 selects",
    ),
    "invented clients": (
        "keys",
        with_terms(clients=(0, 1, 2, 3, 4, 5)),
        "expected the clients that round 1 selects",
    ),
    "a client twice": (
        "keys",
        with_terms(clients=(0, 1, 1, 2, 3)),
        "expected the clients that round 1 selects",
    ),
    "no such attempt": ("keys", with_terms(attempt=-1), "attempt=-1"),
    "too many bits": ("keys", with_terms(bits=65), "bits=65"),
    "less noise": (
        "masked",
        with_terms(noise=1e-3),
        "expected noise of deviation .* from each client",
    ),
    "no noise": ("keys", with_terms(noise=0.0), "expected a finite noise > 0"),
    "an altered roster": ("shares", flipped, "checksum differs"),
    "no roster": ("shares", with_terms(message=b""), "bytes, got 0"),
    "values of another round": (
        "masked",
        with_terms(round=2),
        "expected stage 'masked' of round 1, got .* of 2",
    ),
    "more values": ("masked", longer, "values of .* bits, the server says"),
    "fewer bits": ("masked", with_terms(bits=8), "values of .* bits, the server says 1074 of 8"),
    "another attempt's delivery": ("masked", with_terms(attempt=1), STALE),
    "an altered delivery": ("masked", flipped, "checksum differs"),
    "no delivery": ("masked", with_terms(message=b""), "bytes, got 0"),
    "too few survivors": ("agree", survivors(0, 1, 2), "expected 4 clients at least, got 3"),
    "survivors without the client": ("agree", survivors(0, 2, 3, 4), "client 1 itself is missing"),
    "unmask before tags": (
        "agree",
        with_terms(name="unmask"),
        "out of order, the next stage is agree",
    ),
    "tags of nobody": (
        "unmask",
        tags(),
        "expected 4 clients that were told the same sets and keys, got 1",
    ),
    "tags of one other": (
        "unmask",
        tags(0),
        "expected 4 clients that were told the same sets and keys, got 2",
    ),
    "an unknown stage": ("keys", with_terms(name="all"), "expected a stage among"),
    "no terms": ("shares", without_terms, "got none of the name 'run'"),
}
AFTER = {
    "another roster": (
        "shares",
        flipped,
        "this attempt has answered another message of this stage",
    ),
    "another delivery": ("masked", flipped, "this attempt has accepted another one"),
    "other survivors": (
        "agree",
        survivors(0, 1, 2, 3),
        "this attempt has answered another message of this stage",
    ),
    "other tags": (
        "unmask",
        tags(0, 2, 3),
        "this attempt has answered another message of this stage",
    ),
}


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", BEFORE)
def test_a_message_out_of_place_is_refused_by_name_and_costs_nothing(case, tmp_path):
    at, attack, text = BEFORE[case]
    refused(Abused(at=at, attack=attack), text, tmp_path)


@pytest.mark.parametrize("case", AFTER)
def test_an_answered_stage_is_not_answered_otherwise(case, tmp_path):
    at, attack, text = AFTER[case]
    refused(Abused(at=at, attack=attack, after=True), text, tmp_path)


def refused(client: Abused, text: str, out) -> None:
    """Control: the round goes on with this client, so the honest message was not refused."""
    run = run_five(out / "run", client, reproducible=False)
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(*client.errors)
    before, after = client.charges
    assert (
        before
        == after
        == (1 if (client.after and client.at == "masked") or client.at in LATE else 0)
    )
    assert (run.rows[0].answered, len(run.entries(1))) == ("0 1 2 3 4", 1)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("stage", ["keys", "shares", "masked", "agree", "unmask"])
def test_a_repeated_message_gets_the_stored_answer(stage, tmp_path, monkeypatch):
    """Nothing is drawn, masked or charged again."""
    parts = watch_encode(monkeypatch)
    client = Abused(at=stage, attack=lambda asked: asked, after=True)
    run = run_five(tmp_path / "run", client, reproducible=False)
    ((again, first),) = client.answers
    assert again == first
    assert len(parts) == 5
    assert len(run.entries(1)) == 1


EARLIER = (
    r"expected a later attempt than the last one of this run, number {} of round {}, got number {} "
    r"of round {}"
)


def test_an_attempt_that_is_over_does_not_begin_again(tmp_path):
    """Keys of attempt 0, then of 7, then of 0 again: a second client under the same terms would
    have other keys.
    """
    seen: list[str | bytes] = []

    def asked(message: Message, context: Context, **terms: object) -> None:
        stage = replace(read_stage(message.content), **terms)
        reply = honest(planted(message, stage), context)
        seen.append(reply.error.reason if reply.has_error() else read_update(reply.content))

    def client(message: Message, context: Context) -> Message:
        reply = honest(message, context)
        if int(context.node_config["partition-id"]) == 1 and stage_in(message) == "keys":
            for terms in (
                {},
                {"attempt": 7},
                {"attempt": 7},
                {"attempt": 6},
                {},
                {"attempt": 7, "bits": 8},
            ):
                asked(message, context, **terms)
            asked(message, context, run=bytes(32))
            asked(message, context)
            asked(message, context, round=2)
            asked(message, context, attempt=8)
            seen.append(read_update(reply.content))
        return reply

    run = run_five(tmp_path / "run", client, reproducible=False)
    zero, seven, again, six, late, bits, other_run, later, next_round, eight, first = seen
    assert zero == first, "asked for again while it is the last one, it gets the stored answer"
    assert again == seven
    assert len({zero, seven, other_run, next_round}) == 4
    for text, attempt in ((six, 6), (late, 0), (bits, 7), (later, 0)):
        with pytest.raises(AssertionError, match=EARLIER.format(7, 1, attempt, 1)):
            raise AssertionError(text)
    with pytest.raises(AssertionError, match=EARLIER.format(0, 2, 8, 1)):
        raise AssertionError(eight)
    assert run.rows[0].rejected == "1"
    assert charged_clients(run) == [0, 2, 3, 4]


@pytest.mark.slow
def test_a_client_that_is_not_selected_refuses(tmp_path):
    errors = []

    def client(message: Message, context: Context) -> Message:
        if stage_in(message) == "keys" and not errors:
            selected = read_stage(message.content).clients
            (left, *_) = {0, 1, 2, 3, 4, 5} - {*selected}
            other = Context(
                run_id=1,
                node_id=1,
                node_config={**context.node_config, "partition-id": left},
                state=RecordDict(),
                run_config=context.run_config,
            )
            errors.append(honest(planted(message, read_stage(message.content)), other).error.reason)
        return honest(message, context)

    run = run_five(tmp_path / "run", client, clients=6, clients_per_round=5)
    assert ["round 1 does not select this client" in text for text in errors] == [True]
    assert len(run.rows[0].answered.split()) == 5


SECRET = {"reproducible": False}


def charges_at_noise(out, monkeypatch) -> list[int]:
    """Entries on disk, of all clients together, at each draw of noise."""
    found, real = [], Release.encode

    def watched(self, *args, **place):
        ledger = RunLedger(out / "ledger")
        found.append(sum(len(ledger.of(client).entries) for client in ledger.clients()))
        return real(self, *args, **place)

    monkeypatch.setattr(Release, "encode", watched)
    run_five(out, **SECRET)
    return found


def test_the_ledger_is_charged_before_noise_is_drawn(tmp_path, monkeypatch):
    assert charges_at_noise(tmp_path / "run", monkeypatch) == [5, 5, 5, 5, 5]


def test_a_charge_after_the_noise_is_caught(tmp_path, monkeypatch):
    """Negative control: a driver that charges each client when it is back."""
    charge_late(monkeypatch)
    assert charges_at_noise(tmp_path / "run", monkeypatch) == [0, 5, 5, 5, 5]


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_client_that_fails_at_its_noise_is_charged_and_says_nothing(where, tmp_path, monkeypatch):
    calls, real = [], Release.encode

    def failing(self, *args, **place):
        calls.append(1)
        if len(calls) == 3 and where == "before":
            raise RuntimeError("SECRETROW")
        integers = real(self, *args, **place)
        return integers[:-1] if len(calls) == 3 else integers

    monkeypatch.setattr(Release, "encode", failing)
    run = run_five(tmp_path / "run", **SECRET)
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert IN_RUN_LOG in run.rows[0].reasons
    assert "SECRETROW" not in run.rows[0].reasons
    assert charged_clients(run) == [0, 1, 2, 3, 4]
    assert recorded_sum(run) is not None


def test_a_client_over_its_budget_is_a_dropout_that_is_not_charged(tmp_path):
    budget = 1.0001 * epsilon(sample_rate=0.05, noise_multiplier=2.0, steps=1, delta=1e-5).upper
    plan, directory = plan_at(tmp_path / "run", **(FIVE | SECRET | {"epsilon": budget}))
    earlier = Entry(
        client=2,
        round=0,
        attempt=0,
        steps=1,
        sample_rate=0.05,
        noise_multiplier=2.0,
        clip_norm=0.5,
        num_examples=287,
        mechanism="dp",
    )
    Ledger(directory.ledger(2), client=2).charge(earlier)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert (run.rows[0].answered, run.rows[0].rejected) == ("0 1 3 4", "2")
    assert "would pass the privacy budget" in run.rows[0].reasons
    assert charged_clients(run) == [0, 1, 3, 4]
    assert run.summary["epsilon_max"] <= budget


def test_an_announcement_without_a_stage_is_refused_in_a_run_with_secure_sums(tmp_path):
    """A client would send its values with a share of the noise alone."""

    errors = []

    def bare(message: Message, context: Context) -> Message:
        if stage_in(message) == "masked" and int(context.node_config["partition-id"]) == 1:
            content = {
                name: one for name, one in message.content.items() if name not in (TERMS, MESSAGE)
            }
            errors.append(honest(planted(message, RecordDict(content)), context).error.reason)
        return honest(message, context)

    run = run_five(tmp_path / "run", bare, reproducible=False)
    (text,) = errors
    assert (
        "expected a stage with its terms and its message, got none of the name 'secure sum'" in text
    )
    assert len(run.entries(1)) == 1
