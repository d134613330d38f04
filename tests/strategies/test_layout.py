"""Made-up rows are in memory as those of the data are: what fails on the layout fails before a
charge.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.gradients import Batch
from fedlsg.strategies.own_loop import one_round
from fedlsg.strategies.own_loop.row_layout import laid_out, layout_of
from fedlsg.strategies.private_step import PrivateStep

EXAMPLES = 40
DRAW = torch.Generator().manual_seed(2)
TARGETS = torch.randint(3, (EXAMPLES,), generator=DRAW)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAW)


LAYOUTS = {
    "channels last": lambda: normal(EXAMPLES, 8, 8, 3).permute(0, 3, 1, 2),
    "memory format": lambda: normal(EXAMPLES, 3, 8, 8).contiguous(
        memory_format=torch.channels_last
    ),
    "turned": lambda: normal(EXAMPLES, 3, 8, 8).transpose(2, 3),
    "examples last": lambda: normal(3, 8, 8, EXAMPLES).permute(3, 0, 1, 2),
    "cut": lambda: normal(EXAMPLES, 3, 8, 12)[..., 2:10],
    "every second": lambda: normal(EXAMPLES, 3, 8, 16)[..., ::2],
    "repeated": lambda: normal(EXAMPLES, 1, 8, 8).expand(EXAMPLES, 3, 8, 8),
}


def can_be_viewed(rows: Tensor, *shape: int) -> bool:
    try:
        rows.view(len(rows), *shape)
    except RuntimeError:
        return False
    return True


@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    order=st.randoms(use_true_random=False),
    cut=st.lists(
        st.sampled_from(["all", "first", "every second", "repeat"]), min_size=4, max_size=4
    ),
    count=st.integers(1, 5),
)
@settings(max_examples=200, deadline=None)
def test_other_rows_get_the_layout_and_keep_their_numbers(sizes, order, cut, count):
    axes = list(range(len(sizes) + 1))
    order.shuffle(axes)
    like = torch.randn([(3, *sizes)[axis] * 2 for axis in axes]).permute(
        [axes.index(axis) for axis in sorted(axes)]
    )
    cuts = {
        "all": slice(None),
        "first": slice(0, 2),
        "every second": slice(None, None, 2),
        "repeat": slice(0, 1),
    }
    like = like[tuple(cuts[how] for how in ("all", *cut[: len(sizes)]))]
    like = like.expand(6, *[3 if how == "repeat" else -1 for how in cut[: len(sizes)]])
    rows = torch.randn(count, *like.shape[1:])
    made = laid_out(rows, layout_of(like))
    assert made.shape == rows.shape
    if "repeat" not in cut[: len(sizes)]:
        assert torch.equal(made, rows)
    if count > 1:
        assert layout_of(made) == layout_of(like)
        assert can_be_viewed(made, -1) == can_be_viewed(like, -1)
    assert torch.equal(laid_out(made, layout_of(rows)), made)


class Net(nn.Module):
    """As in many tutorials: ``view``, which needs rows that lie one after the other in memory."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.first, self.last, self.how = nn.Conv2d(3, 4, 3, padding=1), nn.Linear(4 * 64, 3), how

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "inputs":
            x = x.view(-1, 3 * 64).view(-1, 3, 8, 8)
        x = torch.relu(self.first(x))
        return self.last(x.view(-1, 4 * 64) if self.how == "features" else x.reshape(-1, 4 * 64))


def step_of(how: str, **settings: Any) -> PrivateStep:
    return PrivateStep(
        Net(how),
        nn.CrossEntropyLoss(),
        num_examples=EXAMPLES,
        method="dpsgd",
        sample_rate=0.5,
        steps=9,
        noise_multiplier=1.0,
        delta=1e-3,
        learning_rate=0.1,
        **settings,
    )


@pytest.mark.thinned(6)
@pytest.mark.parametrize("how", ["inputs", "features", "reshape"])
@pytest.mark.parametrize("form", LAYOUTS)
def test_a_view_of_scattered_rows_trains_or_is_refused_free(form, how):
    """What an index leaves scattered depends on torch; the model fails on it before the charge, or
    not at all.
    """
    step, x = step_of(how), LAYOUTS[form]()
    fails = False
    try:
        step.model(x[torch.arange(2)])
    except RuntimeError:
        fails = True
    if not fails:
        step.step(step.batches((x, TARGETS)))
        return
    with pytest.raises(ValueError, match="nothing was charged") as caught:
        step.step(step.batches((x, TARGETS)))
    assert "not contiguous" in str(caught.value)
    assert "reshape" in str(caught.value)
    assert step.epsilon() == 0


def test_a_function_of_many_positions_is_rehearsed_on_its_layout():
    x, step = LAYOUTS["cut"](), step_of("inputs")
    layout = layout_of(x)
    rows = step.batches(lambda places: (laid_out(x[places], layout), TARGETS[places]), batched=True)
    with pytest.raises(ValueError, match="not contiguous"):
        step.step(rows)
    assert step.epsilon() == 0


def test_an_example_is_rehearsed_in_the_layout_of_the_data():
    step = step_of("inputs", example=(normal(6, 3, 8, 8), TARGETS[:6]))
    with pytest.raises(ValueError, match="not contiguous"):
        step.step(step.batches((LAYOUTS["channels last"](), TARGETS)))
    assert step.epsilon() == 0


def test_rows_of_another_layout_are_rehearsed_again():
    step, x = step_of("inputs"), normal(EXAMPLES, 3, 8, 8)
    step.step(step.batches((x, TARGETS)))
    spent = step.epsilon()
    with pytest.raises(ValueError, match="not contiguous"):
        step.step(step.batches((x.contiguous(memory_format=torch.channels_last), TARGETS)))
    assert step.epsilon() == spent


def test_negative_control_dense_made_up_rows_let_a_view_be_charged(monkeypatch):
    def dense(rows: Batch, layout: Any) -> Batch:
        return rows

    monkeypatch.setattr(one_round, "laid_out", dense)
    step = step_of("inputs")
    with pytest.raises(RuntimeError, match="view"):
        step.step(step.batches((LAYOUTS["channels last"](), TARGETS)))
    assert step.epsilon() > 0
