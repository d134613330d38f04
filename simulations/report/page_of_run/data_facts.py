"""Facts about the data of a run, for its page: files, columns, classes, rows of the clients.

All of it is public: columns and classes are those of the test split, and N_k is in the ledgers.
Names and rows of each client, which only the owner may see, are in clients.csv.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fedlsg.simulations.report.words import printable
from fedlsg.simulations.storage.results import Result

SHOWN = 20
"""The most names of columns or classes on a page."""


def data_facts(result: Result) -> dict[str, str]:
    """Facts by their names; empty for a run that records none."""
    data, rows = result.summary.get("data", {}), result.start.get("rows", {})
    files = rows.get("files", ())
    facts = {
        "files": ", ".join(map(printable, files)),
        "training rows": _rows_words(rows) if "clients" in rows else "",
        "inputs": _listed(data.get("inputs", ())),
        "targets": _listed(data.get("targets", ())),
        "classes": _listed([f"{at} {name}" for at, name in enumerate(data.get("classes", ()))]),
        "clients": _names_words(result) if rows.get("named") else "",
    }
    return {name: words for name, words in facts.items() if words}


def _rows_words(rows: Mapping[str, Any]) -> str:
    """How many rows the clients have, in words."""
    counted, least, most = rows["counted"], rows["fewest"], rows["most"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    clients = rows["clients"]
    if clients == 1:
        return f"{rows['all']:,} {counted} of one client"
    return f"{rows['all']:,} {counted} of {clients:,} clients, {each} each"


def _names_words(result: Result) -> str:
    """Where the names of clients are."""
    if result.settings.get("show_names"):
        return "shown by the names that the data give them"
    return (
        "shown by their numbers; their names, and the rows of each, are in clients.csv of the run "
        "directory, which is the owner's (show_names=true puts the names here)"
    )


def _listed(names: Sequence[object]) -> str:
    """Names, the first ones and the last one of many, with their number."""
    words = [printable(name) for name in names]
    if len(words) <= SHOWN:
        return ", ".join(words)
    return ", ".join([*words[: SHOWN - 1], "...", words[-1]]) + f" ({len(words):,})"
