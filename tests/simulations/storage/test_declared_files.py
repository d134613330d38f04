"""Every kind of run leaves the declared files, each with the mode of its class; docs/files.md is
the declaration.
"""

import os
import shutil
import stat
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs._sphinx.files import HEAD, PAGE, anew
from fedlsg.simulations.cli import command_line as cli
from fedlsg.simulations.planning.base.disclosure import closed_folders
from fedlsg.simulations.storage.declared import AT_SERVER, COMMANDS, NODE, RUN, class_of, find
from fedlsg.simulations.storage.manifest import all_files
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.cache import load_or_build
from tests.simulations.support.broken_runs import KINDS as BROKEN
from tests.simulations.support.broken_runs import leave_old_ledgers, resumed
from tests.simulations.support.deployed import Server, digits_file, terms
from tests.simulations.support.runs import run_local, stopped_after

SECRET_NOISE = {"reproducible": False, "record_updates": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"callbacks": "best-model", "evaluate_clients": True, **SECRET_NOISE},
    "reproducible": {"record_updates": True},
    "sgd": {"method": "sgd", "noise_multiplier": None, **SECRET_NOISE},
    "memory": {"method": "topk", "noise_multiplier": None, **SECRET_NOISE},
    "shuffled": {"sampling": "shuffle", "sample_rate": None, "batch_size": 100, **SECRET_NOISE},
    "probed": {**BROKEN["steps"], **SECRET_NOISE},
    "chosen": {"method": "dp-ssgd", "indices": "explicit", **SECRET_NOISE},
    "held-out": {"holdout": 0.2, **SECRET_NOISE},
    "aggregate": {"trust": "aggregate", "clients": 3, "min_survivors": 2, **SECRET_NOISE},
    "secure": {"trust": "secure", "clients": 3, "min_survivors": 3, "colluders": 1, **SECRET_NOISE},
    "server": {
        "unit": "client",
        "trust": "server",
        "sample_rate": None,
        "batch_size": 20,
        "clients": 20,
        "local_steps": 2,
        "clients_per_round": 9,
        "downlink": "sparse",
        **SECRET_NOISE,
    },
}
"""Between them, and with ``made``, they leave every declared file."""
ELSEWHERE = (
    "code.json",
    "start.json",
    "live.html",
    "wandb/**",
    "*-run-id",
    "best/*",
    "updates/round-*/kept.npy*",
    "attack*",
    "before-after*",
    "membership*",
    "audit*",
    "inspection/**",
)
"""Left by libraries that tests do not have, by other options, and by slow commands."""
Made = dict[str, tuple[Path, tuple[str, ...]]]


def fedlsg(*arguments: str) -> None:
    """The command, which must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedlsg", *arguments])
        with pytest.raises(SystemExit) as end:
            cli.main()
    assert not end.value.code, arguments


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Every kind of run, and commands that look at one, under an umask that closes nothing: folder,
    closed folders.
    """
    folder = tmp_path_factory.mktemp("kinds")
    folder.chmod(0o755)
    before = os.umask(0)
    try:
        found: Made = {}
        for name, settings in KINDS.items():
            run = run_local(folder / name, **{"rounds": 1} | settings)
            assert run.plan is not None
            found[name] = run.path, closed_folders(run.plan)
        repaired = stopped_after(1, folder / "repaired", reproducible=False)
        leave_old_ledgers(repaired)
        repaired.directory.checkpoint.write_bytes(b"damaged")
        resumed(repaired)
        found["repaired"] = repaired.path, ()
        run = str(folder / "plain")
        fedlsg("export", run)
        fedlsg("payload", run, "--round", "1", "--client", "0", "--out", str(folder / "public.npz"))
        fedlsg(
            "payload",
            str(folder / "sgd"),
            "--round",
            "1",
            "--client",
            "0",
            "--out",
            str(folder / "private.npz"),
        )
        fedlsg("partition", "digits", "--out", run)
        fedlsg("report", run)
        yield found
    finally:
        os.umask(before)


def mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.stat().st_mode))[2:]


def wrong(folder: Path, closed: tuple[str, ...]) -> dict[str, str]:
    """Files that are not declared, or whose mode is not that of their class."""
    found = {}
    for name in all_files(folder):
        declared = find(name)
        if declared is None:
            found[name] = "not declared"
            continue
        kind = class_of(name, declared, closed)
        if mode(folder / name) != ("666" if kind == "public" else "600"):
            found[name] = f"{kind}, and its mode is {mode(folder / name)}"
    return found


@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", [*KINDS, "repaired"])
def test_every_file_is_declared_and_has_the_mode_of_its_class(name, made):
    folder, closed = made[name]
    assert wrong(folder, closed) == {}
    for inside in closed:
        assert not (folder / inside).exists() or mode(folder / inside) == "700"
    for secret in ("clients", "updates-truth", "inspection"):
        assert {
            mode(path) for path in [folder / secret, *(folder / secret).rglob("*")] if path.is_dir()
        } <= {"700"}


def test_what_is_private_by_hand(made):
    """The list of the issue, and what a payload becomes in another file."""
    closed = {name: closed for name, (_, closed) in made.items() if closed}
    assert closed == {
        "reproducible": (".",),
        "sgd": (".",),
        "memory": (".",),
        "held-out": (".",),
        "server": ("checkpoint",),
        "aggregate": ("checkpoint/outbox", "updates"),
    }
    base = made["plain"][0].parent
    assert mode(base / "aggregate/checkpoint/outbox/client-000000.bin") == "600"
    assert mode(base / "sgd/updates/round-000001/client-000000.bin") == "600"
    assert (mode(base / "public.npz"), mode(base / "private.npz")) == ("666", "600")


def test_a_deployed_clients_folder_is_its_owners(tmp_path):
    before = os.umask(0)
    try:
        tmp_path.chmod(0o755)
        node = tmp_path / "node"
        data = digits_file(tmp_path / "rows.npz")
        server = Server.start(
            terms(node, data=data),
            tmp_path / "copy.jsonl",
            sampling="shuffle",
            sample_rate=None,
            batch_size=50,
        )
        server.query()
        assert not server.train().has_error()
    finally:
        os.umask(before)
    names = all_files(node)
    assert [name for name in names if find(name, NODE) is None] == []
    assert {find(name, NODE).pattern.rpartition("/")[2] for name in names} >= {
        "client-*.bin",
        "batches.key",
        "secret.key",
    }
    assert {mode(path) for path in node.rglob("*") if path.is_file()} == {"600"}
    assert {mode(path) for path in (node, *node.rglob("*")) if path.is_dir()} == {"700"}


def test_every_declared_file_was_made(made):
    names = [name for folder, _ in made.values() for name in all_files(folder)]
    left = {
        one.pattern for one in (*RUN, *COMMANDS) if not any(find(name) is one for name in names)
    }
    assert [
        pattern for pattern in left if not any(fnmatchcase(pattern, one) for one in ELSEWHERE)
    ] == []


@pytest.mark.slow
def test_what_commands_write_next_to_a_run_is_its_owners(made, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(made["plain"][0], run)
    before = os.umask(0)
    try:
        run.chmod(0o777)
        fedlsg("attack", str(run), "--images", "1", "--seconds", "0.1")
        fedlsg("audit", str(run), "--canaries", "32")
        fedlsg("inspect", str(run), "--examples", "2")
    finally:
        os.umask(before)
    new = set(all_files(run)) - set(all_files(made["plain"][0]))
    assert {name.partition("/")[0] for name in new} >= {
        "attack.html",
        "attack.json",
        "audit.json",
        "inspection",
    }
    assert {find(name) in COMMANDS and mode(run / name) for name in new} == {"600"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_public_manifest_names_public_files_alone(kind, made):
    """A digest, a size or a name of another file would be a release of its own."""
    folder, closed = made[kind]
    named = RunDir(folder).path / "manifest.json"
    content = named.read_text() + named.with_suffix(".jsonl").read_text()
    inside = [one for one in closed if one != "."]  # a closed directory has a closed manifest
    for name in all_files(folder):
        declared = find(name)
        assert declared is not None
        if class_of(name, declared, inside) != "public":
            assert f'"{name}"' not in content
    if kind == "server":
        public = [
            n
            for n in all_files(folder)
            if (one := find(n)) is not None and class_of(n, one, closed) == "public"
        ]
        assert AT_SERVER.files is not None
        unknown = [
            name for name in public if not any(fnmatchcase(name, one) for one in AT_SERVER.files)
        ]
        assert unknown == []


def test_the_page_has_every_file():
    page = PAGE.read_text()
    assert page == anew(page), "make the tables again: python -m docs._sphinx.files"
    assert anew(page.replace("| `run.log` |", "| `another.log` |")) == page
    assert page.count(HEAD) == 3


def test_the_cache_of_a_user_is_its_owners_and_a_shared_one_stays_shared(tmp_path):
    before = os.umask(0o022)
    try:
        (tmp_path / "shared").mkdir()
        for name in ("own", "shared"):
            load_or_build(
                tmp_path / name, "key", lambda: {"rows": np.zeros(2)}, progress=lambda text: None
            )
    finally:
        os.umask(before)
    assert [
        mode(tmp_path / "own" / name) for name in (".", "key", "key/rows.npy", "key/manifest.json")
    ] == [
        "700",
        "700",
        "600",
        "600",
    ]
    assert [mode(tmp_path / "shared" / name) for name in ("key", "key/rows.npy")] == ["755", "644"]
