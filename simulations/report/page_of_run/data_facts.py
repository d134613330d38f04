"""What a run was trained on, as facts for its page: files, columns, classes, rows of the clients.

All of it is public: columns and classes are those of the test split, and N_k is in the ledgers.
What only the owner may see, names and rows of each client, is in clients.csv.
"""

from collections.abc import Sequence

from fedlsg.simulations.report.words import printable
from fedlsg.simulations.storage.results import Result

SHOWN = 20
"""Names of columns or classes on a page, at most."""


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


def _rows_words(rows: dict[str, int]) -> str:
    counted, least, most = str(rows["counted"]), rows["fewest"], rows["most"]
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    clients = rows["clients"]
    if clients == 1:
        return f"{rows['all']:,} {counted} of one client"
    return f"{rows['all']:,} {counted} of {clients:,} clients, {each} each"


def _names_words(result: Result) -> str:
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
