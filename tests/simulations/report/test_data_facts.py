"""What a page says of the data, and of what its user gave: facts of the test split and public
numbers, no name of a client, and words that make the same run.
"""

import csv
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from torch import nn

import fedlsg
from fedlsg.simulations.cli.command_line import merge
from fedlsg.simulations.planning.advice.alike_names import alike_line
from fedlsg.simulations.report.page_of_run.class_table import class_parts
from fedlsg.simulations.report.page_of_run.data_facts import data_facts
from fedlsg.simulations.report.page_of_run.run_page import run_page, typed_command
from fedlsg.simulations.settings.own_epsilons import text_of
from fedlsg.simulations.settings.settings import from_mapping, words_given
from fedlsg.simulations.storage.results import read_run
from tests.simulations.support.compare_cases import result
from tests.simulations.support.own import QUICK, TEST, TRAIN, build, quick

TOWNS = ("Aachen", "aachen ", "Bonn")


def table(path, rows, classes=("healthy", "ill", "unknown")):
    """Rows as a CSV file, with a town and a class by its name."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"lab{column}" for column in range(8)), "town", "state"])
        for at, (x, y) in enumerate(zip(*rows, strict=True)):
            writer.writerow([*map(float, x), TOWNS[at % 3], classes[int(y)]])
    return str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two CSV files, whose column of towns makes the clients."""
    base = tmp_path_factory.mktemp("facts")
    return fedlsg.simulate(
        **{name: value for name, value in QUICK.items() if name not in ("clients", "reproducible")},
        model=build,
        train=table(base / "train.csv", TRAIN),
        test=table(base / "test.csv", TEST),
        loss=nn.CrossEntropyLoss(),
        targets="state",
        partition="town",
        evaluate_clients=True,
        out=base / "run",
    )


def test_files_columns_classes_and_rows_are_on_the_page(run):
    read = read_run(Path(run.directory))
    facts = data_facts(read)
    assert facts["files"] == "test.csv, train.csv"
    assert facts["training rows"] == "60 examples of 3 clients, 20 each"
    assert facts["inputs"] == ", ".join(f"lab{column}" for column in range(8))
    assert facts["targets"] == "state"
    assert facts["classes"] == "0 healthy, 1 ill, 2 unknown"
    assert "clients.csv" in facts["clients"]
    page = unescape(run_page(read))
    assert [name for name, words in facts.items() if words not in page] == []
    assert "Bonn" not in page
    assert "Bonn" not in (Path(run.directory) / "start.json").read_text()


def test_files_of_clients_are_not_named(tmp_path):
    """The planted case: a file for each client has its name."""
    parts = {"Bonn": slice(0, 30), "Jena": slice(30, 60)}
    train = {
        name: table(tmp_path / f"{name}.csv", [one[rows] for one in TRAIN])
        for name, rows in parts.items()
    }
    test = table(tmp_path / "test.csv", TEST)
    inputs = [f"lab{column}" for column in range(8)]
    made = fedlsg.simulate(
        **{name: value for name, value in QUICK.items() if name != "clients"},
        model=build,
        train=train,
        test=test,
        loss=nn.CrossEntropyLoss(),
        inputs=inputs,
        targets="state",
        out=tmp_path / "run",
    )
    assert "Bonn" not in (Path(made.directory) / "start.json").read_text()
    assert "Bonn" not in run_page(read_run(Path(made.directory)))


def test_the_call_of_a_script_has_what_was_given(run):
    read = read_run(Path(run.directory))
    assert typed_command(read) == (
        "fedlsg.simulate(..., train='train.csv', targets='state', partition='town', "
        "method='dpsgd', evaluate_clients=True, noise_multiplier=2.0, rounds=1, sample_rate=0.2)"
    )
    assert "<h1>own data (train.csv) with dpsgd, seed 0" in run_page(read)
    start = {name: value for name, value in read.start.items() if name != "arguments"}
    before = replace(read, start=start)  # control: a run of a version before
    assert "partition" not in typed_command(before)
    assert "<h1>own with dpsgd, seed 0" in run_page(before)


def test_what_has_no_short_form_is_given_as_dots(tmp_path):
    """Lists of rows, functions and data sets of clients, whose names are the owner's."""
    parts = {"Bonn": slice(0, 30), "Jena": slice(30, 60)}
    made = quick(
        tmp_path / "run",
        train={name: (TRAIN[0][rows], TRAIN[1][rows]) for name, rows in parts.items()},
        transform=lambda rows: rows,
        num_classes=3,
    )
    typed = typed_command(read_run(Path(made.directory)))
    assert typed.startswith("fedlsg.simulate(..., transform=..., num_classes=3, method='dpsgd'")
    assert "Bonn" not in (Path(made.directory) / "start.json").read_text()


def test_a_typed_command_makes_the_same_settings():
    """What was given as a word stays one: the number would turn the rule off."""
    given = {"workload": "digits", "learning_rate": "x0.5", "rounds": "auto", "epsilon": 8.0}
    given |= {"evaluate_clients": True, "engine": "local"}
    settings = {"learning_rate": 0.4, "rounds": 40, "epsilon": 8.0, "evaluate_clients": True}
    made = result(0.8, settings=settings)
    object.__setattr__(made, "start", {"given": words_given(given)})
    words = typed_command(made).split()
    assert words[:3] == ["fedlsg", "run", "digits"]
    pairs = [word for word in words[3:] if "=" in word]
    rest = [word for word in words[3:] if word != "-c" and "=" not in word]
    options = {name[2:]: value for name, value in zip(rest[::2], rest[1::2], strict=True)}
    again = from_mapping(merge({"workload": "digits", **options, "engine": "local"}, pairs))
    assert again == from_mapping(given)


@pytest.mark.parametrize(
    ("named", "clients", "words"),
    [
        (False, 2, "--client-epsilons '#0=1, #1=0.5' --rounds 4"),
        (True, 2, "--client-epsilons ... --rounds 4"),  # control: others may read the page
        (False, 30, "--client-epsilons ... --rounds 4"),
    ],
)
def test_own_epsilons_are_given_by_number_where_nobody_has_a_name(named, clients, words):
    own = text_of({client: 1 / (client + 1) for client in range(clients)})
    made = result(0.8, settings={"client_epsilons": own, "rounds": 4})
    given = words_given({"workload": "digits", "client_epsilons": "site", "rounds": 4})
    object.__setattr__(made, "start", {"given": given, "rows": {"named": named}})
    assert typed_command(made) == f"fedlsg run digits {words}"
    if not named and clients == 2:  # so does a call with a dict
        given = words_given({"epsilon": {0: 1, 1: 0.5}, "rounds": 4})
        object.__setattr__(made, "start", {"given": given, "rows": {"named": False}})
        assert "--client-epsilons '#0=1, #1=0.5'" in typed_command(made)


def test_a_run_without_the_record_names_no_command():
    assert typed_command(result(0.8)) == ""
    assert data_facts(result(0.8)) == {}


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (None, None),
        (("Aachen", "Bonn"), None),
        (("Aachen", "Bonn", "aachen "), "alone are clients of their own: 'Aachen' and 'aachen '. "),
        (("St  Gallen", "St Gallen"), "'St  Gallen' and 'St Gallen'"),
        (("Aachen", "Aachen2"), None),
    ],
)
def test_names_that_differ_in_case_or_blanks_alone_are_named(names, words):
    found = alike_line(names)
    assert found is None if words is None else words in found


def test_a_run_says_so_before_it_starts(tmp_path, capsys):
    town = [TOWNS[at % 2] for at in range(60)]
    quick(tmp_path / "run", partition=town, clients=None, quiet=False)
    assert "differ in case or blanks alone" in capsys.readouterr().out.replace("\n", " ")


def test_recall_of_each_class_is_on_the_page_by_its_name(run):
    summary = read_run(Path(run.directory)).summary
    recalls = summary["recall_by_class"]
    assert [row["rows"] for row in recalls] == [int((TEST[1] == k).sum()) for k in range(3)]
    right = sum(row["rows"] * (row["recall"] or 0) for row in recalls)
    assert right / len(TEST[1]) == pytest.approx(summary["accuracy"])
    (table,) = class_parts(read_run(Path(run.directory)))
    assert {row.cells[0] for row in table.rows} == {"healthy", "ill", "unknown"}


def test_negative_control_private_rows_show_no_counts_of_their_classes(tmp_path):
    result = quick(tmp_path / "run", holdout=0.2, test=None)
    assert "recall_by_class" not in read_run(Path(result.directory)).summary


def test_the_refusal_of_holdout_names_a_way_out(tmp_path):
    with pytest.raises(ValueError, match="write two files of the table and give the second as tes"):
        quick(tmp_path / "run", evaluate_clients=True, holdout=0.2, test=None)
