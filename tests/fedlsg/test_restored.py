"""What a rehearsal may change is afterwards, bit for bit, what it was; each planted omission is seen."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch
from torch import nn

import fedlsg.user_code.objects
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
    return repr((
        [p.tolist() for p in model.parameters()], grads, model.mean.tolist(), model.table.tolist(), model.calls,
        model.seen, model.training, sorted(vars(model)), model.draws.get_state().sum().item(),
        model.numbers.bit_generator.state, model.dice.getstate(), optimizer.state_dict(), scheduler.state_dict(),
        torch.get_rng_state().sum().item(), random.getstate(), np.random.get_state(),
    ))  # fmt: skip


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


@pytest.mark.parametrize("forgotten", ["_of_process", "_of_generator", "_of_tensor", "_of_items"])
def test_what_is_forgotten_is_noticed(monkeypatch, forgotten):
    """Negative controls: global generators, generators in objects, numbers, attributes, lists."""
    nothing = {"_of_process": lambda: iter(()), "_of_generator": lambda thing: None, "_of_tensor": lambda t: None}
    monkeypatch.setattr(fedlsg.user_code.objects, forgotten, nothing.get(forgotten, lambda *given: lambda: None))
    assert not leaves_no_trace()
