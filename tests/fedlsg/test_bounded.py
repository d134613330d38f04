"""What a small file of somebody else's claims, or would be unpacked to, is refused before it takes
memory or time.
"""

import hashlib
import io
import json
import re
import shutil
import time
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

import fedlsg as package
from fedlsg import bounded
from fedlsg.simulations.models.pretrained import read_weights
from fedlsg.simulations.storage.atomic_files import (
    DamagedError,
    load_array,
    load_checkpoint,
    save_array,
    save_checkpoint,
    seal,
)
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import read_frame
from fedlsg.simulations.workloads.rows.table_files import read_npz
from tests.simulations.support.runs import run_local

MEGABYTE = 2**20
ZEROS = bytes(48 * MEGABYTE)
MOST = 24 * MEGABYTE
"""Bytes and seconds that the refusal of a bomb may take; unpacked, each takes more."""
SECONDS = 2.0


@contextmanager
def cheap() -> Iterator[None]:
    tracemalloc.start()
    began = time.monotonic()
    try:
        yield
        took, peak = time.monotonic() - began, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST
    assert took < SECONDS


def refused(read: Callable[[], object], *words: str, kind: type[Exception] = ValueError) -> None:
    with cheap(), pytest.raises(kind) as error:
        read()
    assert [word for word in words if not re.search(word, str(error.value))] == []


def npy(array: np.ndarray, shape: tuple[int, ...] | None = None) -> bytes:
    """An array in numpy's format, whose header may claim another shape."""
    stream = io.BytesIO()
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape or array.shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + array.tobytes()


def archive(members: dict[str, bytes], *, deflated: str = "") -> bytes:
    """An archive, of which one member is compressed."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as made:
        for name, content in members.items():
            kind = zipfile.ZIP_DEFLATED if name == deflated else zipfile.ZIP_STORED
            made.writestr(name, content, kind)
    return stream.getvalue()


def overlapping() -> bytes:
    """Many names for the bytes of one member."""
    content = bytearray(archive({"kept.npy": npy(np.zeros(MEGABYTE, np.uint8))}))
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a") as made:
        made.filelist += [made.filelist[0]] * 1000
        made._didModify = True  # type: ignore[attr-defined]
    return stream.getvalue()


KEPT = npy(np.zeros(8, np.uint8))
ARRAYS = {
    "another name": (archive({"kept.npy": KEPT, "x.npy": KEPT}), "an array 'x' too many"),
    "compressed": (
        archive({"kept.npy": npy(np.random.default_rng(0).random(64))}, deflated="kept.npy"),
        "compressed",
    ),
    "a bomb": (
        archive({"kept.npy": KEPT, "x.npy": ZEROS}, deflated="x.npy"),
        "unpacks to 50,[0-9,]+ bytes, expected at most",
    ),
    "a bomb of the right name": (
        archive({"kept.npy": npy(np.zeros(48 * MEGABYTE, np.uint8))}, deflated="kept.npy"),
        "unpacks to",
    ),
    "shared bytes": (overlapping(), "unpacks to"),
    "a claim": (
        archive({"kept.npy": npy(np.zeros(8, np.uint8), (10**12,))}),
        "claims 1,000,000,000,000 bytes",
    ),
    "a product": (archive({"kept.npy": npy(np.zeros(8), (10**9, 10**9))}), "claims"),
    "objects": (archive({"kept.npy": npy(np.zeros(1, "O"))}), "claims"),
    "no end": (archive({"kept.npy": KEPT})[:-30], ""),
}


@pytest.mark.parametrize("bomb", ARRAYS)
def test_arrays_are_no_larger_than_their_file(bomb):
    content, words = ARRAYS[bomb]
    refused(lambda: bounded.parse_arrays(content, {"kept"}), words)


def test_arrays_that_were_written_are_read():
    arrays = {"kept": np.arange(9, dtype=np.uint8), "L/a": np.ones((2, 3), np.float32)}
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    found = bounded.parse_arrays(stream.getvalue(), {*arrays, "R/a"})
    assert found.keys() == arrays.keys()
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def test_negative_control_numpy_alone_unpacks_a_bomb():
    content = io.BytesIO(ARRAYS["a bomb of the right name"][0])
    with pytest.raises(AssertionError), cheap(), np.load(content) as found:
        assert found["kept"].size == 48 * MEGABYTE


JSON = {
    "depth": b"[" * 10**6,
    "values": b"[" + b"[]," * 2**22 + b"[]]",
    "a number": b"[1" + b"0" * 4000 + b"]",
    "no text": b"\xff\xfe",
}
TOML = {
    "a key": "a." * 5_000 + "a = 1",
    "a key with spaces": "a . " * 5_000 + "a = 1",
    "quoted keys": '"a".' * 5_000 + "a = 1",
    "a table": "[" + "a." * 5_000 + "a]",
    "brackets": "x = " + "[" * 10**4,
    "braces": "x = " + "{a=" * 10**4,
    "behind texts": "x = '''[''' # [\ny = " + "[" * 10**4,
    "a number": "x = [{ y = 1" + "0" * 4000 + "}]",
    "a number of base 16": "x = 0x" + "f" * 30,
    "length": "x = [" + "[]," * 10**6 + "]",
}


@pytest.mark.parametrize("bomb", JSON)
def test_json_is_bounded(bomb):
    refused(lambda: bounded.parse_json(JSON[bomb]))


@pytest.mark.parametrize("bomb", TOML)
def test_toml_is_bounded(bomb, tmp_path):
    (tmp_path / "x.toml").write_text(TOML[bomb])
    refused(lambda: bounded.read_toml(tmp_path / "x.toml"))


def test_what_only_looks_like_a_bomb_is_read(tmp_path):
    text = (
        f'a = \'{"[" * 99}\' # {"[" * 99}\nb = """\n{"{" * 99}"""\nc = "\\"{"a." * 99}"\n'
        f"d = [{'1, ' * 99}]\ne = true\nf = {2**64 - 1}\n[g.h]\ni = 1.{'0' * 40}\n"
    )
    (tmp_path / "x.toml").write_text(text)
    found = bounded.read_toml(tmp_path / "x.toml")
    assert (len(found["d"]), found["f"], found["g"]) == (99, 2**64 - 1, {"h": {"i": 1.0}})
    assert bounded.parse_json(b'{"a": [1, -2, 3.5, true, null]}') == {"a": [1, -2, 3.5, True, None]}


def test_a_file_without_content_is_not_read(tmp_path):
    with (tmp_path / "x").open("wb") as file:
        file.truncate(2**40)
    refused(lambda: bounded.read_json(tmp_path / "x"), "1,099,511,627,776 bytes, expected at most")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    path = tmp_path_factory.mktemp("bounded") / "run"
    return run_local(path, rounds=1, clients=2, record_updates=True).directory


def checked(path: Path, content: bytes) -> None:
    """A file with a checksum that is right: its sender made it."""
    path.write_bytes(content)
    line = f"{hashlib.sha256(content).hexdigest()}  {path.name}\n"
    path.with_name(f"{path.name}.sha256").write_text(line)


def changed(path: Path, **values: object) -> None:
    record = json.loads(path.read_text())
    del record["sha256"]
    path.write_bytes(seal(record | values))


def deflate_frame(frame: Path) -> None:
    with zipfile.ZipFile(frame) as before:
        members = {name: before.read(name) for name in before.namelist()}
    checked(frame, archive(members | {"x.npy": ZEROS}, deflated="x.npy"))


FRAMES = {
    "deflated": lambda round: deflate_frame(round / "frame.npz"),
    "a size": lambda round: changed(round / "frame.json", size=10**12),
    "blocks": lambda round: changed(round / "frame.json", blocks=[], size=0),
    "no parameters": lambda round: changed(round / "frame.json", parameters=[]),
}


@pytest.fixture
def sent(recorded, tmp_path) -> RunDir:
    """A copy of the run, without its list of digests: its sender made another."""
    shutil.copytree(recorded.path, tmp_path / "run")
    for name in ("manifest.json", "manifest.jsonl"):
        (tmp_path / "run" / name).unlink()
        (tmp_path / "run/clients" / name).unlink()
    return RunDir(tmp_path / "run")


@pytest.mark.parametrize("bomb", FRAMES)
def test_a_recorded_frame_is_no_larger_than_its_files(bomb, sent):
    round = sent.path / "updates/round-000001"
    read_frame(round)
    FRAMES[bomb](round)
    refused(lambda: read_frame(round), "record the run again", kind=DamagedError)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("config.toml", "clients = 2", "clients = 1000000000000"),
        ("config.toml", "clients-per-round = 2", "clients-per-round = 1000000000000"),
        ("config.toml", "seed = 0", f"seed = 1{'0' * 4000}"),
        ("config.toml", "seed = 0", f"seed = 0\n{'a.' * 5_000}a = 0"),
        ("rounds.csv", "\n1,", f"\n1{'0' * 4000},"),
        ("summary.json", "{", "[" * 10**6),
    ],
)
def test_a_run_with_absurd_numbers_is_refused_by_the_name_of_its_file(file, before, after, sent):
    package.load_run(sent.path).rounds  # noqa: B018
    text = (sent.path / file).read_text()
    assert before in text
    (sent.path / file).write_text(text.replace(before, after, 1))

    def read() -> None:
        run = package.load_run(sent.path)
        assert run.rounds is None or run.summary is None

    refused(read, re.escape(file))


@pytest.mark.parametrize("file", ["config.toml", "summary.json", "rounds.csv", "manifest.json"])
def test_a_file_of_a_run_that_claims_a_terabyte_is_not_read(file, sent):
    with (sent.path / file).open("ab") as opened:
        opened.truncate(2**40)

    def read() -> None:
        run = package.load_run(sent.path)
        assert run.rounds is None or run.summary is None

    refused(read, re.escape(file))


def test_a_checkpoint_and_weights_are_no_larger_than_their_file(tmp_path):
    path = tmp_path / "latest.pt"
    save_checkpoint(path, tmp_path / "previous.pt", {"a": torch.ones(3)})
    assert load_checkpoint(path)["a"].tolist() == [1, 1, 1]
    stream = io.BytesIO()
    torch.save({"a": torch.zeros(16 * MEGABYTE)}, stream)
    with zipfile.ZipFile(stream) as made:
        members = {name: made.read(name) for name in made.namelist()}
    bomb = archive(members, deflated=next(name for name in members if name.endswith("data/0")))
    path.write_bytes(path.read_bytes()[:20] + hashlib.sha256(bomb).digest() + bomb)
    refused(lambda: load_checkpoint(path), "damaged", kind=DamagedError)
    (tmp_path / "weights.pt").write_bytes(bomb)
    refused(lambda: read_weights(tmp_path / "weights.pt"), "unpacks to")


def test_an_array_is_as_large_as_its_header_says(tmp_path):
    save_array(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    assert load_array(tmp_path / "a.npy").shape == (2, 3)
    checked(tmp_path / "a.npy", npy(np.zeros(8), (10**12,)))
    refused(lambda: load_array(tmp_path / "a.npy"), "claims 8,000,000,000,000 bytes")


def test_a_table_of_the_users_own_may_be_compressed_within_the_memory(tmp_path, monkeypatch):
    inputs, labels = np.zeros((1000, 9), np.float32), np.zeros(1000, np.int64)
    np.savez_compressed(tmp_path / "x.npz", inputs=inputs, labels=labels)
    assert read_npz(tmp_path / "x.npz")[0].shape == inputs.shape
    monkeypatch.setattr(bounded, "ram", lambda: 30_000)
    refused(lambda: read_npz(tmp_path / "x.npz"), "unpacks to 44,[0-9]+ bytes")
