"""What a run releases does not follow from a number of rows that is secret: of a person where the
unit is one, of a client where that is the unit.

Two data sets differ in the rows of one person, or of one client. Whatever others may see of the two
runs is compared, but for what noise changes. The rules of before are the negative controls.
"""

import json
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

import fedlsg
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.units import CLIENT, EXAMPLE
from fedlsg.simulations import workloads
from fedlsg.simulations.engines.choice import seconds_of
from fedlsg.simulations.planning.base import prepare
from fedlsg.simulations.planning.earlier_runs import continuity
from fedlsg.simulations.planning.earlier_runs.continuity import fingerprint
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings import automatic
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base.parts import digest
from fedlsg.simulations.workloads.partition import client_parts, deal_persons
from fedlsg.training.persons import numbers_of

PERSONS, CLIENTS, MOVED = 24, 6, 3
"""Persons or clients, and the one whose number of rows is another in the second data set."""
NAMES = list("abcd")
OF_NOISE = {
    "accuracy",
    "loss",
    "accuracy_by_split",
    "recall_by_class",
    "sha256",
    "prev",
    "data_sha256",
    "id",
}
OF_TIME = {"seconds", "wall_seconds", "transfer_seconds", "start", "hardware", "time", "run-dir"}


def drawn(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(seed).normal(size=(count, len(NAMES))).astype("float32")
    return x, (x[:, 0] > 0).astype(int)


def public_rows() -> pd.DataFrame:
    x, y = drawn(40, 999)
    return pd.DataFrame(x, columns=NAMES).assign(label=y, ward=0, patient="nobody")


def of_persons(rows: int, *, first: bool = False) -> dict[str, Any]:
    """Persons of three rows, two in a ward; one of them has so many, at the beginning or not."""
    each = []
    for person in range(PERSONS):
        x, y = drawn(rows if person == MOVED else 3, person)
        frame = pd.DataFrame(x, columns=NAMES)
        each.append(frame.assign(label=y, ward=person // 2, patient=f"p{person:02d}"))
    if first:
        each = [each[MOVED], *each[:MOVED], *each[MOVED + 1 :]]
    table = pd.concat(each, ignore_index=True)
    return {"train": table, "test": public_rows(), "inputs": NAMES, "targets": "label"}


def of_clients(rows: int) -> dict[str, Any]:
    """Clients of 12 rows; one of them has so many."""
    parts = [drawn(rows if client == MOVED else 12, client) for client in range(CLIENTS)]
    return {"train": parts, "test": drawn(40, 999)}


PERSON = {"unit": "patient", "delta": 1e-3, "clients": 2}
CLIENT_LEVEL = {"unit": "client", "trust": "server", "delta": 1e-2, "clients_per_round": 3}
Data = Callable[..., dict[str, Any]]
CASES: dict[str, tuple[Data, dict[str, Any]]] = {
    "persons, batch size": (of_persons, {**PERSON, "batch_size": 6}),
    "persons, batch size and epochs": (of_persons, {**PERSON, "batch_size": 6, "epochs": 30}),
    "persons, nothing given": (of_persons, PERSON),
    "persons, few rounds": (of_persons, {**PERSON, "batch_size": 6, "rounds": 3}),
    "persons, wards dealt": (
        of_persons,
        {**PERSON, "partition": "ward", "clients": 5, "batch_size": 2, "evaluate_clients": True},
    ),
    "clients, batch size": (of_clients, {**CLIENT_LEVEL, "batch_size": 5}),
    "clients, rounds": (of_clients, {**CLIENT_LEVEL, "batch_size": 5, "rounds": 3}),
    "clients, rounds of the rule": (
        of_clients,
        {**CLIENT_LEVEL, "batch_size": 5, "rounds": "auto", "learning_rate": 0.1},
    ),
    "clients, secure": (
        of_clients,
        {**CLIENT_LEVEL, "trust": "secure", "clients_per_round": CLIENTS, "batch_size": 5},
    ),
}
OTHERS = {
    of_persons: ({"rows": 4}, {"rows": 90}, {"rows": 4, "first": True}),
    of_clients: ({"rows": 11}, {"rows": 1}, {"rows": 300}),
}
"""Other numbers of rows of the one person, or client."""
USUAL = {of_persons: {"rows": 3}, of_clients: {"rows": 12}}


def plan_of(data: Data, settings: dict[str, Any], **rows: Any):
    """The plan of a run on these data."""
    given = {"epsilon": 8, "engine": "local", **settings}
    own = data(**rows)
    if settings["unit"] == "patient":
        own |= {"unit": "patient"}
    made = fedlsg.Workload(model=lambda: nn.Linear(4, 2), loss=nn.CrossEntropyLoss(), **own)
    workloads.give("sized", made)
    return make_plan(resolve({**given, "workload": "sized"}))


def announced(plan: Any, *, sizes: bool) -> dict[str, Any]:
    """What a plan says to others. ``sizes``: whether N_k is public."""
    found = fingerprint(plan)
    if not sizes:
        del found["partition"]
        found.pop("noise", None)
    terms = [(t.noise_multiplier, t.weight) for t in plan.terms]
    public = {"sizes": list(plan.clients.sizes), "rates": plan.clients.rates} if sizes else {}
    work = seconds_of(plan)
    return {**found, "terms": terms, "notes": plan.notes, "work": work, **public}


def different(case: str) -> set[str]:
    """What differs between the plans of a case."""
    data, settings = CASES[case]
    sizes = data is of_persons
    first = announced(plan_of(data, settings, **USUAL[data]), sizes=sizes)
    found: set[str] = set()
    for rows in OTHERS[data]:
        other = announced(plan_of(data, settings, **rows), sizes=sizes)
        found |= {name for name in first if first[name] != other[name]}
        words = first["settings"].keys() | other["settings"].keys()
        found |= {
            name for name in words if first["settings"].get(name) != other["settings"].get(name)
        }
    return found


@pytest.mark.parametrize("case", CASES)
def test_a_plan_follows_from_no_secret_number_of_rows(case):
    assert different(case) == set()


def rows_of_all(settings, workload):
    return len(workload.train)


def dealt_by_rows(workload, name, clients, **_):
    return client_parts(workload, name, clients)


def digest_of_persons(plan):
    return digest(plan.parts, plan.person.numpy().tobytes())


def work_of_sizes(plan):
    return float(sum(plan.clients.sizes))


@pytest.mark.parametrize(
    ("case", "where", "old", "seen"),
    [
        ("persons, batch size", "_units", rows_of_all, {"rounds", "learning-rate", "terms"}),
        ("persons, batch size and epochs", "_units", rows_of_all, {"rounds", "ema"}),
        ("persons, wards dealt", "client_parts", dealt_by_rows, {"sizes", "terms", "partition"}),
        ("clients, batch size", "unit_named", lambda name: EXAMPLE, {"rounds", "learning-rate"}),
        ("clients, rounds of the rule", "unit_named", lambda name: EXAMPLE, {"rounds", "terms"}),
        ("clients, secure", "unit_named", lambda name: EXAMPLE, {"rounds", "terms"}),
        ("clients, rounds", "seconds_of", work_of_sizes, {"work"}),
        ("persons, few rounds", "digest_of_units", digest_of_persons, {"partition"}),
    ],
)
def test_the_rules_of_before_are_seen(monkeypatch, case, where, old, seen):
    """Negative controls: rows decided how many rounds there are, and who is with whom."""
    places = {
        "client_parts": prepare,
        "seconds_of": sys.modules[__name__],
        "digest_of_units": continuity,
    }
    monkeypatch.setattr(places.get(where, automatic), where, old)
    assert seen <= different(case)


def released(folder: Path) -> dict[str, Any]:
    """By file and name: what others may see of a run, but for noise and time."""
    run = RunDir(folder)
    values: dict[str, Any] = {}

    def keep(where: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, part in value.items():
                if name not in OF_NOISE | OF_TIME:
                    keep(f"{where} {name}", part)
        else:
            values[where] = value

    keep("config", tomllib.loads(run.config.read_text()))
    for path in (run.summary, run.start):
        keep(path.stem, json.loads(path.read_text()))
    for number, line in enumerate((folder / "ledger.jsonl").read_text().splitlines()):
        keep(f"ledger {number}", json.loads(line))
    rounds = pd.read_csv(run.rounds)
    of_time = [name for name in rounds if name.endswith("seconds")]
    keep("rounds", rounds.drop(columns=[*OF_NOISE, *of_time], errors="ignore").to_csv())
    if (folder / "bytes.csv").exists():
        keep("bytes", (folder / "bytes.csv").read_text())
    public = json.loads((folder / "manifest.json").read_text())
    keep("manifest", sorted(public["files"].keys() | public["final"].keys()))
    if any(name.startswith("checkpoint") for name in public["final"].keys() | public["own"]):
        keep("checkpoint", run.load_checkpoint()["plan"])
    return values


@pytest.mark.parametrize(
    ("data", "settings", "other"),
    [
        (of_persons, {**PERSON, "batch_size": 12}, {"rows": 5, "first": True}),
        (of_clients, {**CLIENT_LEVEL, "batch_size": 5, "engine": "auto"}, {"rows": 2}),
    ],
    ids=["persons", "clients"],
)
def test_files_of_a_run_have_no_secret_number_of_rows(tmp_path, data, settings, other):
    found = []
    for number, rows in enumerate((USUAL[data], other)):
        folder = tmp_path / str(number)
        made = fedlsg.simulate(
            model=lambda: nn.Linear(4, 2),
            loss=nn.CrossEntropyLoss(),
            out=folder,
            quiet=True,
            **{"epsilon": 8, "engine": "local", **data(**rows), **settings},
        )
        assert made.summary["private"]
        found.append(released(folder))
    one, two = found
    assert {name for name in one.keys() | two.keys() if one.get(name) != two.get(name)} == set()
    assert {"config rounds", "summary noise_multiplier", "ledger 0 num_examples"} <= one.keys()


def test_what_would_need_sizes_is_refused_at_client_level():
    given = {**CLIENT_LEVEL, "batch_size": 5}
    with pytest.raises(ValueError, match=r"epochs.*give rounds"):
        plan_of(of_clients, {**given, "epochs": 3}, rows=12)
    with pytest.raises(ValueError, match="leave weighting out"):
        plan_of(of_clients, {**given, "weighting": "clients"}, rows=12)


@given(
    persons=st.integers(4, 30),
    clients=st.integers(1, 4),
    scheme=st.sampled_from(sorted(SCHEMES)),
    seed=st.integers(0, 2**31),
)
def test_a_row_more_of_one_person_moves_no_other_person(persons, clients, scheme, seed):
    """By every scheme, wherever the row is, and whatever persons' rows are mixed."""
    rng = np.random.default_rng(seed)
    who = np.concatenate([np.arange(persons), rng.integers(persons, size=2 * persons)])
    rng.shuffle(who)
    moved = int(rng.integers(persons))
    more = np.insert(who, rng.integers(len(who) + 1, size=3), moved)
    settings = {"alpha": 5.0, "shards_per_client": 1, "num_clients": clients, "seed": seed % 99}
    try:
        one, two = (deal(rows, scheme, settings) for rows in (who, more))
    except ValueError:  # no draw of Dirichlet shares, for either
        assume(False)
    assert one == two


def deal(who, scheme, settings) -> dict[str, int]:
    """The client of each person."""
    names = np.array([f"p{person}" for person in who])
    person, labels = numbers_of(names, "unit"), torch.from_numpy(who % 2)
    parts = deal_persons(labels, person, names, scheme=scheme, **settings)
    clients = dict(zip(names.tolist(), parts.owner.tolist(), strict=True))
    assert [clients[name] for name in names.tolist()] == parts.owner.tolist(), "whole persons"
    return clients


def test_a_person_of_two_classes_is_dealt_by_no_class():
    table = of_persons(3)["train"]
    person = numbers_of(table["patient"].to_numpy(), "unit")
    labels = torch.tensor(table["label"].tolist())
    given = {"num_clients": 2, "seed": 0, "alpha": 1.0}
    with pytest.raises(ValueError, match=r"rows \d+ and \d+ are of one person and of two classes"):
        deal_persons(labels, person, table["patient"].to_numpy(), scheme="dirichlet", **given)


def test_at_client_level_a_value_counts_one_whatever_rows_it_has():
    def dealt(rows):
        plan = plan_of(
            of_persons,
            {**CLIENT_LEVEL, "partition": "ward", "clients": 4, "batch_size": 5},
            rows=rows,
        )
        wards = plan.workload.columns["ward"]
        return dict(zip(wards.tolist(), plan.parts.owner.tolist(), strict=True))

    assert dealt(3) == dealt(90)
    assert CLIENT.whole
