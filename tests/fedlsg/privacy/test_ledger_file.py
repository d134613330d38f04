"""The file of a ledger through crashes, races and edits: whole, or refused by its line."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fedlsg.privacy import ledger as ledger_module
from fedlsg.privacy.ledger import Ledger, LedgerError
from fedlsg.privacy.ledger_entry import encode_line
from fedlsg.privacy.ledger_file import ledger_path, load, read_entries
from fedlsg.privacy.run_ledger import verify_extends
from tests.fedlsg.support.ledgers import entry, filled, sha256, snapshots
from tests.places import REPOSITORY

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX locks and signals")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return ledger_path(tmp_path, 3)


TAMPERS = {
    "edited sigma": lambda lines: [*lines[:2], lines[2].replace(b"1.5", b"9.5"), *lines[3:]],
    "edited steps of the first": lambda lines: [
        lines[0],
        lines[1].replace(b'"steps": 2', b'"steps": 1'),
        *lines[2:],
    ],
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


@pytest.mark.parametrize(
    "bits", [[0, 3, 7], pytest.param([1, 2, 4, 5, 6], marks=pytest.mark.slow)], ids=str
)
def test_every_flipped_bit_of_the_last_line_is_found(path, bits):
    """No later line vouches for it: its own digest does, also for the brace without which it would
    look torn.
    """
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


def test_a_file_of_schema_1_is_read_and_continued(path):
    """Its lines have no digest of their own; those that are added have one."""
    entries, lines, head = filled(path, rounds=2).entries, [], "0" * 64
    for line in path.read_bytes().splitlines():
        record = {**json.loads(line), "prev": head}
        del record["sha256"]
        lines.append(json.dumps(record | ({"schema": 1} if "schema" in record else {})).encode())
        head = sha256(lines[-1])
    path.write_bytes(b"\n".join([*lines, b""]))
    old = Ledger(path, client=3)
    assert old.entries == entries
    old.charge(entry(2))
    assert Ledger(path, client=3).entries == (*entries, entry(2))
    path.write_bytes(path.read_bytes().replace(b'"round": 2', b'"round": 3'))
    with pytest.raises(LedgerError, match="line 4: the line does not match its digest"):
        Ledger(path, client=3)


def test_a_forged_chain_is_caught_by_a_checkpoint_only(path):
    """What a hash chain cannot do: someone who rewrites the whole file. The negative control of
    `verify_extends`.
    """
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
    with pytest.raises(LedgerError, match=r"of client 3, and not of client 5.*undamaged") as raised:
        Ledger(path, client=5)
    assert "restore" not in str(raised.value)
    foreign = encode_line({"schema": 3, "client": 3, "adjacency": "add/remove"}, "0" * 64)
    path.write_bytes(foreign + b"\n")
    with pytest.raises(LedgerError, match="line 1: expected the header of schema 2"):
        Ledger(path, client=3)


def test_negative_control_without_the_chain_an_edit_passes(path, monkeypatch):
    """If every line hashed to the same value, the tampering above would go unseen: the chain is
    what finds it.
    """
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
        # a line that lacks only its line feed is whole
        whole = sum(end <= length for end in ends[1:])
        torn = Ledger(path, client=3)
        assert torn.entries == entries[:whole], length
        torn.charge(entry(50))
        torn.charge(entry(51))
        assert Ledger(path, client=3).entries == (*entries[:whole], entry(50), entry(51)), length


def test_a_torn_line_is_removed_and_a_cut_line_that_was_released_is_found(path):
    filled(path, rounds=2)
    for torn, number in ((b'{"client": 3, "rou', 2), (b'{"clie', 3)):
        with open(path, "ab") as file:
            file.write(torn)
        Ledger(path, client=3).charge(entry(number))
    assert [e.round for e in Ledger(path, client=3).entries] == [0, 1, 2, 3]
    lines = path.read_bytes().split(b"\n")
    assert len(lines) == 6
    lines[2] = lines[2][:30]  # a released line, cut to look torn
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(LedgerError, match="line 4: it does not continue"):
        Ledger(path, client=3)


def test_torn_lines_that_older_versions_kept_are_skipped(path):
    """There the next line followed, and skipped them in its chain; also a torn header."""
    filled(path, rounds=3)
    header, *lines = path.read_bytes().splitlines()
    torn = [header[:40], header, lines[0], lines[1][:90], lines[1][:30], *lines[1:], b""]
    path.write_bytes(b"\n".join(torn))
    assert [e.round for e in Ledger(path, client=3).entries] == [0, 1, 2]
    assert read_entries(path) == Ledger(path, client=3).entries


def overwritten(content: bytes, count: int) -> bytes:
    return content[:-count] + b"\0" * count


DAMAGES = {
    "NUL bytes alone": lambda c: b"\0" * len(c),
    "NUL bytes and a line feed": lambda c: b"\0" * len(c) + b"\n",
    "NUL bytes over the last ones": lambda c: overwritten(c, 200),
    "NUL bytes over the last line feed": lambda c: overwritten(c, 1),
    "NUL bytes after all": lambda c: c + b"\0" * 512,
    "NUL bytes over the header": lambda c: b"\0" * c.index(b"\n") + c[c.index(b"\n") :],
    "every line cut": lambda c: b"\n".join(line[:-90] for line in c.split(b"\n")),
    "the last two lines cut": lambda c: b"\n".join(
        [*c.split(b"\n")[:-3], *(line[:-90] for line in c.split(b"\n")[-3:-1])]
    ),
    "a cut line with its line feed": lambda c: c[:-30] + b"\n",
    "the header cut": lambda c: c[:40] + c[c.index(b"\n") :],
    "the header cut, and the next one": lambda c: c[: c.index(b"\n") + 60].replace(b"}", b""),
    "no header": lambda c: c[c.index(b"\n") + 1 :],
    "the header of another client, cut": lambda c: c[:40].replace(b"3", b"0"),
    "other text at the end": lambda c: c + b"and more",
    "a line of another client, cut": lambda c: c + b'{"client": 0, "round": 7, ',
    "a line of another chain, cut": lambda c: c + b'{"client": 3, "round": 7, "prev": "1234',
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_no_crash_leaves_is_refused_and_nothing_is_written(damage, path):
    """Lost bytes once opened as a ledger that had spent nothing, or a step less."""
    filled(path)
    path.write_bytes(damaged := damage(path.read_bytes()))
    with pytest.raises(LedgerError, match=f"{path.name}.*restore the file"):
        Ledger(path, client=3).charge(entry(9))
    with pytest.raises(LedgerError):
        Ledger(path)
    assert path.read_bytes() == damaged


def test_a_torn_header_says_whose_ledger_begins_again(path):
    filled(path)
    content = path.read_bytes()
    for length in (1, 24, 25, 26, 40, content.index(b"\n") - 1):
        path.write_bytes(content[:length])
        assert load(path, None)[0] == (3 if length > 25 else -1)
        with pytest.raises(LedgerError, match="so no ledger of any client"):
            Ledger(path)
        if length > 24:
            with pytest.raises(LedgerError, match="another client than 0"):
                Ledger(path, client=0)
        Ledger(path, client=3).charge(entry(0))
        assert Ledger(path).client == 3


def test_a_planted_mistake_is_found(path, monkeypatch):
    """The negative control: if any text without an end were torn, the last charge would be lost."""
    filled(path)
    path.write_bytes(overwritten(path.read_bytes(), 200))
    monkeypatch.setattr("fedlsg.privacy.ledger_file.may_be_torn", lambda *given: True)
    assert len(Ledger(path, client=3).entries) == 3


def child(code: str, *arguments: object, stdin: int | None = None) -> subprocess.Popen:
    preamble = """
        import sys
        from fedlsg.privacy.ledger import Entry, Ledger
        def entry(round, attempt=0):
            return Entry(client=3, round=round, attempt=attempt, steps=2, sample_rate=0.2, noise_multiplier=1.5,
                         clip_norm=0.5, num_examples=300, mechanism="dp", reproducible=False)
        """
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(preamble) + textwrap.dedent(code),
        *map(str, arguments),
    ]
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, cwd=REPOSITORY, env=env, text=True
    )


@pytest.mark.slow
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
    acknowledged = max(
        [acknowledged, *(int(line) for line in process.stdout if line.endswith("\n"))]
    )
    process.wait()
    process.stdout.close()
    ledger = Ledger(path, client=3)
    assert len(ledger.entries) >= acknowledged + 1
    assert [e.round for e in ledger.entries] == list(range(len(ledger.entries)))
    ledger.charge(entry(10**6))
    assert Ledger(path, client=3).entries[-1].round == 10**6


@pytest.mark.slow
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
        [(3, "", number, 0) for number in range(60)]
        + [(3, "", 100, attempt) for attempt in range(3)]
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


def test_a_ledger_says_itself_whose_it_is(path):
    written = filled(path, rounds=2)
    read = Ledger(path)
    assert (read.client, read.entries) == (3, written.entries)
    read.charge(entry(9))
    assert len(written.entries) == 3


def test_without_a_client_a_path_without_a_ledger_is_no_epsilon_of_zero(path):
    with pytest.raises(LedgerError, match="no such file"):
        Ledger(path)
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="an empty file"):
        Ledger(path)


def test_a_ledger_that_has_begun_is_as_one_that_was_charged_at_once(path, tmp_path):
    Ledger(path, client=3).begin()
    assert (Ledger(path).client, Ledger(path).entries) == (3, ())
    once = path.read_bytes()
    Ledger(path).begin()
    assert path.read_bytes() == once
    ledger, other = Ledger(path), Ledger(tmp_path / "other.jsonl", client=3)
    for round in (1, 2):
        ledger.charge(entry(round))
        other.charge(entry(round))
    assert path.read_bytes() == other.path.read_bytes()
    assert ledger.snapshot() == other.snapshot() == Ledger(path).snapshot()
