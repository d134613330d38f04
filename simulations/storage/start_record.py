"""start.json: how a run began, for its page. Nothing is computed from it.

id        16 random hex digits, which no other run has
given     settings that the user gave, by name: "auto" or "x0.5" if that was given instead of a
          number, else ""
arguments arguments of data of a user's own, by name: as Python writes them, "..." for functions
          and rows
notes     sentences about these settings, shown before the first charge
before    of a run that starts from another run: the name, epsilon and rounds of that run, with
          those of the runs before it
rows      names of files; whether the model's inputs are images; clients, and the examples or
          persons that they hold: the fewest, the most, and all together; whether the data give
          clients names (the names are not here)
"""

import secrets
from collections.abc import Mapping, Sequence

from fedlsg.simulations.storage.atomic_files import Record, seal, unseal, write_atomically
from fedlsg.simulations.storage.run_directory import RunDir


def write_start(
    run: RunDir,
    *,
    given: Mapping[str, str],
    arguments: Mapping[str, str],
    notes: Sequence[str],
    before: Record,
    rows: Record,
) -> None:
    """Write start.json; the arguments are the other entries of the header."""
    record = {
        "id": secrets.token_hex(8),
        "given": dict(given),
        "arguments": dict(arguments),
        "notes": list(notes),
        "before": before,
        "rows": rows,
    }
    write_atomically(run.start, seal(record, indent=2))


def read_start(run: RunDir) -> Record:
    """What ``write_start`` wrote; empty for a run without it. Raises DamagedError."""
    try:
        return unseal(run.start, otherwise="remove it: only the page of the run reads it")
    except FileNotFoundError:
        return {}
