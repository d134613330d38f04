"""What a run says of each class: its test rows, and how many of them the model finds.

Rows are those of ``recall_by_class`` in summary.json, in the order of the classes.
"""

from fedlsg.simulations.report.pages.page import Part
from fedlsg.simulations.report.pages.table import Column, make_table
from fedlsg.simulations.report.words import percent, printable
from fedlsg.simulations.storage.results import Result

ON_PAGE = 50
"""Rows of the table, at most: the classes with the smallest recall."""
TITLE = "Recall of each class"
NOTE = (
    "The worst class first. Recall is the share of a class's test rows that the model classifies "
    "correctly; of 25 rows, it is known within 20 points."
)


def class_parts(result: Result) -> list[Part]:
    """The table of a finished run's classes; nothing where they were not measured."""
    names = result.summary.get("data", {}).get("classes", ())
    counts = result.summary.get("recall_by_class", ())
    classes = [
        {"name": names[number] if number < len(names) else number, **row}
        for number, row in enumerate(counts)
        if row["rows"]
    ]
    classes.sort(key=lambda row: row["recall"])
    hidden = len(classes) - ON_PAGE
    columns = [
        Column("class", lambda row: row["name"], words=lambda row: printable(str(row["name"]))),
        Column("test rows", lambda row: row["rows"], ",d"),
        Column("recall", lambda row: row["recall"], percent),
    ]
    note = f"{NOTE} {hidden:,} more are in summary.json." if hidden > 0 else NOTE
    return [make_table(columns, classes[:ON_PAGE], title=TITLE, note=note)] if classes else []
