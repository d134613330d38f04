"""The engines: they agree bit for bit, survive every bad client, and count the bytes that are
really sent.
"""

import re
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Context, Message
from flwr.common.serde import message_to_proto

from fedlsg.simulations.cli.command_line import app as cli
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.client.virtual import ClientFunction
from fedlsg.simulations.engines import local, ray
from fedlsg.strategies.protocol.wire import read_update
from tests.simulations.support import bad_clients
from tests.simulations.support.bad_clients import HONEST, KINDS
from tests.simulations.support.runs import Run, ignore, plan_at, run_local

VARYING = (
    "seconds",
    "times",
    "uplink_bytes_wire",
    "downlink_bytes_wire",
)  # Flower's ids are random, and so their lengths
BAD_SETTINGS = {"clients": len(KINDS) + HONEST, "rounds": 2, "evaluate_every": 2}


@pytest.fixture(scope="module")
def bad_local(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("bad") / "run", client=bad_clients.app, **BAD_SETTINGS)


def check_bad_client(run: Run, kind: str) -> None:
    """The client is named with the reason in rounds.csv and in the log, and charged if and only if
    it trained.
    """
    bad, client = KINDS[kind], list(KINDS).index(kind)
    for row in run.rows[int(bad.honest_first) :]:
        assert str(client) in row.rejected.split()
        assert str(client) not in row.answered.split()
        assert re.search(rf"(^|; )([\d ]* )?{client}( [\d ]*)?: [^;]*{bad.reason}", row.reasons), (
            row.reasons
        )
        assert re.search(
            rf"round {row.round}: client {client}: .*{bad.reason.split(',')[0]}", run.log
        )
    assert len(run.entries(client)) == len(run.rows) * bad.trained


@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_client_is_named_and_charged_and_the_round_goes_on(bad_local, kind):
    check_bad_client(bad_local, kind)
    honest = [str(len(KINDS) + i) for i in range(HONEST)]
    assert [row.answered.split()[-HONEST:] for row in bad_local.rows] == [honest, honest]


class Wire:
    """Serialises every message of a local run, both ways, and keeps the bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.messages: list[tuple[Message, bytes]] = []
        self.pass_on = local.over_the_wire
        monkeypatch.setattr(local, "over_the_wire", self)

    def __call__(self, message: Message) -> Message:
        if message.metadata.message_type == "train":
            self.messages.append((message, message_to_proto(message).SerializeToString()))
        return self.pass_on(message)

    def bytes(self, round: int, *, up: bool) -> list[bytes]:
        return [
            data
            for message, data in self.messages
            if message.metadata.group_id == str(round)
            and (message.metadata.reply_to_message_id != "") == up
        ]

    @property
    def replies(self) -> list[Message]:
        return [
            message for message, _ in self.messages if message.metadata.reply_to_message_id != ""
        ]


def reply_fields(reply: Message) -> dict[str, object]:
    """Everything in a reply except ids, times and the payload's values, by place."""
    content = reply.content
    fields: dict[str, object] = {"keys": sorted(content)}
    for name, record in content.items():
        for key in record:
            fields[f"{name}/{key}"] = record[key] if (name, key) != ("update", "payload") else None
    payload = content["update"]["payload"]
    meta = reply.metadata
    fields["payload"] = (payload.dtype, payload.shape, payload.stype, payload.data[:64])
    fields["metadata"] = (
        meta.message_type,
        meta.group_id,
        meta.ttl > 0,
        meta.src_node_id,
        meta.dst_node_id,
    )
    return fields


def data_dependent_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: ClientFunction
) -> set[str]:
    """Places in which the replies of two runs differ that draw different batches and noise."""
    fields = []
    for name in ("a", "b"):
        wire = Wire(monkeypatch)
        run_local(tmp_path / name, client=client, rounds=1, reproducible=False)
        fields.append([reply_fields(reply) for reply in wire.replies])
        payloads = [read_update(reply.content) for reply in wire.replies]
        assert all(
            reply.content["from"] == {"partition": p} for p, reply in enumerate(wire.replies)
        )
        assert len(set(payloads)) == 2
        monkeypatch.setattr(local, "over_the_wire", wire.pass_on)
    places = set(fields[0][0]) | set(fields[1][0])
    return {
        place
        for place in places
        for a, b in zip(*fields, strict=True)
        if a.get(place) != b.get(place)
    }


def test_a_reply_holds_nothing_of_the_data_but_the_payload(tmp_path, monkeypatch):
    # another than ours: its messages are copied
    def client(message: Message, context: Context) -> Message:
        return app(message, context)

    assert data_dependent_places(tmp_path, monkeypatch, client) == set()


def test_a_batch_size_in_the_reply_is_caught(tmp_path, monkeypatch):
    """Negative control: what Flower's own clients send, a number of examples."""

    def client(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type == "train":
            payload = read_update(reply.content)
            reply.content["metrics"] = ConfigRecord({"num-examples": sum(payload)})
        return reply

    assert data_dependent_places(tmp_path, monkeypatch, client) == {"metrics/num-examples"}


def meddling(message: Message, context: Context) -> Message:
    """A client that writes into its own message and into what it sent, as code of others may."""
    reply = app(message, context)
    if message.metadata.message_type == "train":
        message.content["round"]["round"] = 99
        reply.content["from"]["partition"] = context.node_config["partition-id"]
    return reply


def test_what_a_client_writes_into_its_message_reaches_nobody_else(tmp_path, monkeypatch):
    """Clients of equal terms share a record; another ClientApp than ours gets copies."""
    run = run_local(tmp_path / "a", client=meddling, rounds=2)
    assert [row.answered for row in run.rows] == ["0 1"] * 2

    monkeypatch.setattr(local, "over_the_wire", lambda message: message)  # negative control
    assert [row.answered for row in run_local(tmp_path / "b", client=meddling, rounds=1).rows] == [
        "0"
    ]


@pytest.mark.ray
def test_engines_agree_bit_for_bit(tmp_path, capsys, on_ray):
    options = [
        "--rounds",
        "3",
        "--clients",
        "2",
        "--noise-multiplier",
        "2",
        "--reproducible",
        "--record-updates",
    ]
    a, b = Run(tmp_path / "a"), Run(tmp_path / "b")
    cli(["run", "--engine", "local", "--out", str(a.path), *options], standalone_mode=False)
    cli(["run", "--engine", "ray", "--out", str(b.path), *options], standalone_mode=False)
    assert [w.dtype for w in a.model.values()] == [w.dtype for w in b.model.values()]
    assert a.weights.equal(b.weights)
    assert len(a.payloads) == 6
    assert a.payloads == b.payloads
    assert a.model_file == b.model_file
    assert a.ledgers == b.ledgers
    assert (a.path / "ledger.jsonl").read_bytes() == (b.path / "ledger.jsonl").read_bytes()
    for row, other in zip(a.rows, b.rows, strict=True):
        assert {**vars(row), **dict.fromkeys(VARYING)} == {**vars(other), **dict.fromkeys(VARYING)}
        for name in ("uplink_bytes_wire", "downlink_bytes_wire"):
            assert abs(getattr(row, name) - getattr(other, name)) <= 2 * 8
    printed = capsys.readouterr().out
    assert printed.count("NOT PRIVATE") == 4


@pytest.mark.slow
@pytest.mark.ray
def test_bad_clients_on_ray(tmp_path, on_ray, bad_local):
    plan, directory = plan_at(tmp_path / "run", engine="ray", **BAD_SETTINGS)
    summary = ray.run(
        plan, directory, on_round=ignore, client="tests.simulations.support.bad_clients:app"
    )
    run = Run(directory.path, plan, summary)
    for kind in KINDS:
        check_bad_client(run, kind)
    assert run.weights.equal(bad_local.weights)
