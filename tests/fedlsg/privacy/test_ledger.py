"""The ledger keeps every charge through crashes, races and edits, or refuses to be read."""

import dataclasses
import itertools
import json
import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlsg.accounting.bounds import epsilon
from fedlsg.accounting.calibrate import max_steps
from fedlsg.privacy import ledger as ledger_module
from fedlsg.privacy.ledger import Entry, Ledger, LedgerError
from fedlsg.privacy.ledger_entry import BudgetError, encode_line
from fedlsg.privacy.ledger_file import ledger_path, merge, read_entries
from fedlsg.privacy.run_ledger import verify_extends
from tests.places import REPOSITORY

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")


def entry(round: int = 0, attempt: int = 0, **changes) -> Entry:
    defaults = {
        "client": 3,
        "steps": 2,
        "sample_rate": 0.2,
        "noise_multiplier": 1.5,
        "clip_norm": 0.5,
        "num_examples": 300,
        "mechanism": "dp",
        "reproducible": False,
    }
    return Entry(round=round, attempt=attempt, **{**defaults, **changes})


def filled(path: Path, rounds: int = 4) -> Ledger:
    ledger = Ledger(path, client=3)
    for number in range(rounds):
        ledger.charge(entry(number))
    return ledger


def snapshots(paths: list[Path]) -> dict[str, tuple[int, str]]:
    """The part of a checkpoint that ``verify_extends`` reads."""
    ledgers = [Ledger(path, client=read_entries(path)[0].client) for path in paths]
    return {str(ledger.client): ledger.snapshot() for ledger in ledgers}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ledger_path(tmp_path, 3)


entries_of_client_3 = st.lists(
    st.builds(
        entry,
        round=st.integers(0, 5),
        attempt=st.integers(0, 3),
        steps=st.integers(1, 9),
        sample_rate=st.floats(0.001, 1.0),
        noise_multiplier=st.floats(0.1, 50.0),
        clip_norm=st.floats(1e-6, 1e6),
        num_examples=st.integers(1, 10**6),
        reproducible=st.booleans(),
    ),
    unique_by=lambda e: e.key,
    max_size=8,
)


@settings(max_examples=25, deadline=None)
@given(entries=entries_of_client_3)
def test_a_reopened_ledger_holds_exactly_what_was_charged(entries, tmp_path_factory):
    path = ledger_path(tmp_path_factory.mktemp("ledger"), 3)
    ledger = Ledger(path, client=3)
    for one in entries:
        ledger.charge(one)
    again = Ledger(path, client=3)
    assert ledger.entries == again.entries == tuple(entries) == read_entries(path)
    assert ledger.snapshot() == again.snapshot()
    for number in range(6):
        taken = {e.attempt for e in entries if e.round == number}
        assert again.next_attempt(number) == (max(taken) + 1 if taken else 0)
    assert sum(e.steps for e in again.events()) == sum(e.steps for e in entries)


def test_golden_file(path):
    """The format by hand: a header, then entries, each with the hash of the line before, and the digest of its own."""
    filled(path, rounds=1)
    header, first, empty = path.read_bytes().split(b"\n")
    assert empty == b""
    plain = json.dumps({"schema": 2, "client": 3, "adjacency": "add/remove", "prev": "0" * 64}).encode()
    assert json.loads(header) == json.loads(plain) | {"sha256": sha256sum(plain)}
    without = first[: first.index(b', "sha256"')] + b"}"
    assert json.loads(first) == {
        "client": 3,
        "round": 0,
        "attempt": 0,
        "steps": 2,
        "sample_rate": 0.2,
        "noise_multiplier": 1.5,
        "clip_norm": 0.5,
        "num_examples": 300,
        "mechanism": "dp",
        "reproducible": False,
        "prev": sha256sum(header),
        "sha256": sha256sum(without),
    }


def sha256sum(line: bytes) -> str:
    return subprocess.run(["sha256sum"], input=line, capture_output=True, check=True).stdout.decode().split()[0]


def test_every_charge_is_synced_before_it_returns_and_a_new_file_with_its_directory(path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(os.readlink(f"/proc/self/fd/{fd}")), real(fd))[1])
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc to name a descriptor")
    ledger = Ledger(path, client=3)
    ledger.charge(entry(0))
    assert synced == [str(path), str(path.parent)]
    ledger.charge(entry(1))
    assert synced[2:] == [str(path)]


def test_a_charge_refuses_a_known_key_and_another_client(path):
    ledger = filled(path)
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=r"\(3, '', 2, 0\) is charged already"):
        ledger.charge(entry(2, steps=5))
    with pytest.raises(LedgerError, match="client 3, got one of client 4"):
        ledger.charge(entry(9, client=4))
    assert path.read_bytes() == before
    ledger.charge(entry(2, attempt=ledger.next_attempt(2)))
    assert ledger.next_attempt(2) == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": math.nan}, "noise_multiplier"),
        ({"sample_rate": 1.5}, "sample_rate"),
        ({"steps": 0}, "steps"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": math.inf}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"num_examples": 0}, "num_examples"),
        ({"round": -1}, "round"),
        ({"attempt": 1.0}, "attempt"),
        ({"mechanism": "magic"}, "mechanism"),
        ({"mechanism": "noise-only"}, "noise_multiplier"),
        ({"reproducible": "no"}, "reproducible"),
    ],
)
def test_an_entry_out_of_range_is_refused_by_name(changes, named):
    with pytest.raises(ValueError, match=named):
        entry(**changes)


def test_epsilon_is_that_of_the_steps_on_file(path):
    ledger = Ledger(path, client=3)
    assert ledger.epsilon(1e-5).upper == 0.0
    ledger = filled(path, rounds=5)
    expected = epsilon(sample_rate=0.2, noise_multiplier=1.5, steps=10, delta=1e-5)
    assert ledger.epsilon(1e-5) == expected
    ledger.charge(entry(5, reproducible=True))
    assert ledger.reproducible
    assert ledger.epsilon(1e-5).upper > expected.upper


@pytest.mark.parametrize("mechanism", ["clip-only", "noise-only", "none"])
def test_one_entry_without_privacy_makes_epsilon_infinite(path, mechanism):
    ledger = filled(path)
    clip_norm = 0.5 if mechanism == "clip-only" else math.inf
    ledger.charge(entry(7, mechanism=mechanism, noise_multiplier=0.0, clip_norm=clip_norm))
    assert Ledger(path, client=3).epsilon(1e-5) == math.inf
    assert Ledger(path, client=3).entries[-1].clip_norm == clip_norm
    assert ledger.would_exceed(entry(8), 100.0, 1e-5)


def test_what_is_not_private_exceeds_every_budget(path):
    """It has no event, so that the others alone would be compared with the budget."""
    clipped = entry(9, mechanism="clip-only", noise_multiplier=0.0)
    assert Ledger(path, client=3).would_exceed(clipped, 1e6, 1e-5)
    assert filled(path, rounds=2).would_exceed(clipped, 1e6, 1e-5)
    assert not Ledger(path, client=3).would_exceed(entry(9), 1e6, 1e-5)


def test_would_exceed_says_no_exactly_at_the_last_step_within_the_budget(path):
    max_steps.cache_clear()  # with many settings in it, a grid is tried first: test_population has both ways
    allowed = max_steps(epsilon=4.0, delta=1e-5, sample_rate=0.2, noise_multiplier=1.5)
    ledger = Ledger(path, client=3)
    ledger.charge(entry(0, steps=allowed - 2))
    assert not ledger.would_exceed(entry(1, steps=2), 4.0, 1e-5)
    assert ledger.would_exceed(entry(1, steps=3), 4.0, 1e-5)
    # A different sigma takes the general path.
    assert not ledger.would_exceed(entry(1, steps=1, noise_multiplier=2.0), 4.0, 1e-5)
    assert ledger.would_exceed(entry(1, steps=1, noise_multiplier=0.3), 4.0, 1e-5)
    with pytest.raises(ValueError, match="delta"):
        ledger.would_exceed(entry(1, noise_multiplier=2.0), 4.0, 2.0)


TAMPERS = {
    "edited sigma": lambda lines: [*lines[:2], lines[2].replace(b"1.5", b"9.5"), *lines[3:]],
    "edited steps of the first": lambda lines: [lines[0], lines[1].replace(b'"steps": 2', b'"steps": 1'), *lines[2:]],
    "edited header": lambda lines: [lines[0].replace(b'"client": 3', b'"client": 3 '), *lines[1:]],
    "removed": lambda lines: [*lines[:2], *lines[3:]],
    "removed first": lambda lines: [lines[0], *lines[2:]],
    "removed header": lambda lines: lines[1:],
    "swapped": lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]],
    "repeated": lambda lines: [*lines, lines[-1]],
    "garbled in the middle": lambda lines: [*lines[:2], lines[2][:40], *lines[3:]],
    "garbled whole line": lambda lines: [*lines[:2], b"{garbage}", *lines[3:]],
    "CRLF": lambda lines: [line + b"\r" for line in lines],
    "foreign line": lambda lines: [*lines, b'{"hello": 1}'],
    "not a record": lambda lines: [*lines, b'[{"prev": 1}]'],
}


@pytest.mark.parametrize("tamper", TAMPERS.values(), ids=TAMPERS)
def test_a_tampered_file_is_refused_by_file_and_line(path, tamper):
    filled(path, rounds=5)
    path.write_bytes(b"\n".join([*tamper(path.read_bytes().split(b"\n")[:-1]), b""]))
    for read in (lambda: Ledger(path, client=3), lambda: read_entries(path)):
        with pytest.raises(LedgerError, match=rf"{path.name}, line \d"):
            read()


@pytest.mark.parametrize("bits", [[0, 3, 7], pytest.param([1, 2, 4, 5, 6], marks=pytest.mark.slow)], ids=str)
def test_every_flipped_bit_of_the_last_line_is_found(path, bits):
    """No later line vouches for it: its own digest does, also for the brace without which it would look torn."""
    filled(path, rounds=2)
    content = path.read_bytes()
    begin = content.rstrip().rindex(b"\n") + 1
    for place in range(begin, len(content)):
        for bit in bits:
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            path.write_bytes(bytes(changed))
            with pytest.raises(LedgerError, match=r"line [34]: "):
                Ledger(path, client=3)


def test_a_file_of_schema_1_is_refused_in_one_line(path):
    """Its lines have no digest of their own."""
    filled(path, rounds=1)
    path.write_text(json.dumps({"schema": 1, "client": 3, "adjacency": "add/remove", "prev": "0" * 64}) + "\n")
    with pytest.raises(LedgerError, match=r"line 1: a ledger of schema 1, which was removed; commit [0-9a-f]{8} "):
        Ledger(path, client=3)


def test_a_forged_chain_is_caught_by_a_checkpoint_only(path):
    """What a hash chain cannot do: someone who rewrites the whole file. The negative control of `verify_extends`."""
    ledger = filled(path, rounds=5)
    before = snapshots([path])
    kept = [dataclasses.replace(e, steps=1) for e in ledger.entries]
    path.unlink()
    forged = Ledger(path, client=3)
    for one in kept:
        forged.charge(one)
    assert Ledger(path, client=3).entries == tuple(kept)
    with pytest.raises(LedgerError, match="not those that the checkpoint saw"):
        verify_extends(before, path.parent)
    with pytest.raises(LedgerError, match="gone"):
        _ = ledger.entries


def test_a_key_that_is_on_file_twice_is_refused(path, monkeypatch):
    ledger = filled(path, rounds=2)
    monkeypatch.setattr(Ledger, "_has", lambda ledger, entry: False)
    ledger.charge(ledger.entries[0])
    with pytest.raises(LedgerError, match="charged already"):
        read_entries(path)


def test_an_open_ledger_refuses_a_file_that_was_cut_or_deleted(path):
    ledger = filled(path, rounds=3)
    content = path.read_bytes()
    path.write_bytes(content[: content.rstrip().rindex(b"\n") + 1])
    with pytest.raises(LedgerError, match="seen earlier are gone"):
        ledger.charge(entry(9))
    path.unlink()
    with pytest.raises(LedgerError, match="seen earlier are gone"):
        ledger.charge(entry(9))


def test_a_ledger_of_another_client_or_schema_is_refused(path):
    filled(path)
    with pytest.raises(LedgerError, match="line 1: expected the ledger of client 5, this is client 3"):
        Ledger(path, client=5)
    foreign = encode_line({"schema": 3, "client": 3, "adjacency": "add/remove"}, "0" * 64)
    path.write_bytes(foreign + b"\n")
    with pytest.raises(LedgerError, match="line 1: expected the header of schema 2"):
        Ledger(path, client=3)


def test_negative_control_without_the_chain_an_edit_passes(path, monkeypatch):
    """If every line hashed to the same value, the tampering above would go unseen: the chain is what finds it."""
    monkeypatch.setattr("fedlsg.privacy.ledger_entry.sha256", lambda line: "0" * 64)
    monkeypatch.setattr("fedlsg.privacy.ledger_file.sha256", lambda line: "0" * 64)
    monkeypatch.setattr(ledger_module, "sha256", lambda line: "0" * 64)
    filled(path, rounds=5)
    lines = path.read_bytes().split(b"\n")[:-1]
    path.write_bytes(b"\n".join([*TAMPERS["edited sigma"](lines), b""]))
    assert Ledger(path, client=3).entries[1].noise_multiplier == 9.5


def test_a_torn_file_keeps_every_whole_line_and_takes_the_next_charge(path):
    """Torn at every byte near the end of a line, and at every seventh elsewhere."""
    ledger = filled(path, rounds=3)
    content, entries = path.read_bytes(), ledger.entries
    ends = [i for i, byte in enumerate(content) if byte == ord("\n")]
    for length in range(len(content) + 1):
        if length % 7 and min(abs(length - end) for end in (0, *ends)) > 2:
            continue
        path.write_bytes(content[:length])
        whole = sum(end <= length for end in ends[1:])  # a line that lacks only its line feed is whole
        torn = Ledger(path, client=3)
        assert torn.entries == entries[:whole], length
        torn.charge(entry(50))
        torn.charge(entry(51))
        assert Ledger(path, client=3).entries == (*entries[:whole], entry(50), entry(51)), length


def test_a_line_torn_twice_is_skipped_and_a_cut_line_that_was_released_is_not(path):
    filled(path, rounds=2)
    with open(path, "ab") as file:
        file.write(b'{"client": 3, "rou')
    Ledger(path, client=3).charge(entry(2))
    with open(path, "ab") as file:
        file.write(b'{"clie')
    Ledger(path, client=3).charge(entry(3))
    assert [e.round for e in Ledger(path, client=3).entries] == [0, 1, 2, 3]
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][:30]  # a released line, cut to look torn
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerError, match="line 5: it does not continue"):
        Ledger(path, client=3)


def child(code: str, *arguments: object, stdin: int | None = None) -> subprocess.Popen:
    preamble = """
        import sys
        from fedlsg.privacy.ledger import Entry, Ledger
        def entry(round, attempt=0):
            return Entry(client=3, round=round, attempt=attempt, steps=2, sample_rate=0.2, noise_multiplier=1.5,
                         clip_norm=0.5, num_examples=300, mechanism="dp", reproducible=False)
        """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(preamble) + textwrap.dedent(code), *map(str, arguments)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
        text=True,
    )


@posix
@pytest.mark.parametrize("after", [3, 40])
def test_kill_9_between_charges_loses_nothing_that_was_acknowledged(path, after):
    process = child(
        """
        ledger = Ledger(sys.argv[1], client=3)
        for number in range(10**6):
            ledger.charge(entry(number))
            print(number, flush=True)
        """,
        path,
    )
    acknowledged = [int(line) for line in itertools.islice(process.stdout, after)][-1]
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.wait()
    process.stdout.close()
    ledger = Ledger(path, client=3)
    assert len(ledger.entries) >= acknowledged + 1
    assert [e.round for e in ledger.entries] == list(range(len(ledger.entries)))
    ledger.charge(entry(10**6))
    assert Ledger(path, client=3).entries[-1].round == 10**6


@posix
def test_two_processes_never_charge_one_key_twice(path):
    code = """
        ledger = Ledger(sys.argv[1], client=3)
        print("ready", flush=True)
        sys.stdin.readline()  # all begin at once: imports take longer than all charges
        for number in range(60):
            try:
                ledger.charge(entry(number))
                print("won", flush=True)
            except ValueError as error:
                assert "charged already" in str(error), error
        ledger.charge(entry(100, attempt=int(sys.argv[2])))
        """
    processes = [child(code, path, number, stdin=subprocess.PIPE) for number in range(3)]
    assert [process.stdout.readline() for process in processes] == ["ready\n"] * 3
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    won = [process.communicate()[0].count("won") for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(won) == 60
    assert sorted(e.key for e in Ledger(path, client=3).entries) == sorted(
        [(3, "", number, 0) for number in range(60)] + [(3, "", 100, attempt) for attempt in range(3)]
    )


def test_a_failed_write_leaves_the_ledger_usable(path, monkeypatch):
    ledger = filled(path, rounds=2)
    real = os.write

    def full_disk(fd, data):
        real(fd, bytes(data)[:25])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full_disk)
    with pytest.raises(LedgerError, match="No space left"):
        ledger.charge(entry(2))
    monkeypatch.setattr(os, "write", real)
    assert len(ledger.entries) == 2
    ledger.charge(entry(2))
    assert [e.round for e in Ledger(path, client=3).entries] == [0, 1, 2]


def several(directory: Path) -> list[Path]:
    paths = [ledger_path(directory, client) for client in (11, 2, 3)]
    for path, client in zip(paths, (11, 2, 3), strict=True):
        ledger = Ledger(path, client=client)
        for number, attempt in ((1, 0), (0, 0), (1, 1)):
            ledger.charge(entry(number, attempt, client=client))
    return paths


def test_the_merged_copy_is_sorted_whole_and_replaced_in_one_go(tmp_path, monkeypatch):
    paths = several(tmp_path / "ledger")
    out = tmp_path / "ledger.jsonl"
    merge([entry for path in paths for entry in read_entries(path)], out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    keys = [(r["round"], r["client"], r["attempt"]) for r in records]
    assert keys == sorted((r, c, a) for c in (2, 3, 11) for r, a in ((0, 0), (1, 0), (1, 1)))
    assert records[0]["adjacency"] == "add/remove"
    before = out.read_bytes()

    def crash(source, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(LedgerError, match="merged copy"):
        merge(read_entries(paths[0]), out)
    assert out.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ledger", "ledger.jsonl"]


def test_a_resumed_ledger_may_be_ahead_and_never_behind_or_different_or_missing(tmp_path):
    paths = several(tmp_path)
    checkpoint = json.loads(json.dumps(snapshots(paths)))
    verify_extends(checkpoint, tmp_path)
    ahead = Ledger(paths[1], client=2)
    ahead.charge(entry(9, client=2))
    verify_extends(checkpoint, tmp_path)
    content, later = paths[1].read_bytes(), snapshots(paths)
    paths[1].write_bytes(content[: content.rstrip().rindex(b"\n") + 1])
    with pytest.raises(LedgerError, match="3 entries, fewer than the checkpoint's 4"):
        verify_extends(later, tmp_path)
    paths[1].unlink()
    with pytest.raises(LedgerError, match=r"client-000002\.jsonl: .*, the ledger is missing"):
        verify_extends(checkpoint, tmp_path)
    verify_extends({}, tmp_path)


def test_a_charge_within_a_budget_is_checked_under_the_lock(tmp_path):
    """Two writers: the second one sees the entries of the first, and charges nothing beyond the budget."""
    first, second = Ledger(tmp_path / "l.jsonl", client=0), Ledger(tmp_path / "l.jsonl", client=0)
    common = {"client": 0, "attempt": 0, "steps": 1, "sample_rate": 1.0, "noise_multiplier": 2.0, "clip_norm": 1.0,
              "num_examples": 9, "mechanism": "dp"}  # fmt: skip
    budget = (1.75 * epsilon(sample_rate=1.0, noise_multiplier=2.0, steps=1, delta=1e-3).upper, 1e-3)
    first.charge(Entry(round=1, **common), within=budget)
    second.charge(Entry(round=2, **common), within=budget)
    with pytest.raises(BudgetError, match="would pass the privacy budget"):
        first.charge(Entry(round=3, **common), within=budget)
    assert len(second.entries) == 2


def test_one_ledger_protects_one_unit(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", client=3)
    ledger.charge(entry(round=1))
    with pytest.raises(LedgerError, match="unit=client is another"):
        ledger.charge(entry(round=2, unit="client", sample_rate=1.0))
    assert len(ledger.entries) == 1
