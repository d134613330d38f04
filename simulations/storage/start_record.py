"""start.json: how a run began, for its page. Nothing is computed from it, and ``resume`` reads
none of it.

    given     settings that its user gave, by name: "auto" or "x0.5" where that was given in the
              place of a number, else ""
    arguments what was given with data of a user's own, by argument: as Python writes it, "..." for
              functions and rows
    notes     what was said of them before the first charge, a sentence each
    before    of a run that starts from another one: its name, its epsilon and its rounds, with
              those that were before it
    rows      names of files; clients, and the examples or persons that they hold: the fewest, the
              most, and all together; whether the data give clients names, which are not here
"""

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
    """Write the file."""
    record = {
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
        return unseal(run.start, otherwise="remove it: its page alone reads it")
    except FileNotFoundError:
        return {}
