"""A deployed client runs no code and reads no file that a server names; it starts from a copy of
its own.
"""

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fedlsg import user_code
from fedlsg.simulations.models.pretrained import digest_of
from tests.simulations.support.deployed import Server, entries, examples, payload, refusal, terms
from tests.simulations.support.own import MINE, write


def weights(path: Path, value: float = 0.01) -> Path:
    save_file({"hidden.weight": torch.full((64, 64), value), "hidden.bias": torch.zeros(64)}, path)
    return path


def test_a_copy_with_the_digest_is_used(tmp_path):
    theirs = weights(tmp_path / "server.safetensors")
    mine = weights(tmp_path / "client.safetensors")
    start = {"pretrained": str(theirs), "pretrained_sha256": digest_of(str(theirs))}
    server = Server.start(
        terms(tmp_path / "node", pretrained=str(mine)), tmp_path / "copy", **start
    )
    theirs.unlink()
    assert examples(server.query()) == 719
    payload(server.train(1))
    assert len(entries(tmp_path / "node")) == 1


@pytest.mark.parametrize(
    ("own", "announced", "text"),
    [
        (None, True, "this client needs a copy of its own"),
        ("same", False, "and the run config its digest"),
        ("other", True, "is missing, or is not the run's file"),
        ("missing", True, "is missing, or is not the run's file"),
    ],
)
def test_anything_else_is_refused_without_a_word_about_files_here(own, announced, text, tmp_path):
    theirs = weights(tmp_path / "server.safetensors")
    mine = tmp_path / "secret-place.safetensors"
    if own in ("same", "other"):
        weights(mine, 0.01 if own == "same" else 0.02)
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    server.node = terms(tmp_path / "node", pretrained=None if own is None else str(mine))
    server.config["pretrained"] = str(theirs)
    if announced:
        server.config["pretrained-sha256"] = digest_of(str(theirs))
    for reply in (server.query(), server.train(1)):
        assert text in refusal(reply)
        assert "secret-place" not in refusal(reply)
        assert reply.error.code == 1006
    assert not (tmp_path / "node" / "ledger.jsonl").exists() or entries(tmp_path / "node") == ()


@pytest.mark.parametrize(
    "name", ["weights.pt", "folder/weights.pt", "~/w.pt", "../w.pt", "/w.pt", "./a/b"]
)
def test_every_form_of_a_path_is_refused_alike_whether_it_is_there_or_not(
    name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    server.config["pretrained"] = name
    before = refusal(server.query())
    (tmp_path / "folder").mkdir()
    weights(tmp_path / "weights.pt")
    weights(tmp_path / "folder" / "weights.pt")
    assert refusal(server.query()) == before
    assert "this client needs a copy of its own" in before


@pytest.mark.parametrize("name", ["/a/folder", "~/folder", "owner/mine", "mine"])
def test_features_are_made_by_public_names_alone(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    server = Server.start(terms(tmp_path / "node"), tmp_path / "copy")
    server.config["features"] = name
    before = refusal(server.query())
    for folder in ("mine", "owner/mine"):
        (tmp_path / folder).mkdir(parents=True)
        weights(tmp_path / folder / "model.safetensors")
        (tmp_path / folder / "config.json").write_text('{"fedlsg": "0.1.0", "model": "mlp"}')
    assert refusal(server.query()) == before
    assert "makes features by patches, scattering" in before


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A file on the client's machine, and on its path, that leaves a mark where it runs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    path = write(
        tmp_path / "evil.py",
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n" + MINE,
    )
    yield path
    sys.modules.pop("evil", None)


NAMES = [
    "{file}:{what}",
    "evil:{what}",
    "os:system",
    "{file}",
    "fedlsg.simulations.workloads.images.digits:load",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("setting", "what"), [("workload", "workload"), ("method", "recipe")])
def test_code_that_a_run_config_names_is_refused_and_does_not_run(
    setting, what, name, evil, tmp_path
):
    node = terms(tmp_path / "node")
    server = Server.start(node, tmp_path / "copy")
    server.config[setting] = name.format(file=evil, what=what)
    for reply in (server.query(), server.train()):
        assert "names code, and this process runs none that a setting names" in refusal(reply)
    assert not (tmp_path / "ran").exists()
    assert "evil" not in sys.modules
    assert not [path for path in (tmp_path / "node").rglob("*.jsonl") if path.stat().st_size], (
        "nothing was spent"
    )


def test_negative_control_where_code_is_allowed_it_runs(evil, tmp_path):
    user_code.permit(f"{evil}:workload")
    user_code.load(f"{evil}:workload", "workload")
    assert (tmp_path / "ran").exists()
