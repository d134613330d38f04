"""restore.READ is the list of what ``fedlsg resume`` opens of an old run directory, no more and no less."""

import json
import subprocess
import sys
from fnmatch import fnmatch

import pytest

from simulations.server.restore import READ
from tests.simulations.support.broken_runs import KINDS, break_run, copy_run

WATCHED = """
import json, os, sys
from pathlib import Path
folder = Path(sys.argv[1])
there = {str(path) for path in folder.rglob("*") if path.is_file()}
seen = set()

def watch(event, arguments):
    if event != "open" or not isinstance(arguments[0], (str, bytes)):
        return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if path in there and (arguments[2] & (os.O_RDONLY | os.O_WRONLY | os.O_RDWR)) != os.O_WRONLY:
        seen.add(os.path.relpath(path, folder))

sys.addaudithook(watch)
from rich.console import Console
from simulations.run import resume_command
for run in sorted(folder.iterdir()):
    resume_command(str(run), Console(file=open(os.devnull, "w")))
Path(sys.argv[2]).write_text(json.dumps(sorted(seen)))
"""
WITHOUT_A_DEPLOYMENT = {"replicas/client-*.bin"}
"""Only clients on machines of their own keep replicas."""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[set[str], set[str]]]:
    """By run: the files that were there, and those of them that a resuming process opened for reading."""
    folder, kept = tmp_path_factory.mktemp("watched"), tmp_path_factory.mktemp("kept")
    for kind in KINDS:
        broken = break_run(kept / kind, kind)
        copy_run(broken.unbroken.path, folder / f"finished-{kind}")
        copy_run(broken.interrupted, folder / f"interrupted-{kind}").directory.checkpoint.write_bytes(b"damaged")
    there = {run.name: {str(p.relative_to(run)) for p in run.rglob("*") if p.is_file()} for run in folder.iterdir()}
    log = kept / "seen.json"
    subprocess.run([sys.executable, "-c", WATCHED, str(folder), str(log)], check=True, timeout=600)
    found: dict[str, set[str]] = {name: set() for name in there}
    for path in json.loads(log.read_text()):
        name, _, inside = path.partition("/")
        found[name].add(inside)
    return {name: (there[name], found[name]) for name in there}


def test_nothing_else_is_opened(opened):
    for run, (_, seen) in opened.items():
        assert [path for path in seen if not any(fnmatch(path, pattern) for pattern in READ)] == [], run
        assert "checkpoint/latest.pt" in seen


def test_the_list_names_nothing_that_is_not_opened(opened):
    seen = set().union(*(seen for _, seen in opened.values()))
    assert {pattern for pattern in READ if not any(fnmatch(p, pattern) for p in seen)} == WITHOUT_A_DEPLOYMENT


@pytest.mark.parametrize(
    "unread", ["run.log", "events.out.tfevents.fedlsg", "report.html", "ledger.jsonl", "updates/*", "updates-truth/*"]
)
def test_these_were_there_and_were_not_opened(unread, opened):
    there = set().union(*(there for there, _ in opened.values()))
    seen = set().union(*(seen for _, seen in opened.values()))
    assert any(fnmatch(path, unread) for path in there)
    assert not any(fnmatch(path, unread) for path in seen)
