"""Every command line of the documents is one that the programs take, with settings that exist and
are in range.
"""

import re
import shlex
from collections.abc import Iterator

import click
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from tests.documents.blocks import DOCUMENTS, commands, inline, name_of
from tests.documents.check_commands import (
    PLACEHOLDER,
    check,
    check_flwr,
    command_line,
    options_without_place,
)

BENCHMARK = re.compile(r"`(python (?:-m benchmarks\.|benchmarks/)[^`\n]+)`")


def problems(text: str) -> list[str]:
    """Command lines of a document that are wrong, each with the reason."""
    found = []
    sentences = inline(text)
    for line in [*commands(text, "fedlsg"), *sentences]:
        try:
            check(line, named=line in sentences)
        except (ValueError, KeyError, OSError, click.ClickException) as error:
            said = error.format_message() if isinstance(error, click.ClickException) else str(error)
            found += [] if "needs the package: pip install" in said else [f"{line}: {said}"]
    for line in commands(text, "flwr run"):
        try:
            check_flwr(line)
        except (ValueError, click.ClickException) as error:
            found.append(f"{line}: {error}")
    for line in [
        *commands(text, "python -m benchmarks"),
        *commands(text, "python benchmarks"),
        *BENCHMARK.findall(text),
    ]:
        try:
            found += [f"{line}: no option {option}" for option in options_without_place(line)]
        except FileNotFoundError as error:
            found.append(f"{line}: no file {error.filename}")
    return found


MISTAKES = "errors.md"
"""The page of typical mistakes: its commands are wrong, and ``benchmarks.errors`` runs them."""


def test_every_command_line_is_taken(reader):
    documents = [path for path in DOCUMENTS if path.name != MISTAKES]
    wrong = {name_of(path): found for path in documents if (found := problems(path.read_text()))}
    assert not wrong, "\n".join(
        f"{name}: {line}" for name, lines in wrong.items() for line in lines
    )


SMALL = {
    "run": ["--rounds", "2", "--engine", "local"],
    "compare": ["-c", "rounds=2", "--seeds", "1"],
    "calibrate": [],
    "partition": [],
    "list": [],
    "settings": [],
    "docs": [],
    "attack": ["--images", "1", "--seconds", "2"],
    "audit": [],
}
"""Commands that are run, and what makes them small."""
MEMBERSHIP = ["--shadows", "6", "-c", "rounds=2"]
LARGE = (
    "cifar10",
    "glue-sst2",
    "--preset",
    "all",
    "--ray-address",
    "trust=secure",
    "MIRROR",
    "--batch",
    "training",
)
"""Words of command lines that need data, a cluster, or minutes."""
FOUND = (0, None)


def lines(text: str) -> Iterator[list[str]]:
    """The words of the command lines that can run here, made small, in the order of the
    document.
    """
    for line in commands(text, "fedlsg"):
        name, *words = shlex.split(line, comments=True)[1:]
        if (
            name in SMALL
            and not any(
                PLACEHOLDER.search(word) or word in LARGE or "mlflow" in word for word in words
            )
            and "runs/2" not in line
        ):
            small = MEMBERSHIP if "--membership" in words else SMALL[name]
            yield [
                name,
                *words,
                *small,
                *(["--trials", "2"] if "--search" in words and "grid" not in words else []),
            ]


DOCUMENTS_WITH_LINES = [
    path for path in DOCUMENTS if "results" not in path.parts and list(lines(path.read_text()))
]


@pytest.fixture
def data(reader):
    """The tables that docs/own.md reads: 64 columns of pixels, the digit, the hospital."""
    pixels, digits = load_digits(return_X_y=True)
    columns = {f"pixel{place}": pixels[:200, place] for place in range(64)}
    rows = pa.table(
        {**columns, "digit": digits[:200], "hospital": [f"h{row % 3}" for row in range(200)]}
    )
    for name in ("train", "test"):
        pq.write_table(rows, reader / f"{name}.parquet")


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS_WITH_LINES, ids=name_of)
def test_the_commands_of_a_document_run(document, data, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    done = set()
    for words in lines(document.read_text()):
        if tuple(words) in done:
            continue
        done.add(tuple(words))
        status = command_line().main(words, prog_name="fedlsg", standalone_mode=False)
        falsified = words[0] == "audit" and "--plant" in words
        assert status == 1 if falsified else status in FOUND, words
