"""Integers that do not begin at 0: made-up ones are within what the model takes, or the message
names ``example=``.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedlsg.strategies.own_loop import one_round
from fedlsg.strategies.own_loop.made_up import Maker
from fedlsg.strategies.private_step import PrivateStep

EXAMPLES = 20
DRAW = torch.Generator().manual_seed(4)
TARGETS = torch.randint(3, (EXAMPLES,), generator=DRAW)


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, (EXAMPLES, *shape), generator=DRAW)


class Shifted(nn.Module):
    """Reads a table of 5 rows by ids from ``start`` on."""

    def __init__(self, start: int) -> None:
        super().__init__()
        self.start, self.table, self.head = start, nn.Embedding(5, 4), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        found = self.table(ids - self.start)
        return self.head(found.flatten(1, -2).mean(1) if found.ndim > 2 else found)


class Hidden(Shifted):
    """The start is no number of the code."""

    def __init__(self) -> None:
        super().__init__(0)
        self.start = torch.tensor(37)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            x, lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.rnn(packed)[1][0][0])


class Three(nn.Module):
    """Ids from 1, one domain, lengths from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.domains = nn.Embedding(1, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor, domain: Tensor, lengths: Tensor) -> Tensor:
        if bool((lengths < 1).any()):
            raise ValueError("a length is 0")
        mask = (torch.arange(ids.shape[1]) < lengths[:, None]).float()[..., None]
        x = self.table(ids - 1) + self.domains(domain)[:, None]
        return self.head((x * mask).sum(1) / lengths[:, None])


class Loss:
    """Of classes from 1."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets - 1, reduction="none")


FORMS: dict[str, tuple[Any, Any]] = {
    "ids from 1": (lambda: Shifted(1), integers(1, 6)),
    "many ids from 1": (lambda: Shifted(1), integers(1, 6, 7)),
    "small integers": (lambda: Shifted(1), integers(1, 6, 7).to(torch.int32)),
    "ids from 3": (lambda: Shifted(3), integers(3, 8)),
    "ids from 100": (lambda: Shifted(100), integers(100, 105, 2)),
    "lengths": (
        Packed,
        {"x": torch.randn(EXAMPLES, 7, 4, generator=DRAW), "lengths": integers(1, 8)},
    ),
    "three fields": (
        Three,
        {"ids": integers(1, 6, 7), "domain": integers(0, 1), "lengths": integers(1, 8)},
    ),
}


def step_of(model: nn.Module, loss: Any = None, **settings: Any) -> PrivateStep:
    return PrivateStep(
        model,
        loss or nn.CrossEntropyLoss(),
        num_examples=EXAMPLES,
        method="dpsgd",
        sample_rate=0.5,
        steps=3,
        noise_multiplier=1.0,
        delta=1e-3,
        learning_rate=0.1,
        **settings,
    )


def some(inputs: Any) -> Any:
    """Public rows, as an owner would give them."""
    return {name: t[:6] for name, t in inputs.items()} if isinstance(inputs, dict) else inputs[:6]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("form", [f for f in FORMS if f not in ("ids from 3", "ids from 100")])
def test_integers_that_do_not_begin_at_0_train(form):
    make, inputs = FORMS[form]
    step = step_of(make())
    step.step(step.batches((inputs, TARGETS)))
    assert step.steps_taken == 1


@pytest.mark.thinned(1)
@pytest.mark.parametrize("form", ["ids from 1", "ids from 3", "ids from 100", "lengths", "hidden"])
def test_they_train_with_an_example(form):
    make, inputs = (Hidden, integers(37, 42)) if form == "hidden" else FORMS[form]
    step = step_of(make(), example=(some(inputs), TARGETS[:6]))
    step.step(step.batches((inputs, TARGETS)))
    assert step.steps_taken == 1


@pytest.mark.parametrize("mechanism", ["dp", "noise-only"])
def test_a_range_that_nobody_can_guess_is_refused_free_and_names_the_way_out(mechanism):
    step = step_of(Hidden(), mechanism=mechanism) if mechanism == "dp" else step_of_noise()
    with pytest.raises(ValueError, match=r"give example=\(inputs, targets\)"):
        step.step(step.batches((integers(37, 42), TARGETS)))
    assert not step._account.ledger.entries


def step_of_noise() -> PrivateStep:
    return PrivateStep(
        Hidden(),
        nn.CrossEntropyLoss(),
        num_examples=EXAMPLES,
        method="dpsgd",
        mechanism="noise-only",
        sample_rate=0.5,
        steps=3,
        noise_multiplier=1.0,
        learning_rate=0.1,
    )


def test_classes_from_1_train():
    step = step_of(nn.Linear(4, 3), Loss())
    step.step(step.batches((torch.randn(EXAMPLES, 4), TARGETS + 1)))
    assert step.steps_taken == 1


def test_a_row_out_of_range_is_named_where_ids_begin_at_1():
    ids = integers(1, 6)
    ids[7] = 0
    with pytest.raises(ValueError, match="row 7, with inputs from 0 to 0"):
        step_of(Shifted(1)).batches((ids, TARGETS))


def test_made_up_rows_are_within_what_the_model_takes():
    step = step_of(Three())
    rows = FORMS["three fields"][1]
    made, _ = one_round.accepted(step.model, step._loss, rows, TARGETS)
    assert int(made["ids"].min()) >= 1
    assert int(made["lengths"].min()) >= 1
    assert not made["domain"].any()
    step.model(**made)


def test_negative_control_without_plain_rows_the_rehearsal_fails(monkeypatch):
    monkeypatch.setattr(one_round, "accepted", lambda *given: None)
    step = step_of(Shifted(1))
    with pytest.raises(ValueError, match=r"index out of range|give example="):
        step.step(step.batches((integers(1, 6), TARGETS)))


def test_negative_control_zeros_and_ones_alone_find_no_rows(monkeypatch):
    monkeypatch.setattr(Maker, "fills", lambda self: iter(()))
    step = step_of(Shifted(100))
    with pytest.raises(ValueError, match="give example="):
        step.step(step.batches((integers(100, 105), TARGETS)))
