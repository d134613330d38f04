"""start.json: how a run began, for its page. Nothing is computed from it, and ``resume`` reads
none of it.

    given     names of the settings that its user gave
    notes     what was said of them before the first charge, a sentence each
    before    of a run that starts from another one: its name, its epsilon and its rounds, with
              those that were before it
"""

from collections.abc import Collection, Sequence

from fedlsg.simulations.storage.atomic_files import Record, seal, unseal, write_atomically
from fedlsg.simulations.storage.run_directory import RunDir


def write_start(
    run: RunDir, *, given: Collection[str], notes: Sequence[str], before: Record
) -> None:
    """Write the file; nothing where there is nothing to say, as in a run of ``flwr run``."""
    if not (given or notes or before):
        return
    record = {"given": sorted(given), "notes": list(notes), "before": before}
    write_atomically(run.start, seal(record, indent=2))


def read_start(run: RunDir) -> Record:
    """What ``write_start`` wrote; empty for a run without it. Raises DamagedError."""
    try:
        return unseal(run.start, otherwise="remove it: its page alone reads it")
    except FileNotFoundError:
        return {}
