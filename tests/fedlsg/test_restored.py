"""Before a charge: what a rehearsal may change is as it was."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import fedlsg.user_code.objects
from fedlsg.gradients import per_example_loss
from fedlsg.strategies.own_loop.row_checks import (
    check_extremes,
    check_loss_takes,
    check_numbers,
    not_finite,
)
from fedlsg.user_code.objects import restored


class Counting(nn.Module):
    """A module with state of every kind."""

    def __init__(self):
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(3, 2), 0, []
        self.register_buffer("mean", torch.tensor([1.0, float("nan")]))
        self.table = np.zeros(3)
        self.draws = torch.Generator().manual_seed(1)
        self.numbers = np.random.default_rng(2)
        self.dice = random.Random(3)
        self.count = counter()


def counter():
    """A function whose state is in its closure."""
    count = 0

    def next_number():
        nonlocal count
        count += 1
        return count

    return next_number


def everything(model, optimizer, scheduler):
    """All that can be observed, as comparable values."""
    grads = [None if p.grad is None else p.grad.tolist() for p in model.parameters()]
    return repr(
        (
            [p.tolist() for p in model.parameters()],
            grads,
            model.mean.tolist(),
            model.table.tolist(),
            model.calls,
            model.seen,
            model.training,
            sorted(vars(model)),
            model.draws.get_state().sum().item(),
            model.numbers.bit_generator.state,
            model.dice.getstate(),
            optimizer.state_dict(),
            scheduler.state_dict(),
            torch.get_rng_state().sum().item(),
            random.getstate(),
            np.random.get_state(),
        )
    )


def change(model, optimizer, scheduler):
    """Use all of it."""
    model.layer(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    scheduler.step()
    model.calls += 1
    model.seen.append(1)
    model.table += 1
    model.mean += 1
    model.eval()
    model.added = 1
    torch.rand(1, generator=model.draws)
    model.numbers.random()
    model.dice.random()
    random.random()
    np.random.rand()


def subject():
    model = Counting()
    model.layer.weight.grad = torch.ones(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def leaves_no_trace() -> bool:
    things = subject()
    before = everything(*things)
    with restored(*things):
        change(*things)
        things[0].count()
        assert everything(*things) != before
    return everything(*things) == before and things[0].count() == 1


def test_everything_is_as_it_was():
    assert leaves_no_trace()


def test_also_after_an_error():
    things = subject()
    before = everything(*things)
    with suppress(RuntimeError), restored(*things):
        change(*things)
        raise RuntimeError
    assert everything(*things) == before


def test_of_a_function_that_reads_data_only_generators_are_restored():
    draws, rows = torch.Generator().manual_seed(0), torch.zeros(3)

    def batch():
        rows.add_(torch.rand(3, generator=draws))

    before = draws.get_state()
    with restored(generators_of=batch):
        batch()
    assert torch.equal(draws.get_state(), before)
    assert rows.sum() > 0


@pytest.mark.parametrize("forgotten", ["_of_process", "state_of", "_of_tensor", "_of_items"])
def test_what_is_forgotten_is_noticed(monkeypatch, forgotten):
    """Negative controls: global generators, generators in objects, numbers, attributes, lists."""
    nothing = {
        "_of_process": lambda: iter(()),
        "state_of": lambda thing: None,
        "_of_tensor": lambda t: lambda: None,
    }
    objects = fedlsg.user_code.objects
    idle = nothing.get(forgotten, lambda *given: lambda: None)
    ways = [(k, idle if way is getattr(objects, forgotten) else way) for k, way in objects.OF_KINDS]
    monkeypatch.setattr(objects, "OF_KINDS", ways)
    monkeypatch.setattr(objects, forgotten, idle)
    assert not leaves_no_trace()


X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(200) % 3
MODEL = nn.Linear(4, 3)


def run(rows):
    return MODEL(X[rows])


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["", "x"])
def test_a_number_that_is_not_finite_is_named(wrong, name):
    x = X.clone()
    x[130, 2] = wrong
    inputs = {name: x, "ids": Y} if name else x
    with pytest.raises(
        ValueError, match=rf"test inputs{' x' if name else ''} have missing .*row 130, column 2"
    ):
        check_numbers(inputs, "test")


def test_rows_have_the_numbers_that_are_given():
    x = torch.tensor([[0.0], [float("nan")]])
    with pytest.raises(ValueError, match="row 41, column 0"):
        check_numbers(x, "train", rows=torch.tensor([40, 41]))


def test_complex_inputs_are_refused_and_integers_are_finite():
    with pytest.raises(ValueError, match=r"are complex \(torch.complex64\)"):
        check_numbers(X.to(torch.complex64), "train")
    assert not len(not_finite(Y))
    check_numbers({"a": X, "b": Y, "c": X > 0}, "train")


LOSSES = {
    "cross entropy": nn.CrossEntropyLoss(),
    "a function": functional.cross_entropy,
    "one's own": lambda o, t: -o.log_softmax(1).gather(1, t[:, None]).squeeze(1),
    "margin": nn.MultiMarginLoss(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
@pytest.mark.parametrize("row", [0, 63, 64, 199])
@pytest.mark.parametrize("label", [7, -1, 3])
def test_a_class_that_the_outputs_have_not_is_named(loss, row, label):
    y = Y.clone()
    y[row] = label
    words = rf"cannot take the target of train row {row}, {label}: |\(row {row}: {label}\)"
    with pytest.raises(ValueError, match=words):
        check_loss_takes(per_example_loss(loss), run, y, "train")


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (Y + 1, "classes 0 to 2, and the targets of train are 1 to 3 .*: give targets - 1"),
        (Y + 2, "the targets of train are 2 to 4 .*: give the model 5 outputs"),
        (Y - 1, "the targets of train are -1 to 1 .*: give targets from 0 on, or ignore_index=-1"),
    ],
)
def test_numbers_of_classes_and_of_outputs_are_compared_in_words(targets, said):
    with pytest.raises(ValueError, match=f"^the model gives 3 outputs, .*{said}") as error:
        check_loss_takes(per_example_loss(nn.CrossEntropyLoss()), run, targets, "train")
    assert "IndexError" not in str(error.value)


@pytest.mark.parametrize("row", [None, 0, 349_525, 999_999])
def test_a_million_targets_are_looked_at_in_few_calls_and_each_of_them(row):
    """A loss call for every 64 targets took 100 CPU s of a million clients' rows."""
    calls, y = [], torch.arange(1_000_000) % 3
    seen = torch.zeros(3, dtype=torch.int64)

    def loss(outputs, targets):
        calls.append(len(targets))
        seen.add_(targets.clamp(0, 2).bincount(minlength=3))
        return functional.cross_entropy(outputs, targets, reduction="none")

    if row is None:
        assert check_loss_takes(loss, lambda rows: run(rows % 200), y, "train")
        assert len(calls) < 10
        assert (seen >= y.bincount()).all()
        return
    y[row] = 3
    with pytest.raises(ValueError, match=f"cannot take the target of train row {row}, 3: "):
        check_loss_takes(loss, lambda rows: run(rows % 200), y, "train")


def test_targets_that_are_ignored_pass():
    y = Y.clone()
    y[5] = -100
    assert check_loss_takes(per_example_loss(nn.CrossEntropyLoss()), run, y, "train")
    ignoring = lambda o, t: (o[:, 0] - t.nan_to_num()).square() * t.isfinite()  # noqa: E731
    numbers = torch.where(Y == 1, torch.nan, 1.0)
    assert check_loss_takes(ignoring, run, numbers, "train")


def test_a_target_that_gives_no_finite_loss_is_named():
    numbers = torch.ones(200, 3)
    numbers[77, 1] = float("nan")
    with pytest.raises(ValueError, match=r"train row 77, of shape \(3,\): the loss is nan"):
        check_loss_takes(per_example_loss(nn.MSELoss()), run, numbers, "train")


def test_a_loss_that_needs_the_outputs_of_its_own_row_is_judged_by_them():
    """Where outputs of another row give no finite loss, those of the row itself decide."""
    outputs = torch.eye(3)[Y]
    loss = lambda o, t: -o.gather(1, t[:, None]).squeeze(1).log()  # noqa: E731
    assert check_loss_takes(loss, lambda rows: outputs[rows], Y.flip(0).flip(0), "train")


@pytest.mark.parametrize("row", [0, 100, 199])
def test_an_integer_beyond_its_table_is_named(row):
    ids = torch.arange(200)[:, None] % 9
    table = nn.Embedding(9, 2)
    check_extremes(lambda rows: table(ids[rows]), ids, "train")
    ids[row] = 9
    with pytest.raises(
        ValueError,
        match=rf"the model fails on train row {row}, with inputs from 9 to 9: IndexError",
    ):
        check_extremes(lambda rows: table(ids[rows]), ids, "train")


def test_every_column_of_integers_has_its_own_table():
    ids = torch.stack([torch.arange(50) % 3, torch.arange(50) % 40], 1)
    tables = nn.Embedding(3, 2), nn.Embedding(40, 2)
    look = lambda rows: [table(ids[rows, k]) for k, table in enumerate(tables)]  # noqa: E731
    check_extremes(look, ids, "train")
    ids[17, 0] = 5
    with pytest.raises(ValueError, match="row 17"):
        check_extremes(look, {"ids": ids}, "train")
