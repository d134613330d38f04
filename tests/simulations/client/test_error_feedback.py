"""Error feedback in whole runs: nothing is lost or counted twice, through crashes too, and nothing
private has it.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import fedlsg.simulations.client.train
import fedlsg.strategies.protocol.expectations
from fedlsg.carriers.powersgd import decode
from fedlsg.payload.message import Expected, unpack
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.storage import feedback_box
from fedlsg.simulations.storage.feedback_box import FeedbackBox
from fedlsg.strategies.protocol.wire import Announcement
from tests.simulations.support.runs import Run, plan_at, resume_local, run_local

SILENT: dict[str, Any] = {
    "noise_multiplier": None,
    "rounds": 4,
    "sample_rate": 0.2,
    "learning_rate": 0.3,
}
KINDS: dict[str, dict[str, Any]] = {
    "topk": {"method": "topk", "topk_rate": 0.01},
    "topk, three local steps": {
        "method": "topk",
        "topk_rate": 0.01,
        "local_steps": 3,
        "local_momentum": 0.5,
    },
    "topk, int8": {"method": "topk", "topk_rate": 0.05, "codec": "int8"},
    "topk, a bit each": {"method": "topk", "topk_rate": 0.05, "codec": "sign"},
    "powersgd": {"method": "powersgd", "rank": 2},
    "powersgd, three local steps": {"method": "powersgd", "rank": 2, "local_steps": 3},
    "sign": {"method": "sgd", "codec": "sign"},
    "sign, two local steps": {"method": "sgd", "codec": "sign", "local_steps": 2},
    "topk, half as wide": {"method": "topk", "topk_rate": 0.5, "codec": "bfloat16"},
}


@dataclasses.dataclass
class Watched:
    """What client 0 computed and what the server made of its payloads, over a run: sums in
    float64.
    """

    gradients: Tensor
    received: Tensor
    payloads: int = 0


def watch(patch: pytest.MonkeyPatch) -> Watched:
    """Listen to the values of client 0 and to its payloads as the server reads them."""
    seen = Watched(torch.zeros(4810).double(), torch.zeros(4810).double())
    shipped = fedlsg.simulations.client.train.pack_and_store

    def listen(values, frame, base: Base, announced: Announcement, dither, box, question) -> bytes:
        payload = shipped(values, frame, base, announced, dither, box, question)
        if dither.client == 0:
            wanted: Expected = base.uplink.expected(frame, round=announced.round, dither=dither)
            seen.gradients += values.double()
            seen.received += decode(unpack(payload, wanted), frame).double()
            seen.payloads += 1
        return payload

    patch.setattr(fedlsg.simulations.client.train, "pack_and_store", listen)
    return seen


def memory_of(path: Path, client: int = 0, round: int = 99) -> Tensor:
    return FeedbackBox(path / "clients" / f"client-{client:06d}", client).memory(round, 4810)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("kind", KINDS)
def test_what_was_received_and_the_memory_are_the_gradients(kind, tmp_path, monkeypatch):
    """To the last bits of float64; where the values need less than 53 bits, exactly."""
    seen = watch(monkeypatch)
    run = run_local(tmp_path / "run", **SILENT | KINDS[kind])
    memory = memory_of(tmp_path / "run")
    torch.testing.assert_close(seen.received + memory, seen.gradients, rtol=0, atol=1e-13)
    assert (seen.received - seen.gradients).abs().max() > 1e-3  # the memory is not vacuous
    assert [row.rejected for row in run.rows] == [""] * 4
    assert run.summary["codec"]["error_feedback"] is True
    assert run.summary["private"] is False


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Run:
    return run_local(
        tmp_path_factory.mktemp("whole") / "run", record_updates=True, **SILENT | KINDS["topk"]
    )


def same(run: Run, whole: Run) -> bool:
    memories = all(torch.equal(memory_of(run.path, c), memory_of(whole.path, c)) for c in (0, 1))
    return run.payloads == whole.payloads and run.weights.equal(whole.weights) and memories


def crashed(tmp_path, monkeypatch, when: str, nth: int) -> Run:
    """A run that dies before or after the ``nth`` file of payload and memory is in place, and is
    resumed.
    """
    write, count = feedback_box.write_atomically, [0]

    def crash(path: Path, *content: bytes, private: bool) -> None:
        count[0] += 1
        if when == "after" or count[0] != nth:
            write(path, *content, private=private)
        if count[0] == nth:
            raise KeyboardInterrupt

    monkeypatch.setattr(feedback_box, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", record_updates=True, **SILENT | KINDS["topk"])
    monkeypatch.setattr(feedback_box, "write_atomically", write)
    return resume_local(tmp_path / "run")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("nth", [1, 4, 7])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_the_store_counts_nothing_twice(whole, tmp_path, monkeypatch, when, nth):
    """``after``: the payload is there and was not sent; it is sent as it is, and the memory stays
    as it is.
    """
    assert same(crashed(tmp_path, monkeypatch, when, nth), whole)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "dpsgd", "codec": "sign"},
        {"method": "lsg", "codec": "sign"},
        {"method": "dp-powersgd"},
        {"method": "dpsgd", "codec": "int8"},
        {"method": "sgd", "codec": "sign", "mechanism": "clip-only", "noise_multiplier": None},
        {"method": "sgd", "codec": "int8", "noise_multiplier": None},
    ],
)
def test_no_memory_is_kept(settings, tmp_path):
    run = run_local(tmp_path / "run", **settings)
    assert list((run.path / "clients").glob("client-*")) == []
    assert "error_feedback" not in run.summary["codec"]
    assert [row.rejected for row in run.rows] == ["", ""]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"method": "topk", "mechanism": "dp"},
            "error feedback keeps gradients of the client without noise",
        ),
        (
            {"method": "powersgd", "mechanism": "dp"},
            "error feedback keeps gradients of the client without noise",
        ),
        (
            {"method": "topk", "mechanism": "noise-only"},
            "error feedback keeps gradients of the client without noise",
        ),
        (
            {"method": "powersgd", "noise_multiplier": None, "epsilon": 8.0},
            "epsilon=8 needs a mechanism that adds noise",
        ),
        (
            {"method": "topk", "noise_multiplier": None, "trust": "aggregate"},
            "adds position by position",
        ),
        (
            {"method": "topk", "noise_multiplier": None, "indices": "explicit"},
            "indices=explicit does not go with positions that clients choose .*leave indices out",
        ),
        (
            {"codec": "sign", "mechanism": "none", "noise_multiplier": None},
            "'lsg' a coordinate is not the same",
        ),
        ({"codec": "sign", "method": "dp-powersgd"}, "codec 'sign' keeps no magnitudes"),
    ],
)
def test_refused(settings, why, tmp_path):
    with pytest.raises(ValueError, match=why):
        plan_at(tmp_path / "run", **settings)


def test_a_memory_under_noise_that_slipped_through_is_not_used(tmp_path, monkeypatch):
    """Negative control: the rules planted open; the client looks once more, before it reads a
    memory.
    """
    monkeypatch.setattr(fedlsg.strategies.protocol.expectations, "keeps_memory", lambda *_: True)
    run = run_local(tmp_path / "run", method="dpsgd", codec="sign")
    assert [row.rejected for row in run.rows] == ["0 1", "0 1"]
    assert "would leak: not sent" in run.log
    assert list((run.path / "clients").glob("client-*")) == []
