"""Other data than before, and a folder that was damaged: refused by name, or accepted at the
epsilon that is spent.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedlsg.privacy.ledger import LedgerError
from fedlsg.simulations import workloads
from fedlsg.simulations.client.node import conditions
from fedlsg.simulations.client.node.folder import NodeFolder
from fedlsg.simulations.client.node.node_config import read_terms
from fedlsg.simulations.client.node.refusals import TermsError
from fedlsg.simulations.planning.earlier_runs.data_digest import data_digest
from tests.simulations.client.node.test_budget import BUDGET, STEPS
from tests.simulations.support.deployed import (
    Server,
    digits_file,
    entries,
    examples,
    new_process,
    refusal,
    terms,
)
from tests.simulations.support.made_texts import make_bert, sentences, write_split

Change = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def first_pixel(inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    changed = inputs.copy()
    changed[17, 0, 3, 3] ^= 1
    return changed, labels


def other_label(inputs: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    changed = labels.copy()
    changed[17] = (changed[17] + 1) % 10
    return inputs, changed


CHANGES: dict[str, tuple[Change, str]] = {
    "one pixel": (first_pixel, "has other training rows"),
    "one label": (other_label, "has other training rows"),
    "another order": (lambda x, y: (x[::-1], y[::-1]), "has other training rows"),
    "one row removed": (
        lambda x, y: (x[:-1], y[:-1]),
        "another number of training rows than the 200",
    ),
    "one row added": (
        lambda x, y: (x[[*range(200), 0]], y[[*range(200), 0]]),
        "another number of training rows",
    ),
}


def change(path: Path, how: Change) -> None:
    with np.load(path) as file:
        inputs, labels = how(file["inputs"], file["labels"])
    np.savez(path, inputs=inputs, labels=labels)


def client_in(folder: Path) -> Server:
    """The server of a client with a file of its own, all in this folder."""
    return Server.start(
        terms(folder / "node", epsilon_max=BUDGET, data=str(folder / "rows.npz")), folder / "copy"
    )


@pytest.fixture(scope="module")
def spent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of ``spent``. Do not write to it."""
    folder = tmp_path_factory.mktemp("spent")
    digits_file(folder / "rows.npz")
    server = client_in(folder)
    assert examples(server.query()) == 200
    assert server.rounds(STEPS - 1) == STEPS - 1
    return folder


@pytest.fixture
def spent(spent_folder: Path, tmp_path: Path) -> Server:
    """A client with a file of its own that has spent its budget but for one round."""
    shutil.copytree(spent_folder, tmp_path, dirs_exist_ok=True)
    new_process()
    return client_in(tmp_path)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("what", CHANGES)
def test_other_data_than_before_are_refused_by_name(what, spent, tmp_path):
    how, text = CHANGES[what]
    change(tmp_path / "rows.npz", how)
    for reply in (spent.query(), spent.train(STEPS)):
        assert "[1006] this client" in refusal(reply)
        assert text in refusal(reply)
        assert "set accept-changed-data=true" in refusal(reply)
    assert len(entries(tmp_path / "node")) == STEPS - 1


@pytest.mark.thinned(2)
@pytest.mark.parametrize("what", CHANGES)
def test_accepted_data_go_on_at_the_epsilon_that_is_spent(what, spent, tmp_path):
    change(tmp_path / "rows.npz", CHANGES[what][0])
    again = Server.start(spent.node | {"accept-changed-data": True}, spent.copy, run="run-2")
    size = examples(again.query())
    assert again.rounds(10) == 1
    assert [e.num_examples for e in entries(tmp_path / "node")] == [200] * (STEPS - 1) + [size]
    assert "would pass epsilon-max" in refusal(again.train(2))
    new_process()
    same = Server.start(
        spent.node | {"epsilon-max": 3.0}, spent.copy, run="run-2"
    )  # accepted once, they are the client's data from then on
    assert examples(same.query()) == size


def test_n_k_is_fixed_within_a_run(spent, tmp_path):
    change(tmp_path / "rows.npz", CHANGES["one row removed"][0])
    again = Server.start(spent.node | {"accept-changed-data": True}, spent.copy)
    assert "had another number of training rows earlier in the run run-1" in refusal(
        again.train(STEPS)
    )
    assert len(entries(tmp_path / "node")) == STEPS - 1


def test_a_digest_that_does_not_see_the_rows_lets_them_change(spent, tmp_path, monkeypatch):
    """Negative control."""
    monkeypatch.setattr(
        "fedlsg.simulations.client.deployed.digest_of_rows", lambda base, key: "0" * 64
    )
    record = json.loads((tmp_path / "node/data.json").read_text()) | {"digest": "0" * 64}
    (tmp_path / "node/data.json").write_text(json.dumps(record))
    change(tmp_path / "rows.npz", first_pixel)
    assert examples(spent.query()) == 200


@pytest.mark.parametrize("name", ["secret.key", "data.json"])
def test_what_data_are_compared_with_is_missed(name, spent, tmp_path):
    (tmp_path / "node" / name).unlink()
    for reply in (spent.query(), spent.train(STEPS)):
        assert f"{name} is missing" in refusal(reply)
    again = Server.start(spent.node | {"accept-changed-data": True}, spent.copy)
    assert examples(again.query()) == 200
    assert again.train(STEPS).has_error() is False
    assert again.train(STEPS + 1).has_error() is True


@pytest.mark.parametrize("name", ["secret.key", "data.json", "ledger.jsonl"])
def test_a_damaged_file_is_refused_by_its_name(name, spent, tmp_path):
    path = tmp_path / "node" / name
    content = bytearray(path.read_bytes())
    path.write_bytes(
        content[:-1] if name == "secret.key" else bytes([content[0] ^ 1]) + bytes(content[1:])
    )
    for reply in (spent.query(), spent.train(STEPS)):
        assert name in refusal(reply)
        assert "restore" in refusal(reply)


@pytest.mark.parametrize("name", ["secret.key", "data.json", "ledger.jsonl"])
def test_no_flipped_bit_is_silent(name, spent, tmp_path):
    """Refused, or in what JSON leaves out; then the ledger and the record say the same."""
    node, path = read_terms(spent.node), tmp_path / "node" / name
    content, key = path.read_bytes(), (tmp_path / "node" / "secret.key").read_bytes()
    known = json.loads((tmp_path / "node" / "data.json").read_text())
    rows = workloads.load("digits", public_only=True).read(tmp_path / "rows.npz", tmp_path)
    assert known["digest"] == data_digest(rows, key=key)

    def digest(key: bytes) -> str:
        return data_digest(rows, key=key)

    form = known["form"]
    silent = 0
    for bit in np.random.default_rng(0).integers(0, 8 * len(content), 200):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        try:
            NodeFolder.open(node).admit(form, 200, digest)
        except (TermsError, LedgerError):
            continue
        silent += 1
        assert name == "data.json"
        assert json.loads(path.read_text()) == known
        assert len(entries(tmp_path / "node")) == STEPS - 1
    assert silent < 20
    path.write_bytes(content)
    NodeFolder.open(node).admit(form, 200, digest)


@pytest.mark.parametrize("lines", [0, 1, STEPS - 1])
@pytest.mark.parametrize("accept", [False, True])
def test_a_ledger_that_lost_its_last_lines_is_no_new_ledger(lines, accept, spent, tmp_path):
    """Cut off at the end of a line, or gone: the chain alone cannot see it."""
    path = tmp_path / "node" / "ledger.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))
    again = Server.start(spent.node | {"accept-changed-data": accept}, tmp_path / "no-copy")
    for reply in (again.query(), again.train(STEPS)):
        assert "not those that were charged (2 at least): restore the file from a copy" in refusal(
            reply
        )
    path.unlink()
    assert "not those that were charged" in refusal(again.query())


def test_a_folder_that_is_open_to_others_is_refused(tmp_path):
    node = tmp_path / "node"
    node.mkdir(mode=0o755)
    (node / "file").touch()
    server = Server.start(terms(node), tmp_path / "copy")
    assert f"is open to other users (mode 755): chmod 700 {node}" in refusal(server.query())
    (node / "file").unlink()
    assert examples(server.query()) == 719  # an empty one is made private
    assert [p.stat().st_mode & 0o077 for p in (node, *node.iterdir())] == [0, 0, 0, 0]


def test_an_interrupted_beginning_is_a_beginning(tmp_path):
    """The key was written and the process killed before it was used."""
    node = tmp_path / "node"
    node.mkdir(mode=0o700)
    (node / "secret.key").write_bytes(bytes(32))
    (node / "secret.key").chmod(0o600)
    assert examples(Server.start(terms(node), tmp_path / "copy").query()) == 719
    assert (node / "secret.key").read_bytes() == bytes(32)


@pytest.mark.slow
def test_a_server_learns_nothing_of_a_column_that_it_names(tmp_path, monkeypatch):
    """Before, the refusals of two class counts revealed whether the largest value of a column was
    between them.
    """
    columns = {
        "text": sentences(20, 1),
        "age": list(range(20, 40)),
        "sick": [row % 2 for row in range(20)],
    }
    write_split(tmp_path / "own", "train", columns)
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(conditions, "_refuse_paths", lambda settings: None)
    bert = str(make_bert(tmp_path / "bert"))
    public = {}
    for classes in (2, 30, 50):
        names = [f"class {number}" for number in range(classes)]
        rows = {
            "text": sentences(4, 2),
            "age": [0, 1, 0, 1],
            "label": [0, 1, 0, 1],
            "sick": [0, 1, 0, 1],
        }
        public[classes] = tmp_path / f"public-{classes}"
        for split in ("train", "test"):
            write_split(public[classes] / "set", split, rows, class_names=names)
    own = f"hf-text:{tmp_path / 'own'}"
    node = {"data": own, "input_columns": "text", "label_column": "sick", "classes": 2}

    def reason_for(label: str | None, count: int, **changes: object) -> str:
        monkeypatch.setenv("FEDLSG_DATA", str(public[count]))
        new_process()
        run = {
            "workload": "hf-text",
            "dataset": "set",
            "method": "bitfit",
            "model": bert,
            "max_length": 16,
        }
        run |= {} if label is None else {"label_column": label}
        reply = Server.start(
            terms(tmp_path / "node", **{**node, **changes}), tmp_path / "copy", **run
        ).query()
        return reply.error.reason if reply.has_error() else "accepted"

    assert reason_for("age", 30) == reason_for("age", 50)
    assert (
        "the run reads label_column='age', and this client's node config says 'sick'"
        in reason_for("age", 30)
    )
    assert reason_for("sick", 30).replace("30 classes", "") == reason_for("sick", 50).replace(
        "50 classes", ""
    )
    assert "node config: own data for workload 'hf-text' need classes" in reason_for(
        "sick", 2, classes=None
    )
