"""The format of a run directory: a number in each checkpoint, the same for the whole run.

The number rises when an older fedlsg would misread a run, or continue it differently. It rises with
each new setting, too: in the newest format, a setting that a run does not name was removed. New
runs have the newest format. These formats can be read:

    1    0.1, commit d65587f: one ledger a client, no manifest
    2    0.1, commit 2b19fbd6: one ledger a run
    3    0.1, commit 5b5295d4: noise with an exact law, own code sees one example
    4    0.4: the number is written; forms of client data, persons, an epsilon for each client

Runs of formats 1 to 3 have no number. They continue with equal epsilon: their ledgers count, and a
setting that did not exist has its default, which is what such a run did. Formats 1 and 2 drew noise
from another law: a reproducible run of these, continued today, ends with other weights.
A run of a newer format is refused, like a ledger of an unknown schema.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.user_code.digest import version

FORMAT = 4
"""The newest format."""
NUMBER, VERSION = "format", "fedlsg"
"""Keys in a checkpoint's plan: the format, and the version of fedlsg that began the run."""
SINCE_FIRST: Mapping[str, Any] = {
    "times": {},
    "health": {"since": 0, "failures": {}, "due": {}, "asked": {}, "left_out": {}},
}
"""Entries that checkpoints of format 1 lack, as of a run that has measured nothing yet."""


def stamp() -> dict[str, Any]:
    """The format and the version of fedlsg, for the checkpoints of a run that begins now."""
    return {NUMBER: FORMAT, VERSION: version()}


def readable(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The state of the checkpoint at ``path``, with the entries of the newest format.

    Raises ValueError for a checkpoint of a newer format.
    """
    written, by = (state.get("plan", {}).get(name) for name in (NUMBER, VERSION))
    if written is not None and written > FORMAT:
        raise ValueError(
            f"{path} is of a run that fedlsg {by} began in format {written}, and this fedlsg "
            f"{version()} reads formats up to {FORMAT}: install fedlsg {by} to go on with the run, "
            "or to export its model and its ledger"
        )
    return dict(state) if written is not None else {**SINCE_FIRST, **state}
