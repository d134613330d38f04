"""Numbers in a user's code: constants, closures, defaults, globals, attributes; nothing is
called.
"""

from dataclasses import dataclass
from functools import partial, wraps

import pytest
import torch
from torch import nn

from fedlsg.user_code.objects import written

MISSING, CONFIG = -999.0, {"padding": 77}


def no_default(x, most=300.0, *, least=-8):
    return x


def constant(x):
    return x == -7.5


def through_another(x):
    return constant(x)


def of_global(x):
    return x == MISSING, x == CONFIG["padding"]


def inner(x):
    return [y > 5000 for y in (x,)], lambda z: z in (12, 13)


def closure(value):
    return lambda x: x == value


def decorated(function):
    @wraps(function)
    def call(*given):
        return function(*given)

    return call


class Model(nn.Module):
    """A user's own: attributes, methods, properties."""

    limit = property(lambda self: 41)

    def __init__(self, pad: int) -> None:
        super().__init__()
        self.pad, self.body = pad, nn.Embedding(10, 3, padding_idx=9)
        self.register_buffer("scale", torch.tensor(3.5))

    @torch.no_grad()
    def forward(self, x):
        return x == 55

    @staticmethod
    def other(x):
        return x == 66


@dataclass
class Setting:
    threshold: float = 2.5

    def __call__(self, x):
        raise AssertionError("called")


@pytest.mark.parametrize(
    ("thing", "numbers"),
    [
        (no_default, {300.0, -8}),
        (constant, {-7.5}),
        (through_another, {-7.5}),
        (of_global, {-999.0, 77}),
        (inner, {5000, 12, 13}),
        (closure(-42), {-42}),
        (partial(no_default, 17), {300.0, -8, 17}),
        (decorated(constant), {-7.5}),
        (torch.no_grad()(constant), {-7.5}),
        (Setting(), {2.5}),
        (Setting(9).__call__, {9}),
        (Model(100), {100, 9, 55, 66, 41}),
        (nn.Sequential(Model(4)), {4, 9, 55, 66, 41}),
    ],
)
def test_numbers_of_the_code_are_found(thing, numbers):
    found = set(written(thing))
    assert found == numbers


@pytest.mark.parametrize(
    "thing",
    [
        nn.Linear(6, 30),
        nn.TransformerEncoderLayer(32, 4, 64, dropout=0.3),
        nn.Dropout(0.25),
        nn.GroupNorm(4, 8, eps=3e-5),
        torch.nn.functional.cross_entropy,
        len,
        None,
        "7",
        torch.tensor(7.0),
        True,
        closure(torch.full((3,), 8.0)),
    ],
)
def test_library_code_and_data_give_nothing(thing):
    assert written(thing) == ()
