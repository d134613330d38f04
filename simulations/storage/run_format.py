"""The format of a run directory: one number, in each checkpoint, and kept for the whole run.

It rises when an older fedlsg would misread a run, or go on with it as another run would. It rises
with each new setting, too: in the newest format, a setting that a run does not name was removed.
Only the newest one is begun. Which are read:

    1    0.1, commit d65587f: one ledger a client, no manifest
    2    0.1, commit 2b19fbd6: one ledger a run
    3    0.1, commit 5b5295d4: noise with an exact law, own code sees one example
    4    0.4: the number is written; forms of client data, persons, an epsilon for each client

Runs of 1 to 3 have no number. They go on with equal epsilon: their ledgers count, and a setting
that did not exist has its default, which is what a run did before. Noise of 1 and 2 was drawn by
another law, so a reproducible run of these does not end with the weights that it would have had.
A run of a newer fedlsg is refused, as a ledger of an unknown schema is.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedlsg.user_code.digest import version

FORMAT = 4
NUMBER, VERSION = "format", "fedlsg"
SINCE_FIRST: Mapping[str, Any] = {
    "times": {},
    "health": {"since": 0, "failures": {}, "due": {}, "asked": {}, "left_out": {}},
}
"""What checkpoints of format 1 have not, as of a run that has measured nothing of it."""


def stamp() -> dict[str, Any]:
    """What each checkpoint of a run says of the fedlsg that began it."""
    return {NUMBER: FORMAT, VERSION: version()}


def readable(state: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The state of a checkpoint as the newest format has it. Raises ValueError for one of a newer
    fedlsg; ``path`` names it.
    """
    written, by = (state.get("plan", {}).get(name) for name in (NUMBER, VERSION))
    if written is not None and written > FORMAT:
        raise ValueError(
            f"{path} is of a run that fedlsg {by} began in format {written}, and this fedlsg "
            f"{version()} reads formats up to {FORMAT}: install fedlsg {by} to go on with the run, "
            "or to export its model and its ledger"
        )
    return dict(state) if written is not None else {**SINCE_FIRST, **state}
