"""``PrivateStep(groups=...)``: epsilon protects a person with all of its rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from fedlsg.privacy import LedgerError
from fedlsg.strategies.private_step import PrivateStep
from fedlsg.training.persons import numbers_of
from tests.strategies.own_loop import EXAMPLES, INPUTS, RECIPES, TARGETS, TERMS
from tests.strategies.small_federation import model

PERSON = torch.arange(EXAMPLES) // 4
"""Ten persons with four rows each."""
PERSONS = 10
UNCLIPPED = ("dpsgd noise only", "sgd")


def step_of(**changes) -> PrivateStep:
    settings = {"groups": PERSON, "method": "dpsgd", **TERMS, **changes}
    return PrivateStep(
        model(), nn.CrossEntropyLoss(), **{k: v for k, v in settings.items() if v is not None}
    )


def released(step: PrivateStep, inputs: Tensor = INPUTS, targets: Tensor = TARGETS) -> Tensor:
    """What leaves one step, before the model moves."""
    seen: list[Tensor] = []
    step.watch(lambda plan, rows, values: seen.append(values))
    step.step(step.batches((inputs, targets)))
    return seen[-1].double()


@pytest.mark.thinned(6)
@pytest.mark.parametrize("name", [name for name in RECIPES if name not in UNCLIPPED])
def test_every_method_steps_for_persons(name):
    """And says so in its ledger, whose numbers are of persons."""
    step = step_of(method=name.split()[0], **RECIPES[name])
    batches = step.batches((INPUTS, TARGETS))
    for _ in range(2):
        step.step(batches)
    entries = step._account.ledger.entries
    assert {(entry.unit, entry.num_examples) for entry in entries} == {("person", PERSONS)}
    assert (step.num_examples, step.num_persons) == (EXAMPLES, PERSONS)


@pytest.mark.parametrize("name", UNCLIPPED)
def test_methods_that_do_not_clip_are_refused(name):
    with pytest.raises(ValueError, match="clips persons"):
        step_of(method=name.split()[0], **RECIPES[name])


QUIET = {
    "mechanism": "clip-only",
    "noise_multiplier": None,
    "delta": None,
    "sample_rate": 1.0,
    "steps": 1,
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("isolation", ["checked", "isolated", "rows"])
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_a_person_moves_what_leaves_by_c_at_most(isolation, gradient):
    more = {**QUIET, "isolation": isolation, "person_gradient": gradient, "clip_norm": 0.01}
    whole = released(step_of(**more))
    for one in range(0, PERSONS, 3):
        left = one != PERSON
        less = step_of(**more, groups=PERSON[left], num_examples=int(left.sum()))
        moved = (whole - released(less, INPUTS[left], TARGETS[left])).norm() / 0.01
        assert 0.9 < moved <= 1 + 1e-4
    # planted: a clip of rows
    of_rows = {**more, "groups": None, "person_gradient": None}
    less = step_of(**of_rows, num_examples=int(left.sum()))
    rows = released(step_of(**of_rows))
    moved = (rows - released(less, INPUTS[left], TARGETS[left])).norm() / 0.01
    assert moved > 2


def test_the_divisor_counts_persons():
    """The model moves by the rate times the mean over persons of the mean over their rows."""
    step = step_of(**QUIET, clip_norm=100.0)
    own = step.model
    before = [p.detach().clone() for p in own.parameters()]
    loss = nn.functional.cross_entropy(own(INPUTS), TARGETS)  # ten persons, four rows each
    wanted = torch.autograd.grad(loss, list(own.parameters()))
    step.step(step.batches((INPUTS, TARGETS)))
    for start, p, g in zip(before, own.parameters(), wanted, strict=True):
        torch.testing.assert_close(start - p.detach(), 0.5 * g, rtol=1e-3, atol=1e-5)


def test_delta_is_below_one_over_the_persons_and_epsilon_does_not_know_rows():
    with pytest.raises(ValueError, match="delta"):
        step_of(delta=1 / PERSONS)
    with pytest.raises(ValueError, match=r"persons of 'person' = 0\.1"):
        step_of(delta=None)
    step_of(groups=None, num_examples=PERSONS, delta=0.09)
    few = step_of(epsilon=2.0, noise_multiplier=None)
    rows = step_of(groups=None, epsilon=2.0, noise_multiplier=None)
    assert few.noise_multiplier == rows.noise_multiplier  # q and T alone decide


def test_rows_of_a_data_set_and_of_a_function_are_of_persons():
    class Rows(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return EXAMPLES

        def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
            return INPUTS[place], TARGETS[place]

    wanted = released(step_of(**QUIET))
    by_set, by_function = step_of(**QUIET), step_of(**QUIET)
    seen: list[Tensor] = []
    for step in (by_set, by_function):
        step.watch(lambda plan, rows, values: seen.append(values.double()))
    by_set.step(by_set.batches(Rows()))
    by_function.step(lambda at: (INPUTS[at], TARGETS[at]))
    for values in seen:
        torch.testing.assert_close(values, wanted, rtol=1e-4, atol=1e-5)


def test_a_column_gives_the_unit_its_name_and_a_ledger_is_of_one_unit(tmp_path):
    table = pd.DataFrame({"patient": [f"p{i // 4}" for i in range(EXAMPLES)]})
    path = tmp_path / "ledger.jsonl"
    step = step_of(groups=table["patient"], ledger=path)
    step.step(step.batches((INPUTS, TARGETS)))
    assert step._account.ledger.entries[0].unit == "patient"
    other = step_of(groups=None, num_examples=PERSONS, ledger=path)
    with pytest.raises(LedgerError, match="unit=example is another"):
        other.step(other.batches((INPUTS[:10], TARGETS[:10])))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": "patient"}, "values of the column"),
        ({"groups": PERSON[:-1]}, "one value for each"),
        ({"groups": PERSON.view(4, 10)}, "one value a row"),
        ({"groups": None, "person_rows": 3}, "give groups="),
        ({"person_rows": -1}, "person_rows=-1"),
        ({"person_rows": 2.5}, "person_rows=2.5"),
        ({"person_gradient": "median"}, "person_gradient='median'"),
    ],
)
def test_what_does_not_say_whose_rows_are_is_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        step_of(**changes)


@pytest.mark.parametrize(
    ("values", "numbers"),
    [
        (["a", "b", "a"], [0, 1, 0]),
        (np.array([7, 7, 3]), [0, 0, 1]),
        (pd.Series(["a", None, "a", None, " ", "", pd.NA]), [0, 1, 0, 2, 3, 4, 5]),
        (np.array([1.0, np.nan, 1.0, np.nan]), [0, 1, 0, 2]),
        (pd.Series(["x", "y", "x"], dtype="category"), [0, 1, 0]),
        (pd.Series([5, None, 5], dtype="Int64"), [0, 1, 0]),
        (torch.tensor([4, 4, 9]), [0, 0, 1]),
        ([1, 1.0, True], [0, 0, 0]),
    ],
)
def test_missing_values_are_persons_of_their_own(values, numbers):
    assert numbers_of(values, "groups").tolist() == numbers


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([7, "7"], "a number in row 0 and a text in row 1"),
        (np.array([2.0**53, 2.0**53 + 2]), "below 2"),
        ([1e17, 1e17 + 1], r"below 2\^53, found a larger one in row 0"),
        (pd.Series([1e17, None], dtype=object), r"below 2\^53"),
        (np.array([3, 2**24 + 1], dtype=np.float32), r"below 2\^24, found a larger one in row 1"),
        (torch.tensor([2049.0], dtype=torch.float16), r"below 2\^11"),
        (torch.tensor([257.0], dtype=torch.bfloat16), r"below 2\^8"),
        (np.array(["a", np.nan]), "row 1 has a text that says in many files"),
        (["a", "NA"], "row 1 has a text that says in many files"),
        ([("a", 1), ("b", 2)], "one value a row"),
        ([None, {"a": 1}], "row 1 has dict"),
    ],
)
def test_values_that_may_mix_up_persons_are_refused(values, said):
    with pytest.raises(ValueError, match=said):
        numbers_of(values, "groups")
