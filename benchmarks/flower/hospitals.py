"""The federation of docs/deployment.md on this machine: real processes, TLS, keys, own data, no
shared folder.

Every command is the document's, as it is written there; only ports are replaced, by free ones.
"""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.flower.flower_app import free_port
from benchmarks.flower.flower_processes import carrying
from benchmarks.flower.how_to import Block, blocks
from benchmarks.flower.machines import Machine, machines
from fedlsg.privacy.ledger import Ledger

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs" / "deployment.md"
HOSPITALS = ("north", "south")
NAMES = ("server", *HOSPITALS)
PORTS = ("9092", "9094", "9095")
READY = {
    "server": "Uvicorn running on https://",
    "north": "SuperNode ID:",
    "south": "SuperNode ID:",
}
REFUSED = "Failed to activate SuperNode"
"""What Flower says to a key that is not registered, or whose node was killed less than a minute
ago.
"""


ROUNDS = 8
SET_UP, RUN, RETURN, AGAIN, KILLED = (1, 2, 3, 4, 5, 6), 7, 8, 9, 14
"""Chapters of the document."""

Federation = dict[str, Machine]


@contextmanager
def federation(root: Path, clone: Path = REPOSITORY) -> Iterator[Federation]:
    """The three machines; the server has a clone of the repository."""
    ports = {port: free_port() for port in PORTS}
    with machines(root, *NAMES, ports=ports) as made:
        (made["server"].home / "fedlsg").symlink_to(clone)
        yield made
    assert not any(carrying(machine.home / ".flwr") for machine in made.values())


def chapters(*numbers: int) -> list[Block]:
    """The commands of chapters of the document."""
    return [
        block for block in blocks(DOCUMENT, NAMES) if int(block.heading.split(".")[0]) in numbers
    ]


def follow(made: Federation, block: Block) -> str:
    """Run a block on its machines; what it starts is up on return."""
    printed = ""
    for name in block.machines:
        machine = made[name]
        if block.stays:
            machine.start_until(block.text, READY[name], REFUSED)
        else:
            printed += machine.run(block.text)
    return printed


def run_folders(made: Federation) -> list[Path]:
    """The run directories on the server, the first run first."""
    return sorted((made["server"].home / "federation" / "runs").glob("*"))


def finished_rounds(made: Federation) -> int:
    """Rounds that the first run has finished."""
    tables = [folder / "rounds.csv" for folder in run_folders(made)]
    if not tables or not tables[0].exists():
        return 0
    with tables[0].open(newline="") as file:
        return len(list(csv.DictReader(file)))


def ledger(made: Federation, name: str) -> Ledger:
    """A hospital's own ledger."""
    return Ledger(
        made[name].home / "federation" / "ledger" / "ledger.jsonl", client=HOSPITALS.index(name)
    )


def statuses(made: Federation) -> list[str]:
    """How Flower says that the runs ended, the last one first."""
    listed = json.loads(made["server"].run("flwr list hospitals --format json"))
    return [run["status"] for run in listed["runs"]]


def copies(folder: Path) -> dict[str, bytes]:
    """The server's copies of the ledgers in a run directory."""
    return {
        name: (folder / "ledger" / f"client-{HOSPITALS.index(name):06d}.jsonl").read_bytes()
        for name in HOSPITALS
    }
