"""One example moves the clipped sum by the clip norm at most, whatever code of the user makes the
rows.
"""

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import fedlsg.strategies.private_step
from fedlsg.rows import OneByOne
from fedlsg.strategies.own_loop.user_inputs import of_function
from fedlsg.strategies.private_step import PrivateStep

COUNT = 60
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
X[0] = 500.0
Y = torch.arange(COUNT) % 3
TEXTS = [torch.arange(1, 4 + place % 3) % 8 + 1 for place in range(COUNT)]
TEXTS[0] = torch.arange(200) % 8 + 1


class Mean(nn.Module):
    """The mean of embeddings over all positions, padding among them."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)

    def forward(self, ids):
        return self.head(self.table(ids).mean(1))


class Masked(Mean):
    """The mean over those that a mask names."""

    def forward(self, input_ids, attention_mask):
        there = attention_mask.unsqueeze(2)
        return self.head((self.table(input_ids) * there).sum(1) / there.sum(1))


def tagger():
    return nn.Sequential(nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, 3))


def tag_loss(outputs, tags):
    return F.cross_entropy(outputs.transpose(1, 2), tags, reduction="none").mean(1)


def net():
    return nn.Linear(4, 3)


def step_on(model, loss=None, count=COUNT, **more):
    given = {"mechanism": "clip-only", "clip_norm": 1.0, "sample_rate": 1.0, "steps": 1} | more
    return PrivateStep(
        model,
        loss or nn.CrossEntropyLoss(),
        num_examples=count,
        method="dpsgd",
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        **given,
    )


def total(make, data, count=COUNT, loss=None, **how):
    """The sum of the clipped gradients of all examples."""
    torch.manual_seed(1)
    step = step_on(make(), loss, count)
    step.step(step.batches(data, **how) if how or not callable(data) else data)
    return torch.cat([(p.grad * count).flatten() for p in step.model.parameters()])


def moved(make, data_without, loss=None, **how):
    """By how much the first example moves it."""
    whole, rest = (total(make, data_without(first), COUNT - first, loss, **how) for first in (0, 1))
    return float((whole - rest).norm())


class Texts(Dataset):
    """Ragged rows, made by ``item`` of their place in the texts."""

    def __init__(self, first, item=lambda place: (TEXTS[place], int(Y[place]))):
        self.first, self.item = first, item

    def __len__(self):
        return COUNT - self.first

    def __getitem__(self, place):
        return self.item(place + self.first)


def named(place):
    return {"input_ids": TEXTS[place]}, int(Y[place])


def tagged(place):
    return TEXTS[place], TEXTS[place] % 3


RAGGED = {
    "own lengths": (Mean, lambda first: Texts(first), None, {}),
    "buckets": (Mean, lambda first: Texts(first), None, {"pad": 0}),
    "public lengths": (Mean, lambda first: Texts(first), None, {"pad": 0, "lengths": [4, 256]}),
    "a mask": (
        Masked,
        lambda first: Texts(first, named),
        None,
        {"pad": 0, "mask": "attention_mask"},
    ),
    "tags": (tagger, lambda first: Texts(first, tagged), tag_loss, {}),
    "padded tags": (
        tagger,
        lambda first: Texts(first, tagged),
        tag_loss,
        {"pad": 0, "pad_targets": -100},
    ),
}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("case", RAGGED)
def test_ragged_rows_of_a_data_set(case):
    make, data, loss, how = RAGGED[case]
    assert moved(make, data, loss, **how) <= 1.001


def pad_sequence(first):
    def rows(positions):
        taken = [TEXTS[place + first] for place in positions.tolist()]
        return nn.utils.rnn.pad_sequence(taken, batch_first=True), Y[positions + first]

    return rows


@pytest.mark.slow
def test_padding_to_the_longest_of_the_batch():
    """Refused as it is; by the line that the message prints, it trains. Alone and masked, rows have
    equal gradients.
    """
    with pytest.raises(
        ValueError, match=r"pads rows to the longest row.*step\.batches\(function, pad=0"
    ):
        moved(Mean, pad_sequence)
    assert moved(Mean, lambda first: Texts(first)) <= 1.001
    torch.manual_seed(1)
    step = step_on(Mean())
    step.step(step.batches(pad_sequence(0)))
    masked = total(Masked, Texts(0, named), pad=0, mask="attention_mask")
    torch.testing.assert_close(
        torch.cat([(p.grad * COUNT).flatten() for p in step.model.parameters()]), masked
    )


def whole_batches(monkeypatch):
    """Plant the mistake: what user code makes of a whole batch is trained on."""
    monkeypatch.setattr("fedlsg.strategies.own_loop.one_round.check_batches", lambda *given: None)
    monkeypatch.setattr(
        fedlsg.strategies.private_step,
        "of_function",
        lambda function, **more: PlantedBatch(function),
    )
    monkeypatch.setattr(PrivateStep, "_made_by", lambda self, batch: PlantedBatch(batch))


class PlantedBatch:
    """A batch function that calls the user's for all positions."""

    def __init__(self, function):
        self.function = function

    def __call__(self, positions):
        return self.function(positions)

    def draw_from(self, stream):
        pass


def standardised(first):
    def batch(positions):
        part = X[first:][positions]
        return (part - part.mean(0)) / (part.std(0, correction=0) + 1e-6), Y[first:][positions]

    return batch


@pytest.mark.parametrize(("make", "data"), [(net, standardised), (Mean, pad_sequence)])
def test_functions_of_whole_batches_would_move_more(make, data, monkeypatch):
    """Negative control of this file: the measure sees company."""
    whole_batches(monkeypatch)
    assert moved(make, data) > 1.5


def test_standardising_by_the_batch_is_refused_before_a_charge():
    step = step_on(net())
    with pytest.raises(ValueError, match="mixes examples: in a batch of"):
        step.step(standardised(0))
    assert step.epsilon() == 0


class AtOnce(TensorDataset):
    """Reads a batch less its mean, if it is asked for one."""

    def __getitem__(self, place):
        return super().__getitem__(place)

    def __getitems__(self, places):
        return list(zip(X[places] - X[places].mean(0), Y[places], strict=True))


def test_a_data_set_is_never_asked_for_a_batch():
    assert moved(net, lambda first: AtOnce(X[first:], Y[first:])) <= 1.001


def test_oversampled_rows_are_refused_or_move_more(monkeypatch):
    data = TensorDataset(X, Y)
    ten_times = Subset(data, [0] * 10 + list(range(1, COUNT)))
    for repeated in (ten_times, ConcatDataset([data, Subset(data, [0])])):
        step = step_on(net(), count=len(repeated))
        with pytest.raises(ValueError, match="more than once"):
            step.batches(repeated)
    # negative control
    monkeypatch.setattr(
        "fedlsg.strategies.own_loop.user_inputs.check_distinct", lambda *given: None
    )
    with_it = total(net, ten_times, COUNT + 9)
    without = total(net, Subset(data, range(1, COUNT)), COUNT - 1)
    assert float((with_it - without).norm()) > 5


class Augmented(Dataset):
    """Changes the sign of rows by chance, with draws that a user seeds in some way."""

    def __init__(self, draw, first=0):
        self.draw, self.first = draw, first

    def __len__(self):
        return COUNT - self.first

    def __getitem__(self, place):
        return (X[place + self.first] if self.draw(place) < 0.5 else -X[place + self.first]), int(
            Y[place + self.first]
        )


def seeded_by_the_row(place):
    random.seed(place)
    return random.random()


CHANCE = {
    "global": lambda place: random.random(),
    "seeded by the row": seeded_by_the_row,
    "a generator of the row": lambda place: np.random.default_rng(place).random(),
    "a generator of torch": lambda place: float(
        torch.rand((), generator=torch.Generator().manual_seed(place))
    ),
}


@pytest.mark.parametrize("case", CHANCE)
def test_draws_of_rows_are_secret_and_new_in_each_step(case):
    found = [_signs(CHANCE[case]) for _ in range(2)]
    assert not torch.equal(*found)


def _signs(draw):
    step = step_on(net(), steps=2)
    rows = step.batches(Augmented(draw))
    assert isinstance(rows, OneByOne)
    seen = [rows(torch.arange(1, COUNT))[0]]
    rows.draw_from(None)
    seen.append(rows(torch.arange(1, COUNT))[0])
    assert not torch.equal(*seen)
    return seen[0]


def test_seeds_by_the_row_are_known_without_the_interception(monkeypatch):
    """Negative control."""
    from fedlsg.rows import seeds_replaced

    monkeypatch.setattr(
        "fedlsg.rows.draws.seeds_replaced", lambda replace: seeds_replaced(lambda *given: None)
    )
    data = [Augmented(CHANCE["seeded by the row"]) for _ in range(2)]
    first, second = (step_on(net()).batches(one)(torch.arange(COUNT))[0] for one in data)
    assert torch.equal(first, second)


@pytest.mark.slow
def test_draws_of_a_reproducible_step_follow_from_its_seed():
    def weights(seed):
        torch.manual_seed(0)
        step = PrivateStep(
            net(),
            nn.CrossEntropyLoss(),
            num_examples=COUNT,
            method="dpsgd",
            sample_rate=0.5,
            steps=2,
            noise_multiplier=1.0,
            delta=1e-5,
            learning_rate=0.1,
            seed=seed,
            reproducible=True,
        )
        batches = step.batches(Augmented(CHANCE["global"]))
        for _ in range(2):
            step.step(batches)
        return torch.cat([p.detach().flatten() for p in step.model.parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(4))


def test_the_word_batched_is_shown_and_changes_no_number():
    function = lambda positions: (X[positions], Y[positions])  # noqa: E731
    steps = [step_on(copy.deepcopy(net())) for _ in range(2)]
    steps[1].model.load_state_dict(steps[0].model.state_dict())
    for step, how in zip(steps, ({}, {"batched": True}), strict=True):
        step.step(step.batches(function, **how))
    assert [step.batched for step in steps] == [False, True]
    for one, other in zip(*(step.model.parameters() for step in steps), strict=True):
        assert torch.equal(one.grad, other.grad)
    with pytest.raises(ValueError, match="batched=True is for a function"):
        steps[0].batches((X, Y), batched=True)
    with pytest.raises(ValueError, match="rows of a pair of tensors have one shape"):
        steps[0].batches((X, Y), pad=0)


ONE = X[:1].clone()
AGAIN = {
    "a view with another step": (
        lambda: ConcatDataset([TensorDataset(X, Y), TensorDataset(X[::2], Y[::2])]),
        2,
    ),
    "four steps": (
        lambda: ConcatDataset([TensorDataset(X[::k], Y[::k]) for k in (1, 2, 3, 5)]),
        4,
    ),
    "copies of the labels": (
        lambda: ConcatDataset([TensorDataset(X, Y.clone()) for _ in range(8)]),
        8,
    ),
    "a tensor in ten tuples": (
        lambda: [(ONE[0], 0) for _ in range(10)] + list(zip(X[1:], Y[1:].tolist(), strict=True)),
        10,
    ),
    "an expanded input": (lambda: (ONE.expand(40, 4), torch.full((40,), 1)), 40),
    "a broadcast input": (lambda: (np.broadcast_to(ONE.numpy(), (40, 4)), np.full(40, 1)), 40),
    "a broadcast input and label": (
        lambda: (np.broadcast_to(ONE.numpy(), (40, 4)), np.broadcast_to(1, 40)),
        40,
    ),
    "an expanded input of a TensorDataset": (
        lambda: TensorDataset(ONE.expand(40, 4), torch.full((40,), 1)),
        40,
    ),
    "an expanded field of a dict": (
        lambda: ({"input": ONE.expand(40, 4)}, torch.full((40,), 1)),
        40,
    ),
}
"""Data whose first row comes so many times."""


@pytest.mark.parametrize("form", AGAIN)
def test_a_row_that_comes_again_is_refused_or_moves_more(form, monkeypatch):
    make, times = AGAIN[form]
    count = len(make()[1]) if isinstance(make(), tuple) else len(make())
    step = step_on(net(), count=count, fresh_data=True)  # tests have one seed
    with pytest.raises(ValueError, match=rf"more than once \(one of them {times} times"):
        step.batches(make())
    assert step.steps_taken == 0
    # negative control: zeros in its place
    monkeypatch.setattr(
        "fedlsg.strategies.own_loop.user_inputs.check_distinct", lambda *given: None
    )
    sums = []
    for scale in (1.0, 0.0):
        with monkeypatch.context() as patch:
            patch.setattr(
                f"{__name__}.X", X * torch.where(torch.arange(COUNT) == 0, scale, 1.0)[:, None]
            )
            patch.setattr(f"{__name__}.ONE", ONE * scale)
            sums.append(total(net, make(), count))
    assert float((sums[0] - sums[1]).norm()) > 0.8 * times


class Items(Dataset):
    """Rows as Flower's templates have them: dicts, with these names."""

    def __init__(self, *names):
        self.names = names

    def __len__(self):
        return COUNT

    def __getitem__(self, place):
        values = (X[place], int(Y[place]), place)
        return dict(zip(self.names, values, strict=False))


class Twice(DataLoader):
    """Gives its batches twice."""

    def __iter__(self):
        return iter([*super().__iter__(), *super().__iter__()])


@pytest.mark.parametrize("name", ["label", "labels", "target", "targets"])
def test_a_template_of_flower_needs_no_other_data(name):
    """Its DataLoader of dicts gives what its rows as pairs give."""
    loader = DataLoader(Items("img", name), batch_size=8, shuffle=True)
    assert torch.equal(total(net, loader, pad=None), total(net, TensorDataset(X, Y), pad=None))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Items("img", "fine", "coarse"), "got dict of img, fine, coarse"),
        (Items("img", "label", "labels"), "got dict of img, label, labels"),
        (DataLoader(Items("img", "label"), collate_fn=list), "has a collate_fn, list"),
        (
            DataLoader(Items("img", "label"), sampler=WeightedRandomSampler([1.0] * COUNT, COUNT)),
            "has a WeightedRandomSampler",
        ),
        (
            DataLoader(
                Items("img", "label"),
                batch_sampler=BatchSampler(SubsetRandomSampler(range(COUNT - 9)), 5, False),
            ),
            "has a SubsetRandomSampler",
        ),
        (
            DataLoader(Items("img", "label"), sampler=SequentialSampler(range(9))),
            "has a SequentialSampler",
        ),
        (
            DataLoader(Items("img", "label"), batch_size=None, sampler=RandomSampler(range(9))),
            "has a RandomSampler",
        ),
        (Twice(Items("img", "label")), "has a Twice"),
    ],
)
def test_what_a_template_may_change_is_refused_by_its_name(data, words):
    torch.manual_seed(2)  # other weights than those that ``total`` trains
    step = step_on(net())
    with pytest.raises(ValueError, match=words):
        step.step(step.batches(data))


def test_the_position_of_a_row_says_nothing_of_the_batch():
    """It is alone in its memory, where a view of all positions shows them."""

    def memory(positions):
        return positions.storage_offset(), positions.untyped_storage().nbytes()

    asked = []

    def rows(positions):
        asked.append(positions)
        return X[positions], Y[positions]

    of_function(rows, device=torch.device("cpu"))(torch.tensor([7, 3, 9]))
    assert [position.tolist() for position in asked] == [[7], [3], [9]]
    assert [*map(memory, asked)] == [(0, 8)] * 3
    assert memory(torch.tensor([7, 3, 9]).split(1)[1]) == (1, 24), "negative control"
