"""``unit=COLUMN``: runs whose epsilon protects a person with all rows."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.accounting import epsilon
from fedlsg.simulations.inspection.partition_view import rows_of
from fedlsg.simulations.inspection.partition_view import table as partition_table
from fedlsg.simulations.planning.advice.balance import measure
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.training_rows import OwnData
from fedlsg.simulations.planning.earlier_runs.continuity import fingerprint
from fedlsg.simulations.planning.earlier_runs.data_digest import digest_of_rows
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.workloads import give
from tests.simulations.support.own import QUICK, TEST, TRAIN, build, quick, workload

ROWS = len(TRAIN[0])
PATIENT = np.array([f"p{row // 5}" for row in range(ROWS)])
PERSONS = ROWS // 5
NAMES = [f"x{column}" for column in range(8)]


def table(patient=PATIENT, **more) -> pd.DataFrame:
    found = pd.DataFrame(TRAIN[0].astype("float32"), columns=NAMES)
    return found.assign(label=TRAIN[1].astype(int), patient=patient, **more)


def public() -> pd.DataFrame:
    return pd.DataFrame(TEST[0].astype("float32"), columns=NAMES).assign(label=TEST[1].astype(int))


def run(out, **changes) -> fedlsg.Run:
    given = {"train": table(), "test": public(), "unit": "patient", **changes}
    return quick(out, **{"delta": 1e-3, "reproducible": False, **given})


def plan_of(**changes):
    """The plan of a workload with persons; settings may be changed."""
    own = {k: changes.pop(k) for k in ("train", "partition") if k in changes}
    made = workload(**{"train": table(), "test": public(), "unit": "patient", **own})
    give("persons", made)
    given = {key: value for key, value in QUICK.items() if key != "quiet"}
    return make_plan(
        resolve({**given, "workload": "persons", "unit": "patient", "delta": 1e-3, **changes})
    )


def test_ledger_page_and_summary_are_of_persons(tmp_path, with_pages):
    made = run(tmp_path / "run", sample_rate=0.5)
    lines = (tmp_path / "run/ledger/run.jsonl").read_text()
    assert '"unit": "patient"' in lines
    assert f'"num_examples": {PERSONS // 2}' in lines
    assert made.summary["unit"] == "patient"
    wanted = epsilon(sample_rate=0.5, noise_multiplier=2.0, steps=1, delta=1e-3)
    assert made.epsilon == wanted.upper
    page = (tmp_path / "run/report.html").read_text()
    assert "one patient" in page
    assert "p11" not in page  # whose rows they are, is nobody's business


def test_plan_says_whom_epsilon_is_for():
    from fedlsg.config.units import unit_named
    from fedlsg.simulations.report.words import privacy_line

    assert unit_named("patient").protects == "one patient with all rows"
    said = privacy_line(
        {
            "epsilon_max": 1.0,
            "epsilon_median": 1.0,
            "private": True,
            "clients": 2,
            "unit": "patient",
            "delta": 1e-3,
            "noise_multiplier": 2.0,
            "trust": "client",
        }
    )
    assert "patient level" in said


def test_whole_persons_are_dealt_and_counted():
    plan = plan_of(clients=3)
    owner = torch.full((ROWS,), -1)
    for client, part in enumerate(plan.parts):
        owner[part] = client
    assert all(len(owner[row : row + 5].unique()) == 1 for row in range(0, ROWS, 5))
    assert list(plan.clients.sizes) == [4, 4, 4]
    assert plan.divisor == pytest.approx(3 * 0.2 * 4)
    assert [terms.num_examples for terms in plan.terms] == [4, 4, 4]


def test_rows_without_a_person_are_their_own():
    who = [None if row < 10 else name for row, name in enumerate(PATIENT)]
    plan = plan_of(train=table(who), clients=1)
    assert list(plan.clients.sizes) == [PERSONS - 2 + 10]


@pytest.mark.parametrize(
    ("unit", "said"),
    [
        ("patients", "did you mean 'patient'"),
        ("clinet", "did you mean 'client'"),
        ("x0", "must be no input"),
    ],
)
def test_a_unit_that_is_no_column_is_refused(unit, said):
    with pytest.raises(ValueError, match=said):
        plan_of(unit=unit)


def test_a_person_at_two_clients_is_refused():
    odd = np.arange(ROWS) % 2
    with pytest.raises(ValueError, match=r"are of one patient and at two clients \(0 and 1\)"):
        plan_of(train=table(hospital=odd), partition="hospital", clients=None)
    halves = np.arange(ROWS) // 30
    plan = plan_of(train=table(hospital=halves), partition="hospital", clients=None)
    assert list(plan.clients.sizes) == [6, 6]
    with pytest.raises(ValueError, match="of one person and of two classes: take partition=iid"):
        plan_of(partition="dirichlet")


@pytest.mark.slow
def test_persons_with_a_row_each_are_examples(tmp_path):
    """The same batches, noise and clients: only sums are rounded otherwise."""
    given = {"train": table(np.arange(ROWS)), "test": public(), "rounds": 3, "local_steps": 2}
    rows = quick(tmp_path / "rows", **{**given, "train": given["train"].drop(columns="patient")})
    persons = quick(tmp_path / "persons", **given, unit="patient")
    for a, b in zip(rows.model.parameters(), persons.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_an_array_says_whose_rows_are(tmp_path):
    made = run(tmp_path / "run", train=TRAIN, test=TEST, unit=PATIENT.tolist())
    assert made.summary["unit"] == "person"
    give("mine", workload(unit=PATIENT))
    with pytest.raises(ValueError, match="give unit=person"):
        make_plan(resolve({"workload": "mine", "method": "dpsgd", "noise_multiplier": 2.0}))
    with pytest.raises(ValueError, match="one value for each of 60"):
        run(tmp_path / "other", train=TRAIN, test=TEST, unit=PATIENT[:-1])
    with pytest.raises(ValueError, match=r"fedlsg\.Workload\(unit="):
        quick(tmp_path / "other", workload="digits", unit=PATIENT)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampling": "shuffle", "batch_size": 3, "sample_rate": None}, "needs sampling=poisson"),
        ({"delta": 1 / 6}, "delta"),
        ({"method": "sgd", "noise_multiplier": None, "delta": None}, "leave unit out"),
        ({"train": TRAIN, "test": TEST, "unit": "example", "person_rows": 3}, "give unit=COLUMN"),
        ({"person_rows": -1}, "person_rows"),
        ({"person_gradient": "median"}, "person_gradient"),
        ({"clients": 13}, "the number of persons, got clients=13: give clients="),
        ({"holdout": 0.2}, "rows of other persons"),
        ({"test": None, "holdout": 0.2}, "rows of other persons"),
        ({"unit": table().patient.iloc[::-1], "inputs": NAMES}, r"persons\.loc\[inputs\.index\]"),
    ],
)
def test_what_cannot_be_combined_is_refused_and_nothing_is_charged(tmp_path, changes, said):
    with pytest.raises(ValueError, match=said):
        run(tmp_path / "run", **changes)
    assert not (tmp_path / "run").exists()


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": "lsg", "rank": 2},
        {"method": "dp-ssgd", "prune": "dp-snip"},
        {"method": "dp-powersgd", "rank": 2},
        {"local_steps": 3, "local_momentum": 0.5, "person_rows": 2},
        {"person_gradient": "sum", "clip": "per-block"},
        {"trust": "secure", "clients": 3},
        {"trust": "aggregate", "clients": 3},
        {"isolation": "isolated"},
        {"isolation": "rows"},
        {"batch_size": 3, "sample_rate": None},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())),
)
def test_everything_else_goes_with_persons(tmp_path, changes):
    made = run(tmp_path / "run", **changes)
    lines = (tmp_path / "run/ledger/run.jsonl").read_text().splitlines()
    charged = [json.loads(line)["charged"] for line in lines if '"charged"' in line]
    size = PERSONS // int(changes.get("clients", 2))
    assert {(one["unit"], one["num_examples"]) for one in charged} == {("patient", size)}
    assert 0 < made.epsilon < float("inf")


def test_a_resumed_run_has_the_same_persons():
    other = PATIENT.copy()
    other[[0, 30]] = other[[30, 0]]
    plans = [plan_of(train=table(who), clients=1) for who in (PATIENT, other)]
    first, second = map(digest_of_rows, plans)
    assert first != second
    first, second = (fingerprint(plan)["partition"] for plan in plans)
    assert first == second, "it is in a public file, and would tell how many rows a person has"


def test_a_deployed_client_counts_the_persons_of_its_own_rows(tmp_path):
    path = tmp_path / "own.csv"
    table(np.arange(ROWS) // 4).to_csv(path, index=False)
    give("persons", workload(train=table(), test=public(), unit="patient"))
    settings = resolve(
        {
            "workload": "persons",
            "unit": "patient",
            "method": "dpsgd",
            "noise_multiplier": 2.0,
            "sample_rate": 0.2,
        }
    )
    own = OwnData(client=1, read=lambda w: w.read(path, tmp_path), expected_batch=3.0)
    base = prepare(replace(settings, clients=2), own=own)
    assert base.rows.size_of(1) == 15
    table().drop(columns="patient").to_csv(path, index=False)
    with pytest.raises(ValueError, match="unit=patient"):
        prepare(replace(settings, clients=2), own=own)


@pytest.mark.slow
def test_a_loss_of_ones_own_and_a_dataset_have_persons_as_well(tmp_path):
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return ROWS

        def __getitem__(self, row: int):
            return torch.tensor(TRAIN[0][row]).float(), int(TRAIN[1][row])

    def loss(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    given = {"model": build, "train": Rows(), "test": TEST, "loss": loss, "unit": PATIENT}
    made = quick(tmp_path / "run", **given)
    assert made.summary["unit"] == "person"


@pytest.mark.parametrize("who", [["007", "7"], ["1.10", "1.1"], ["1e1", "10"]])
def test_a_file_s_persons_are_texts_and_no_numbers(who, tmp_path):
    table(who * (ROWS // 2)).to_csv(tmp_path / "train.csv", index=False)
    public().to_csv(tmp_path / "test.csv", index=False)
    given = {"train": str(tmp_path / "train.csv"), "test": str(tmp_path / "test.csv")}
    give("persons", workload(unit="patient", **given))
    settings = {"workload": "persons", "unit": "patient", "clients": 1, "method": "dpsgd"}
    assert prepare(resolve({**settings, "noise_multiplier": 2.0, "delta": 1e-3})).clients.sizes == [
        2
    ]


@pytest.mark.slow
def test_a_run_starts_from_another_with_the_same_persons_alone(tmp_path):
    """What persons of other rows have spent, says nothing of these."""
    sizes = {"batch_size": 3, "sample_rate": None}
    first = run(tmp_path / "first", **sizes)
    second = run(tmp_path / "second", start_from=first, **sizes)
    assert second.epsilon > first.epsilon
    rows = run(tmp_path / "rows", train=table(np.arange(ROWS)), **sizes)
    with pytest.raises(ValueError, match="another partition or patient of them"):
        run(tmp_path / "third", start_from=rows, **sizes)
    assert not (tmp_path / "third").exists()


def test_a_node_s_rows_are_others_where_their_persons_are():
    from fedlsg.simulations.client.deployed import NodeProcess

    def digest(**changes) -> str:
        base = plan_of(clients=1, **changes)
        return NodeProcess(process=SimpleNamespace(base=base), blocks=1).digest(b"key")

    other = PATIENT.copy()
    other[[0, 30]] = other[[30, 0]]
    assert digest() == digest()
    assert digest() != digest(train=table(other))


@pytest.mark.slow
def test_what_is_said_of_clients_counts_persons(tmp_path):
    """A partition, and what a run says of each client; without the unit they are examples."""
    site = np.where(np.arange(ROWS) % 5 + np.arange(ROWS) // 5 * 5 < 20, "north", "south")
    given = {"train": table(site=site), "partition": "site"}
    balance = measure(plan_of(**given))
    assert balance.sizes.tolist() == [4, PERSONS - 4]
    assert balance.counts.sum(1).tolist() == [20, ROWS - 20]
    assert balance.shares.sum(1) == pytest.approx([1, 1])
    assert [(row["examples"], row["persons"]) for row in rows_of(balance)] == [
        (20, 4),
        (ROWS - 20, PERSONS - 4),
    ]
    header = partition_table(balance, counted=True).columns
    assert {"persons (patient)", "rows"} <= set(header)
    made = run(tmp_path / "run", inputs=NAMES, **given)
    assert [(row["name"], row["persons"]) for row in made.clients] == [
        ("north", 4),
        ("south", PERSONS - 4),
    ]
    made = run(tmp_path / "rows", inputs=NAMES, unit=None, **given)
    assert [row["examples"] for row in made.clients] == [20, ROWS - 20]
