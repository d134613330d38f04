"""Server and clients compare their code: what the digest covers, and that every difference is
refused.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

import fedlsg.strategies.protocol.proofs
from fedlsg.simulations.client.client_app import app
from fedlsg.simulations.engines.local import LocalGrid, task_identity
from fedlsg.simulations.settings.settings import as_config, from_mapping
from fedlsg.strategies.protocol.nodes import Roster
from fedlsg.strategies.protocol.proofs import (
    CODE,
    PARTS,
    CodeIdentity,
    OtherCodeError,
    check_same_code,
    code_record,
    digest_of,
    own_identity,
)
from fedlsg.strategies.protocol.wire import identity
from tests.places import REPOSITORY


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """As a Flower bundle has it: without links."""
    for name in ("fedlsg", *PARTS):
        shutil.copytree(
            REPOSITORY / name,
            tmp_path / name,
            ignore=lambda folder, names: (
                {"__pycache__", *PARTS} if folder.endswith("fedlsg") else {"__pycache__"}
            ),
        )
    shutil.copy(REPOSITORY / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "fedlsg/privacy/mechanism.py",
        "strategies/recipes/lsg.py",
        "simulations/workloads/images/augment.py",
    ],
)
@pytest.mark.parametrize("change", ["edited", "removed", "renamed", "added"])
def test_every_change_of_a_file_that_runs_is_another_digest(name, change, copy):
    file = copy / name
    if change == "edited":
        file.write_text(file.read_text() + "\n")
    elif change == "added":
        file.with_name("another.py").touch()
    else:
        file.rename(file.with_suffix(".txt" if change == "removed" else ".old.py"))
    assert digest_of(copy / "fedlsg") != own_identity().digest


def test_a_clone_a_bundle_and_a_wheel_of_one_source_are_the_same_code(copy):
    """Planted mistake: a file of a wheel that is another."""
    assert digest_of(copy / "fedlsg") == own_identity().digest
    for name in PARTS:
        (copy / name).rename(copy / "fedlsg" / name)
    # what another distribution may have installed next to a wheel
    (copy / "strategies").mkdir()
    (copy / "strategies" / "__init__.py").touch()
    assert digest_of(copy / "fedlsg") == own_identity().digest
    (copy / "fedlsg" / "strategies" / "more.py").touch()
    assert digest_of(copy / "fedlsg") != own_identity().digest


@pytest.mark.parametrize(
    ("record", "found"),
    [
        (None, "does not say which code it runs"),
        ({"digest": "f" * 64}, r"fedlsg \S+ \(ffffffffffff\) from "),
        ({"version": "0.0.9"}, r"fedlsg 0\.0\.9 \("),
        ({"version": 1}, r"fedlsg 1 \("),
        ({"version": "0.0.9"}, "install the same version"),
        ({"digest": "f" * 64}, "the versions are equal and the files differ: take the same"),
    ],
)
def test_other_code_is_refused_and_both_are_named(record, found):
    content = RecordDict(
        {} if record is None else {CODE: ConfigRecord({**code_record(), **record})}
    )
    with pytest.raises(OtherCodeError, match=found) as error:
        check_same_code(content, "client 3")
    assert str(error.value).startswith("client 3 ")
    assert str(own_identity()) in str(error.value)


class Clients(LocalGrid):
    """Clients whose process runs this code."""

    def __init__(
        self, code: CodeIdentity, monkeypatch: pytest.MonkeyPatch, *, blind: bool = False
    ) -> None:
        def client(message: Message, context: object) -> Message:
            with monkeypatch.context() as patch:
                patch.setattr(fedlsg.strategies.protocol.proofs, "own_identity", lambda: code)
                return Message(identity(0, 5), reply_to=message) if blind else app(message, context)  # type: ignore

        settings = from_mapping({"clients": 1, "rounds": 1, "noise_multiplier": 2.0})
        super().__init__(client, 1, dict(as_config(settings)))


@pytest.mark.parametrize(
    ("blind", "why"),
    [
        (False, r"node \d+: the server runs fedlsg .*, client 0 runs fedlsg 9\.9"),
        (True, r"client 0 runs fedlsg 9\.9 .*, the server runs fedlsg"),
    ],
)
def test_either_side_refuses_the_other_before_a_round(blind, why, monkeypatch):
    """A client that does not compare (``blind``) is found out by the server."""
    other = replace(own_identity(), version="9.9", digest="0" * 64, folder="/other/clone")
    with task_identity(), pytest.raises(RuntimeError, match=why):
        Roster(1.0, declared=[5]).gather(Clients(other, monkeypatch, blind=blind), 1)


def test_a_question_without_an_identity_is_refused(monkeypatch):
    grid = Clients(own_identity(), monkeypatch)
    with task_identity():
        (reply,) = grid.send_and_receive(
            [Message(RecordDict(), next(iter(grid.get_node_ids())), MessageType.QUERY)]
        )
    assert reply.has_error()
    assert "the server does not say which code it runs" in reply.error.reason


def test_a_deployed_client_says_nothing_of_its_folders():
    """Its path may hold a user's name; only version and digest are compared."""
    folder = own_identity().folder
    assert folder in str(code_record())
    assert folder not in str(code_record(local=False))
    content = RecordDict({CODE: code_record(local=False)})
    check_same_code(content, "the server", local=False)
    content[CODE]["digest"] = "0" * 64
    with pytest.raises(
        OtherCodeError, match=r"the server runs fedlsg .* this process runs fedlsg"
    ) as error:
        check_same_code(content, "the server", local=False)
    assert folder not in str(error.value)
    with pytest.raises(OtherCodeError, match=folder):
        check_same_code(content, "the server")
