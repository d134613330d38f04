"""Before the first charge a whole step runs on made-up rows: what fails is free, and nothing of it
remains.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from fedlsg.gradients import trainable
from fedlsg.privacy import LedgerError
from fedlsg.strategies.own_loop.one_round import Release
from fedlsg.strategies.private_step import PrivateStep
from tests.strategies.own_loop import (
    EXAMPLES,
    INPUTS,
    PUBLIC,
    RECIPES,
    TARGETS,
    batch,
    made,
    private_step,
)
from tests.strategies.small_federation import model


def free(step: PrivateStep) -> bool:
    return not step._account.ledger.entries


def refused_free(step: PrivateStep, data, match: str) -> None:
    """The first step is refused with a ValueError, and nothing is charged."""
    with pytest.raises(ValueError, match=match):
        step.step(data if callable(data) else step.batches(data))
    assert free(step)


def by_rehearsal(name: str, monkeypatch, *, rehearsed: bool) -> tuple:
    """The state after two reproducible steps, with rehearsals or without."""
    with monkeypatch.context() as patch:
        if not rehearsed:
            patch.setattr(Release, "rehearse", lambda self, *rows: None)
        step = made(name)
        torch.manual_seed(3)
        for _ in range(2):
            step.step(batch)
    state = step.state_dict()["server"]
    return (
        step.model.state_dict(),
        state["optimizer"],
        state["average"],
        state["memory"],
        torch.rand(1),
        np.random.rand(1),
    )


def equal(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


def is_untouched(name: str, monkeypatch) -> bool:
    found = []
    for rehearsed in (True, False):
        np.random.seed(0)
        found.append(by_rehearsal(name, monkeypatch, rehearsed=rehearsed))
    return equal(*found)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "name",
    [
        name if turn % 3 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for turn, name in enumerate(RECIPES)
    ],
)
def test_steps_are_those_without_a_rehearsal(name, monkeypatch):
    assert is_untouched(name, monkeypatch)


class Reads(nn.Module):
    """Fails in one way or another, in training only."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer, self.classifier = how, nn.Linear(12, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.classifier(torch.tanh(self.layer(self.how(x))))


def fails_in_company(x):
    if len(x) > 20:
        raise RuntimeError("no place for more than twenty rows")
    return x


def test_an_error_of_a_full_microbatch_is_free_and_says_where():
    step = private_step(
        Reads(fails_in_company), method="dpsgd", sample_rate=1.0, isolation="checked"
    )
    refused_free(
        step,
        batch,
        r"^RuntimeError: no place for more than twenty rows \(test_private_step_rehearsal.py, line "
        r"\d+",
    )


class Failing(torch.optim.SGD):
    """An optimizer that fails when it steps."""

    def step(self, closure=None):
        raise RuntimeError("expected sparse gradients")


def test_an_error_of_the_optimizer_is_free():
    refused_free(
        private_step(method="dpsgd", learning_rate=None, optimizer=lambda p: Failing(p, lr=0.1)),
        batch,
        "RuntimeError: expected sparse gradients",
    )


def test_an_example_of_another_type_does_not_stand_for_the_data():
    step = private_step(method="dpsgd", example=PUBLIC)
    refused_free(
        step, lambda positions: (INPUTS[positions].double(), TARGETS[positions]), "torch.float64"
    )


class Pairs(Dataset):
    """Items as numpy and python make them."""

    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        return INPUTS[number].double().numpy(), int(TARGETS[number])


class Raw(Pairs):
    """Items that are not numbers yet."""

    def __init__(self, make):
        self.make = make

    def __getitem__(self, number):
        return self.make(INPUTS[number], TARGETS[number])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: (x.tolist(), y), "the inputs of Raw are of type list: give a tensor"),
        (lambda x, y: (x, "cat"), "the targets of Raw are of type str: give a tensor"),
        (lambda x, y: ({"x": x, "name": "a"}, y), "the inputs 'name' of Raw are of type str"),
        (lambda x, y: ({"x": x, "m": None}, y), "the inputs 'm' of Raw are of type NoneType"),
        (lambda x, y: ((x, x), y), "of type tuple.*a dict by the names of forward's arguments"),
        (lambda x, y: (x, x, y), "items .inputs, targets.*a dict by the names of forward's"),
    ],
)
def test_items_that_are_no_tensors_are_named(make, message):
    refused_free(private_step(method="dpsgd"), Raw(make), message)


FORMS = {
    "arrays": (INPUTS.double().numpy(), TARGETS.numpy()),
    "lists": (INPUTS.tolist(), TARGETS.tolist()),
    "a data set of arrays": Pairs(),
    "tensors": (INPUTS, TARGETS),
    "columns": {"x": INPUTS.double().numpy()},
}


class Named(nn.Module):
    """Takes its inputs by keyword."""

    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(12, 3)

    def forward(self, x):
        return self.classifier(x)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("form", ["arrays", "a data set of arrays", "columns"])
def test_arrays_of_numpy_get_the_type_of_the_model(form, dtype):
    step = private_step(Named().to(dtype), method="dpsgd")
    data = (FORMS[form], TARGETS.numpy()) if form == "columns" else FORMS[form]
    inputs, targets = step.batches(data)(torch.arange(4))
    assert (inputs["x"] if form == "columns" else inputs).dtype == dtype
    assert targets.dtype == torch.int64
    step.step(step.batches(data))
    assert not free(step)


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.uint16])
def test_small_integers_of_a_pair_are_classes(dtype):
    step = private_step(method="dpsgd")
    step.step(step.batches((INPUTS, TARGETS.numpy().astype(dtype))))
    assert not free(step)


@pytest.mark.parametrize(
    "data", [(INPUTS.double(), TARGETS), TensorDataset(INPUTS.double(), TARGETS)]
)
def test_tensors_of_another_type_than_the_model_are_refused_free(data):
    refused_free(
        private_step(method="dpsgd"),
        data,
        r"^inputs are torch.float64 and the model's weights torch.float32: give",
    )


@pytest.mark.slow
def test_a_model_in_float64_names_the_change_of_the_inputs_that_trains():
    step = private_step(model().double(), method="dpsgd")
    refused_free(step, (INPUTS, TARGETS), r"inputs.to\(torch.float64\) or model.float\(\)")
    step.step(step.batches((INPUTS.to(torch.float64), TARGETS)))


@pytest.mark.parametrize(
    "data",
    [(INPUTS, TARGETS), TensorDataset(INPUTS, TARGETS), DataLoader(TensorDataset(INPUTS, TARGETS))],
)
def test_data_in_place_of_a_batch_function_point_to_batches(data):
    step = private_step(method="dpsgd")
    with pytest.raises(ValueError, match=rf"a {type(data).__name__}: write step.*step.batches"):
        step.step(data)
    assert free(step)


def test_a_step_leaves_inference_mode_and_a_model_made_in_it_is_named():
    with torch.inference_mode():
        inside = model()
        with pytest.raises(ValueError, match=r"made inside torch.inference_mode"):
            private_step(inside, method="dpsgd")
    step = private_step(method="dpsgd")
    before = next(step.model.parameters()).detach().clone()
    with torch.inference_mode():
        step.step(step.batches((INPUTS, TARGETS)))
        assert torch.is_inference_mode_enabled()
    assert not torch.equal(next(step.model.parameters()), before)


def test_an_array_that_may_not_be_written_is_copied():
    """torch would warn of it, once in a process; a frame of pandas 3 gives such arrays."""
    array = INPUTS.numpy().copy()
    array.flags.writeable = False
    rows = private_step(method="dpsgd").batches((array, TARGETS))
    rows.inputs.add_(1)
    assert np.array_equal(array, INPUTS.numpy())


@pytest.mark.parametrize(
    "data",
    [
        ((INPUTS, INPUTS), TARGETS),
        (INPUTS, (TARGETS, TARGETS)),
        TensorDataset(INPUTS, INPUTS, TARGETS),
    ],
)
def test_several_inputs_in_a_tuple_point_to_a_dict(data):
    refused_free(private_step(method="dpsgd"), data, "a dict by the names of forward's arguments")


class Ragged(Dataset):
    def __len__(self):
        return EXAMPLES

    def __getitem__(self, number):
        return torch.ones(4 + number % 40, 12), TARGETS[number]


class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.classifier = nn.Linear(12, 3)

    def forward(self, x):
        return self.classifier(x.mean(1))


@pytest.mark.parametrize("pad", [None, 0])
def test_rows_of_many_lengths_are_told_of_pad(pad, caplog):
    step = private_step(Mean(), method="dpsgd")
    step.step(step.batches(Ragged(), pad=pad))
    assert ("step.batches(data, pad=0" in caplog.text) == (pad is None)


class TwoTypes(nn.Module):
    """A body and a head of two types."""

    def __init__(self, body, head):
        super().__init__()
        self.body, self.classifier = nn.Linear(12, 16).to(body), nn.Linear(16, 3).to(head)

    def forward(self, x):
        hidden = torch.tanh(self.body(x.to(self.body.weight.dtype)))
        return self.classifier(hidden.to(self.classifier.weight.dtype)).float()


TWO = {
    "float32 first": (torch.float32, torch.bfloat16),
    "bfloat16 first": (torch.bfloat16, torch.float32),
}
STEPS = {
    "momentum": {"momentum": 0.9},
    "adam": {"optimizer": "adam"},
    "average": {"ema": 0.9},
    "own": {"learning_rate": None, "optimizer": lambda p: torch.optim.AdamW(p, lr=0.01)},
}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("types", TWO.values(), ids=list(TWO))
@pytest.mark.parametrize("settings", STEPS.values(), ids=list(STEPS))
def test_parameters_of_two_types_train(types, settings):
    step = private_step(TwoTypes(*types), method="dpsgd", **settings)
    before = {name: p.clone() for name, p in step.model.named_parameters()}
    for _ in range(2):
        step.step(batch)
    for name, p in trainable(step.model).items():
        assert p.dtype == before[name].dtype
        assert not torch.equal(p, before[name]), name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_carriers_of_half_precision_train(dtype):
    step = private_step(TwoTypes(dtype, dtype), method="lsg", rank=2)
    before = step.model.body.weight.clone()
    step.step(batch)
    assert not torch.equal(step.model.body.weight, before)


def test_ids_next_to_numbers_of_another_type_name_the_type():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.classifier = nn.Embedding(5, 4), nn.Linear(16, 3)

        def forward(self, x, ids):
            return self.classifier(torch.cat([x, self.table(ids)], 1))

    data = {"x": INPUTS.double(), "ids": TARGETS}, TARGETS
    refused_free(
        private_step(Model(), method="dpsgd"), data, "give both one type.*must have the same dtype"
    )


def test_a_step_that_leaves_infinite_weights_is_free():
    """Adam's averages of float16 underflow: the first step divides by 0."""
    step = private_step(model().half(), method="dpsgd", optimizer="adam", learning_rate=1e4)
    refused_free(
        step,
        (INPUTS.half(), TARGETS),
        r"^one step leaves weights that are not finite \(\S+, torch.float16\)",
    )


@pytest.mark.parametrize("row", [0, 39])
def test_rows_of_a_pair_that_would_fail_later_are_named_at_once(row):
    step, x, y = private_step(method="dpsgd"), INPUTS.clone(), TARGETS.clone()
    x[row, 3], y[row] = float("inf"), 7
    with pytest.raises(
        ValueError,
        match=rf"training inputs have missing or infinite values: inf in row {row}, column 3",
    ):
        step.batches((x, TARGETS))
    with pytest.raises(
        ValueError, match=rf"the model gives 3 outputs, .*targets of training .*\(row {row}: 7\)"
    ):
        step.batches(TensorDataset(INPUTS, y))
    with pytest.raises(ValueError, match=r"training targets are complex \(torch.complex64\)"):
        step.batches((INPUTS, TARGETS.to(torch.complex64)))
    with pytest.raises(ValueError, match="inputs: expected numbers, got list"):
        step.batches(([["a"]] * EXAMPLES, TARGETS))
    with pytest.raises(ValueError, match="are complex"):
        step.batches((INPUTS.to(torch.complex64), TARGETS))
    assert free(step)


def test_a_ledger_of_other_rows_is_refused_still(tmp_path):
    private_step(method="dpsgd", ledger=tmp_path / "l").step(batch)
    with pytest.raises(LedgerError):
        private_step(method="dpsgd", ledger=tmp_path / "l", num_examples=EXAMPLES - 1)
