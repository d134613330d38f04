"""Test rows that are training rows: found by number, and said where chance does not explain it."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset

from fedlsg.simulations import workloads
from fedlsg.simulations.planning import plan as planning
from fedlsg.simulations.planning.faults.shared_rows import Shared, equal_rows
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads.base.split import Split
from tests.simulations.support.own import QUICK, TEST, TRAIN, quick, rows, workload

X, Y = (torch.from_numpy(values) for values in rows(120, 5))
X, Y = X.float(), Y.long()


class Noisy(Dataset):
    """Rows that draw random numbers whenever they are read, as augmented images do."""

    def __len__(self):
        return len(X)

    def __getitem__(self, row):
        return X[row] + 0.01 * torch.randn(8), int(Y[row])


def plan_of(run=None, **given):
    """The plan of a run with settings ``run`` on these data."""
    made = workload(name="mine", **given)
    workloads.give("mine", made)
    settings = {name: value for name, value in QUICK.items() if name != "quiet"}
    return make_plan(from_mapping({**settings, **(run or {}), "workload": "mine"}))


def table(x, y):
    return pd.DataFrame(np.asarray(x), columns=[f"c{i}" for i in range(x.shape[1])]).assign(
        label=np.asarray(y)
    )


def saved(folder, x, y, name):
    path = folder / name
    table(x, y).to_csv(path, index=False)
    return path


NOISY, PLAIN = Noisy(), TensorDataset(X, Y)
THE_SAME = {
    "one pair of tensors": ((X, Y), (X, Y), "120 of 120"),
    "a copy": ((X, Y), (X[:40].clone(), Y[:40].clone()), "40 of 40"),
    "slices that overlap": ((X[:100], Y[:100]), (X[60:], Y[60:]), "40 of 60"),
    "a list of clients": ([(X[:60], Y[:60]), (X[60:], Y[60:])], (X[50:70], Y[50:70]), "20 of 20"),
    "classes of another type": ((X, Y), (X[:40], Y[:40].int()), "40 of 40"),
    "tables": (table(X, Y), table(X[:40], Y[:40]), "40 of 40"),
    "subsets": (Subset(PLAIN, range(100)), Subset(PLAIN, range(80, 120)), "20 of 40"),
    "subsets that draw": (Subset(NOISY, range(100)), Subset(NOISY, range(80, 120)), "20 of 40"),
    "two rows, one object": (two := (X[:2], Y[:2]), two, "2 of 2"),
}


@pytest.mark.parametrize("case", THE_SAME)
def test_test_rows_that_are_training_rows_are_named_with_their_number_and_the_way_out(case):
    train, test, number = THE_SAME[case]
    plan = plan_of(train=train, test=test, num_classes=3)
    assert plan.for_owner[0].startswith(f"{number} test rows are also training rows (for you alone")
    assert plan.notes[0].startswith("some test rows are also training rows: accuracy on them says")
    assert "holdout=0.2" in plan.notes[0]


def test_one_file_and_a_part_of_it_are_named(tmp_path):
    whole, part = saved(tmp_path, X, Y, "all.csv"), saved(tmp_path, X[:40], Y[:40], "test.csv")
    for test, number in ((whole, "120 of 120"), (part, "40 of 40")):
        (number_of_rows,) = plan_of(train=whole, test=test).for_owner
        assert number_of_rows.startswith(f"{number} test rows")


def test_the_run_says_it_and_keeps_it_for_its_page(tmp_path, capsys):
    quick(tmp_path / "run", train=TRAIN, test=(TRAIN[0][:24], TRAIN[1][:24]), quiet=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "24 of 24 test rows are also training rows" in said
    assert "some test rows are also training rows" in said
    assert "some test rows are also training rows" in (tmp_path / "run/start.json").read_text()


def categories(count, seed):
    """Rows of three columns with four values each, where the class follows from them."""
    x = torch.from_numpy(np.random.default_rng(seed).integers(4, size=(count, 3))).float()
    return torch.cat([x, torch.zeros(count, 5)], dim=1), (x.sum(1) % 3).long()


HONEST = {
    "rows that differ": (TRAIN, TEST),
    "views of one tensor": ((X[::2], Y[::2]), (X[1::2], Y[1::2])),
    "parts of one Dataset": (Subset(PLAIN, range(80)), Subset(PLAIN, range(80, 120))),
    "parts of one that draws": (Subset(NOISY, range(80)), Subset(NOISY, range(80, 120))),
    "equal inputs, other targets": ((X[:80], Y[:80]), (X[:40], (Y[:40] + 1) % 3)),
}


@pytest.mark.parametrize("case", HONEST)
def test_other_rows_pass_without_a_word(case):
    train, test = HONEST[case]
    assert plan_of(train=train, test=test, num_classes=3).for_owner == ()


@pytest.mark.parametrize("seed", range(5))
def test_rows_of_few_categories_that_coincide_by_chance_pass(seed):
    """Nearly all of 100 new rows equal one of 300 here: so do the training rows each other."""
    assert plan_of(train=categories(300, seed), test=categories(100, seed + 50)).for_owner == ()


def test_held_out_rows_are_not_compared():
    """They are other rows by construction, and equal ones have no way out but this."""
    settings = {name: value for name, value in QUICK.items() if name != "quiet"}
    made = workload(name="mine", train=(X[:1].repeat(50, 1), Y[:1].repeat(50)), test=None)
    workloads.give("mine", made)
    plan = make_plan(
        from_mapping({**settings, "workload": "mine", "holdout": 0.2}), given=["holdout"]
    )
    assert plan.for_owner == ()


small = st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=2), min_size=1, max_size=12)


@given(train=small, test=small)
def test_the_numbers_are_those_of_a_loop(train, test):
    """In every form that rows are stored in: an array, a dict of arrays, texts with a mask."""
    for form in (lambda x: x.float().numpy(), lambda x: {"a": x[:, :1], "b": x[:, 1:]}):
        one, other = (of_form(torch.tensor(values), form) for values in (train, test))
        shared = sum(row in train for row in test)
        again = sum(train.count(row) > 1 for row in train) / len(train)
        assert equal_rows(one, other) == (shared, again if shared else 0.0)


class Stored:
    """Rows of a dict of tensors."""

    def __init__(self, made):
        self.made = made

    def __len__(self):
        return len(next(iter(self.made.values())))

    def __getitem__(self, rows):
        return {name: value[torch.as_tensor(rows)].numpy() for name, value in self.made.items()}


def of_form(x, form):
    made = form(x)
    inputs = Stored(made) if isinstance(made, dict) else made
    return Split(inputs=inputs, labels=torch.zeros(len(x), dtype=torch.int64), prepare=dict)


def test_texts_are_compared_whatever_they_are_padded_to():
    def texts(width):
        ids = torch.tensor([[7, 8, 0], [7, 0, 0]])
        padded = torch.nn.functional.pad(ids, (0, width - 3))
        return of_form(padded, lambda x: {"input_ids": x, "attention_mask": (x > 0).long()})

    assert equal_rows(texts(3), texts(5)) == (2, 0.0)


def test_equal_hashes_of_other_rows_are_not_counted(monkeypatch):
    """The negative control of the second look: with keys of 0 all hashes are equal."""
    monkeypatch.setattr("secrets.randbits", lambda bits: 0)
    one, other = (of_form(torch.tensor([[1, value]]), lambda x: x.numpy()) for value in (2, 3))
    assert equal_rows(one, other) == (0, 0.0)
    assert equal_rows(one, one) == (1, 0.0)


AT_SERVER = {"unit": "client", "trust": "server", "sample_rate": None, "batch_size": 5}
BETWEEN = {"clients": 8, "delta": 1e-3, "reproducible": False}


def said_of(folder, shared, **settings):
    """Texts of files that others may see, of a run where so many of 80 training rows are test
    rows.
    """
    x, y = (torch.cat([part[:shared], part[40 : 120 - shared]]) for part in (X, Y))
    quick(folder, train=(x, y), test=(X[:40], Y[:40]), **{**BETWEEN, **settings})
    return {name: (folder / name).read_text() for name in ("start.json", "report.html")}


def test_no_file_has_the_number_of_shared_rows(tmp_path, with_pages):
    """A row more: the page says the same; at client level it says nothing at all."""
    for trust in ({}, AT_SERVER):
        few, more = (said_of(tmp_path / f"{trust == {}} {n}", n, **trust) for n in (11, 12))
        for name in few:
            assert "of 40 test rows" not in few[name] + more[name]
            there = "test rows are also training rows" in few[name]
            assert there == ("test rows are also training rows" in more[name]) == (trust == {})


def test_a_note_with_the_number_is_seen(tmp_path, with_pages, monkeypatch):
    """Negative control: the note of before."""

    def before(base):
        shared, _ = equal_rows(base.workload.train, base.workload.test)
        return Shared(notes=(f"{shared} of 40 test rows are also training rows",))

    monkeypatch.setattr(planning, "shared_notes", before)
    few, more = (said_of(tmp_path / str(n), n, **AT_SERVER) for n in (11, 12))
    for name in few:
        assert "11 of 40 test rows" in few[name]
        assert "12 of 40 test rows" in more[name]


def of_persons(x, y, persons):
    return table(x, y).assign(person=persons)


@pytest.mark.parametrize("form", ["frames", "files", "texts with zeros"])
def test_persons_of_train_and_test_are_named(form, tmp_path):
    """Persons 0 to 39 train; test has 30 to 49, and rows of nobody."""
    names = [f"{person:03}" if form == "texts with zeros" else person for person in range(50)]
    train = of_persons(*TRAIN, [names[row % 40] for row in range(60)])
    test = of_persons(*TEST, [names[30 + row] if row < 20 else None for row in range(24)])
    if form == "files":
        for name, frame in (("train.csv", train), ("test.csv", test)):
            frame.to_csv(tmp_path / name, index=False)
        train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    plan = plan_of(train=train, test=test, unit="person", run={"unit": "person"})
    assert plan.for_owner[0].startswith(
        "10 of 24 test rows have a value of person that training rows have (for you alone"
    )
    assert plan.notes[0].startswith("some test rows have a value of person that training rows have")
    assert "holdout" not in plan.notes[0], "holdout is refused where a person is the unit"


def test_other_persons_pass_without_a_word():
    train = of_persons(*TRAIN, [row % 40 for row in range(60)])
    test = of_persons(*TEST, [40 + row for row in range(24)])
    plan = plan_of(train=train, test=test, unit="person", run={"unit": "person"})
    assert plan.for_owner == plan.notes == ()


def test_a_test_split_that_holdout_replaces_is_said():
    plan = plan_of(train=TRAIN, test=TEST, run={"holdout": 0.2})
    assert plan.notes == ("accuracy is of the share holdout=0.2 of train: test= is not used",)
