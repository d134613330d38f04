"""Clients that a column names: the owner's files and messages say ``north``, files to share numbers;
grouped values are in no file; each client is measured on its own test rows, the worst first.
"""

import html
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from torch import nn

from fedlsg.privacy.ledger_file import merge
from fedlsg.simulations.report.page_of_run.client_table import client_charts, client_table
from fedlsg.simulations.report.terminals.progress import RoundDisplay
from fedlsg.simulations.report.words import named, outcome
from fedlsg.simulations.run.commands import with_names
from fedlsg.simulations.run.finished import load_run
from fedlsg.simulations.storage.round_tables import Row
from tests.simulations.support.own import TEST, TRAIN, quick, refused
from tests.simulations.support.runs import pages

SITES = ("north", "south", "east")
INPUTS = [f"x{i}" for i in range(8)]


def table(rows, site, **more):
    x, y = rows
    columns = {name: x[:, place] for place, name in enumerate(INPUTS)}
    patients = [f"PATIENT-{row % 7}" for row in range(len(y))]
    return pd.DataFrame({**columns, "label": y, "site": site, "patient": patients, **more})


TRAINED = table(TRAIN, np.resize(SITES, len(TRAIN[1])))
TESTED = table(TEST, ["north"] * 12 + ["south"] * 6 + ["west"] * 6)
DATA = {"train": TRAINED, "test": TESTED, "inputs": INPUTS, "partition": "site", "clients": None}


def names_in(folder, *names):
    """The files in which one of these texts is."""
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {
        path.relative_to(folder).as_posix()
        for path in found
        if any(name.encode() in path.read_bytes() for name in names)
    }


def words_of(page):
    """What a reader of a page sees."""
    text = re.sub(r"(?s)<(style|script).*?</\1>", "", page.read_text())
    return re.sub(r"\s*\|[|\s]*", " | ", html.unescape(re.sub(r"<[^>]+>", "|", text)))


@pytest.fixture(scope="module")
def run(tmp_path_factory, without_pages):
    out = tmp_path_factory.mktemp("sites") / "run"
    with pages(written=True):
        return quick(out, **DATA, evaluate_clients=True, rounds=2)


@pytest.mark.slow
def test_the_owners_file_alone_has_the_names(run):
    assert names_in(run.directory, *SITES) == {"clients.csv"}
    assert run.directory.joinpath("clients.csv").stat().st_mode & 0o077 == 0
    assert {row["name"]: row["client"] for row in run.clients} == {
        name: number for number, name in enumerate(sorted(SITES))
    }
    assert [row["examples"] for row in run.clients] == [20, 20, 20]
    assert load_run(run.directory, trust_code=True).clients == run.clients


def test_each_client_is_measured_on_its_own_test_rows(run):
    """Oracle: the model on the rows of each site. Rows of ``west``, which no client has, are in no
    part. Negative control: the accuracy over all rows is another one.
    """
    x, y = torch.from_numpy(TEST[0]).float(), torch.from_numpy(TEST[1]).long()
    with torch.no_grad():
        right = (run.model(x).argmax(1) == y).float()
    rows = {row["name"]: row for row in run.clients}
    for site, count in (("north", 12), ("south", 6)):
        own = torch.tensor((TESTED["site"] == site).tolist())
        assert rows[site]["test_rows"] == count
        assert rows[site]["accuracy"] == pytest.approx(float(right[own].mean()))
        assert rows[site]["accuracy"] != pytest.approx(run.summary["accuracy"])
    assert (rows["east"]["test_rows"], rows["east"]["accuracy"], rows["east"]["loss"]) == (
        0,
        None,
        None,
    )
    accuracies = [row["accuracy"] for row in run.clients]
    assert accuracies == [*sorted(accuracies[:2]), None]  # the worst first, without rows last
    assert run.summary["accuracy_by_client"]["worst"] == accuracies[0]


def test_the_page_shows_numbers(run):
    shown = words_of(run.directory / "report.html")
    assert "Accuracy of each client" in shown
    assert "Loss of each client" not in shown, "the table has it"
    worst = run.clients[0]
    assert (
        f"| {worst['client']} | {worst['test_rows']} | {100 * worst['accuracy']:.2f} % |" in shown
    )
    assert [row["client"] for row in run.summary["by_client"]] == [
        row["client"] for row in run.clients
    ]
    assert not any({"name", "examples"} & row.keys() for row in run.summary["by_client"])


def test_show_names_shows_them_in_files_to_share(tmp_path, with_pages):
    run = quick(
        tmp_path / "run",
        **DATA,
        evaluate_clients=True,
        show_names=True,
        reproducible=False,
        engine="local",
    )
    shared = {"summary.json", "report.html", "ledger.jsonl"}
    assert names_in(run.directory, *SITES) == {"clients.csv", *shared}
    worst = run.clients[0]
    assert f"| {worst['name']} | {worst['client']} |" in words_of(run.directory / "report.html")
    lines = (run.directory / "ledger.jsonl").read_text().splitlines()
    ledger = {(one["client"], one["name"]) for one in map(json.loads, lines)}
    assert ledger == {(row["client"], row["name"]) for row in run.clients}
    assert all(0 < row["epsilon"] <= run.epsilon for row in run.clients)
    assert run.epsilon in [row["epsilon"] for row in run.clients]


def test_a_planted_name_in_a_ledger_to_share_is_seen(tmp_path):
    """Negative control of the search for names."""
    merge([], tmp_path / "ledger.jsonl", SITES)
    assert names_in(tmp_path, *SITES) == set()  # no entry, no name
    (tmp_path / "planted").write_text("north")
    assert names_in(tmp_path, *SITES) == {"planted"}


def test_grouped_values_are_in_no_file(tmp_path, capsys):
    run = quick(
        tmp_path / "run",
        **{**DATA, "partition": "patient", "clients": 3},
        evaluate_clients=True,
        quiet=False,
    )
    assert names_in(run.directory, "PATIENT") == set()
    said = " ".join(capsys.readouterr().out.split())
    assert "partition=patient: 7 values, each whole with one of 3 clients" in said
    assert "2 to 3 values and 17 to 25 rows a client" in said
    assert "PATIENT" not in said
    assert "name" not in run.clients[0]
    assert sum(row["test_rows"] for row in run.clients) == len(TESTED)


def test_a_server_with_secret_draws_shows_nothing_new(tmp_path):
    secret = {"unit": "client", "trust": "server", "batch_size": 10, "sample_rate": None}
    run = quick(tmp_path / "run", **DATA, **secret, clients_per_round=2)
    assert names_in(run.directory, *SITES) == set()
    assert not run.directory.joinpath("clients.csv").exists()
    assert run.clients == []
    assert "by_client" not in run.summary
    with refused("show_names=true does not go with trust=server"):
        quick(tmp_path / "shown", **DATA, **secret, clients_per_round=2, show_names=True)
    with refused("evaluate_clients=true needs trust!=server", "which clients there are"):
        quick(tmp_path / "tested", **DATA, **secret, clients_per_round=2, evaluate_clients=True)


def test_targets_without_classes_have_a_loss(tmp_path, with_pages):
    def one() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 1), nn.Flatten(0))

    numbers = {
        split: DATA[split].assign(label=DATA[split]["label"] * 1.0) for split in ("train", "test")
    }
    run = quick(
        tmp_path / "run",
        **{**DATA, **numbers},
        model=one,
        loss=nn.MSELoss(),
        evaluate_clients=True,
    )
    losses = [row["loss"] for row in run.clients]
    assert losses == [*sorted(losses[:2], reverse=True), None]
    assert "accuracy_by_client" not in run.summary
    assert "Loss of each client" in words_of(run.directory / "report.html")


WRONG = {
    "no such column in test": (
        {"test": TESTED.drop(columns="site"), "evaluate_clients": True},
        (
            "evaluate_clients needs test rows of each client: partition=site makes",
            "no column 'site'",
        ),
    ),
    "no row of a client": (
        {"test": TESTED.assign(site="west"), "evaluate_clients": True},
        ("no test row has a site that a client has",),
    ),
    "lists of rows": (
        {"partition": [range(30), range(30, 60)], "evaluate_clients": True},
        ("evaluate_clients=true does not go with partition=given",),
    ),
    "fewer test rows than clients": (
        {"partition": "iid", "clients": 30, "evaluate_clients": True},
        ("evaluate_clients needs test rows of each client", "clients=30"),
    ),
    "no names": (
        {"partition": "iid", "clients": 2, "show_names": True},
        ("partition=iid with clients=2 gives none", "leave show_names out"),
    ),
    "grouped values have no names": (
        {"partition": "patient", "clients": 2, "show_names": True},
        ("partition=patient with clients=2 gives none",),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_shown_is_refused_before_anything_is_written(tmp_path, case):
    changes, words = WRONG[case]
    with refused(*words):
        quick(tmp_path / "run", **{**DATA, **changes})
    assert not (tmp_path / "run").exists()


SAID = {
    "client 1 replied in round 2, and its ledger": "north replied in round 2, and its ledger",
    "clients 0 and 2 both hold example 1": "east and south both hold example 1",
    "client 0 2: no reply; 1: it is client 1.": "east, south: no reply; north: it is north.",
    "clients 0, 1 are late": "east, north are late",
    "client 1 and 2 rows": "north and 2 rows",
    "client 7 is late, and clients 2 and 3": "client 7 is late, and clients 2 and 3",
    "of 2 clients, round 1; 2 steps": "of 2 clients, round 1; 2 steps",
    "client 1.5": "client 1.5",
}


@pytest.mark.parametrize("text", SAID)
def test_messages_name_clients(text):
    names = tuple(sorted(SITES))
    assert named(text, names) == SAID[text]
    assert named(text, None) == text
    with pytest.raises(RuntimeError) as error, with_names(names):
        raise RuntimeError(text)
    assert str(error.value) == SAID[text]


def test_a_name_that_is_a_number_cannot_be_taken_for_a_client():
    assert named("client 0 is late", ("10", "0")) == "client '10' is late"
    assert named("client 1 is late", ("a\x1b[2Jb", "c\x1b[2J")) == "c\\x1b[2J is late"


def test_rejected_clients_are_named_as_they_come():
    console = Console(record=True, width=200)
    display = RoundDisplay(console, 2, 0, tuple(sorted(SITES)))
    numbers = {"accuracy": 0.5, "loss": 1.0, "epsilon_max": 1.0, "epsilon_median": 1.0}
    display.on_round(Row(round=1, **numbers, reasons="0 2: no reply; 1: too large"))
    assert "round 1: east, south: no reply; north: too large" in console.export_text()


def test_the_largest_epsilon_is_somebodys():
    summary = {
        "accuracy": None,
        "loss": 1.0,
        "clients": 2,
        "epsilon_max": 2.0,
        "epsilon_median": 1.0,
        "private": True,
        "delta": 1e-5,
        "noise_multiplier": 1.0,
        "trust": "client",
        "accountant": {"client": 1},
        "by_client": [{"client": 1, "name": "north"}, {"client": 0, "name": "east"}],
    }
    assert "(largest of 2 clients, that of north, median 1.000;" in outcome(summary)["privacy"]
    for alike in ({"epsilon_median": 2.0}, {"by_client": []}):
        assert "that of" not in outcome({**summary, **alike})["privacy"]


def test_of_very_many_clients_the_worst_are_shown():
    rows = [
        {"client": one, "epsilon": 1.0, "test_rows": 5, "accuracy": one / 300, "loss": 1.0}
        for one in range(300)
    ]
    shown = client_table(rows, 20)
    assert [row.cells[0] for row in shown.rows] == list(map(str, range(20)))
    assert shown.note == "and 280 more: all are in clients.csv"
    (accuracy,) = client_charts(rows, 0.5)
    assert [one.kind for one in accuracy.series] == ["line", "level"]
    (loss,) = client_charts([{**row, "accuracy": None} for row in rows])
    assert len(loss.series[0].points) == 300
    few = client_charts(rows[:2])
    assert [name for _, name in few[0].x.ticks] == ["0", "1"]
