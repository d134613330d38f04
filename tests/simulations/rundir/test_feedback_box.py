"""A client's memory and the payload that it belongs to: one file, never half of it, never a round twice."""

import contextlib
import multiprocessing
from pathlib import Path

import pytest
import torch

from simulations.rundir import last_payload
from simulations.rundir.last_payload import FeedbackBox

M = [torch.arange(4).double() * 0.1 * k for k in range(9)]


def box(tmp_path, client=3) -> FeedbackBox:
    return FeedbackBox(tmp_path / "own", client)


def store_rounds(tmp_path, *rounds) -> FeedbackBox:
    found = box(tmp_path)
    for round in rounds:
        found.store(f"q{round}", b"payload\n" * round, M[round], round=round)
    return found


def files_of(found: FeedbackBox) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in found.folder.iterdir()}


def test_a_late_answer_of_an_earlier_round_takes_nothing_away(tmp_path):
    """Whether the later round was stored before its memory was read, or since."""
    found = store_rounds(tmp_path, 1, 2)
    before = files_of(found)
    for attempt in (lambda: found.memory(1, 4), lambda: found.store("q1 anew", b"x", M[5], round=1)):
        with pytest.raises(
            ValueError, match="remembers round 2, and the server announced round 1: this client is too late"
        ):
            attempt()
        assert files_of(found) == before


def test_of_two_answers_to_one_question_the_first_stays_and_is_sent(tmp_path):
    found = store_rounds(tmp_path, 1)
    assert found.store("q2", b"first", M[2], round=2) == b"first"
    before = files_of(found)
    assert found.store("q2", b"second", M[3], round=2) == b"first"
    assert files_of(found) == before


def answer_again(folder: Path, round: int, times: int) -> None:
    """One of two processes: each stores its own answers of rounds in turn."""
    found = FeedbackBox(folder, 3)
    for i in range(times):
        with contextlib.suppress(ValueError):  # too late: the other process is ahead
            found.store(f"q{round + 2 * i}", b"", M[1] + round + 2 * i, round=round + 2 * i)


def test_two_processes_never_lose_the_latest(tmp_path):
    spawn = multiprocessing.get_context("fork")
    both = [spawn.Process(target=answer_again, args=(tmp_path / "own", first, 60)) for first in (1, 2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    assert torch.equal(box(tmp_path).memory(999, 4), M[1] + 120)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_memory_that_is_not_finite_is_not_stored(tmp_path, bad):
    found = store_rounds(tmp_path, 1)
    with pytest.raises(ValueError, match="not be finite"):
        found.store("q", b"", torch.tensor([bad]), round=2)
    assert torch.equal(found.memory(2, 4), M[1])


def test_every_bit_is_guarded(tmp_path):
    found = store_rounds(tmp_path, 1)
    (path,) = found.folder.iterdir()
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 3):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            found.memory(2, 4)
    for cut in (b"", whole[:-8], whole + bytes(8), whole[1:], b"{}\n", b"[]\n", b"\n", b"null\n"):
        path.write_bytes(cut)
        with pytest.raises(ValueError, match="damaged"):
            found.memory(2, 4)


def test_a_crash_before_the_file_is_in_place_leaves_the_round_before(tmp_path, monkeypatch):
    found = store_rounds(tmp_path, 1)

    def crash(path, *content, private):
        path.with_name(f".{path.name}.9").write_bytes(content[0])  # a torn temporary file stays behind
        raise KeyboardInterrupt

    monkeypatch.setattr(last_payload, "write_atomically", crash)
    with pytest.raises(KeyboardInterrupt):
        found.store("q2", b"payload", M[2], round=2)
    assert found.find("q2") is None
    assert torch.equal(found.memory(2, 4), M[1])
    assert found.last() == b"payload\n"
