"""A transform of a user: it makes every row from itself alone, on rows as they are and on made-up
ones.
"""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import fedlsg
from fedlsg.rows import seeds_replaced
from fedlsg.simulations.workloads.base import Options, Request, silent
from fedlsg.simulations.workloads.rows import transform
from tests.fedlsg.support.batch_zoo import HONEST_TRANSFORMS, MIXING_TRANSFORMS, X, Y
from tests.simulations.support.own import QUICK, build, load, refused, workload

REFUSED = "for a row alone than in a batch, which mixes examples: make each row from itself alone"


def loaded(x, change, **more):
    return load(
        fedlsg.Workload(
            model=build,
            train=(x, Y),
            test=(x, Y),
            loss=torch.nn.CrossEntropyLoss(),
            transform=change,
            **more,
        )
    )


@pytest.mark.parametrize("case", MIXING_TRANSFORMS)
@pytest.mark.parametrize("form", ["numbers", "at once"])
def test_a_transform_that_mixes_is_refused(case, form):
    change = MIXING_TRANSFORMS[case]
    x = X.clone()
    x[::7, 2] = torch.nan if "missing" in case else 0.0
    if "-999" in case:  # without such a row nothing mixes here
        x[0, 2] = -999
    with refused(REFUSED):
        if form == "numbers":
            loaded(x, change)
        else:
            loaded([tuple(row) for row in x.tolist()], lambda rows: change(torch.tensor(rows)))


@pytest.mark.parametrize("case", HONEST_TRANSFORMS)
def test_an_honest_transform_passes(case):
    loaded(X, HONEST_TRANSFORMS[case])


def late(x):
    """Mixes in batches that are larger than those that are tried."""
    return x[:, 1:] - (x[:, 1:].mean(0) if len(x) > 600 else 0)


@pytest.mark.parametrize("change", [late, lambda x: {"x": late(x)}])
def test_training_rows_are_transformed_alone_whatever_a_check_sees(change):
    made = loaded(X, change)
    rows = made.train.inputs[np.zeros(700, dtype=np.int64)]
    rows[0] = 5e6
    one, other = (_values(made.train.prepare(part)) for part in (rows, rows[1:]))
    assert torch.equal(one[1:], other)
    one, other = (_values(made.test.prepare(part)) for part in (rows, rows[1:]))  # negative control
    assert not torch.equal(one[1:], other)


def _values(made):
    return made["x"] if isinstance(made, dict) else made


IMAGES = torch.full((len(Y), 3, 8, 8), 255, dtype=torch.uint8)


def test_honest_transforms_of_images_pass():
    loaded(IMAGES, lambda x: x.float() / x.flatten(1).amax(1).view(-1, 1, 1, 1).clamp(min=1))
    loaded(IMAGES, lambda x: {"x": x / 255, "mean": x.float().mean((1, 2, 3))})


def test_a_column_is_compared_in_its_own_units(monkeypatch):
    """Negative control: in units of the largest number of a row, a unix time hides all other
    columns.
    """

    def in_units_of_the_row(alone, together):
        scale = alone.abs().max()
        return [] if bool(((alone - together).abs() <= 1e-4 * scale).all()) else [0]

    case = MIXING_TRANSFORMS["standardised next to a unix time"]
    with refused(REFUSED):
        loaded(X, case)
    monkeypatch.setattr(transform, "differing", in_units_of_the_row)
    loaded(X, case)


def test_generators_are_left_as_they_were():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    with refused(REFUSED):
        loaded(X, MIXING_TRANSFORMS["chance"])
    loaded(X, HONEST_TRANSFORMS["products"])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])


class Items(torch.utils.data.Dataset):
    """Items one by one, less something."""

    def __init__(self, less) -> None:
        self.less = less

    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, place):
        return X[place] - self.less(X[place]), Y[place]


def remembered():
    seen = [torch.zeros(6)]

    def less(row):
        seen[0] = 0.9 * seen[0] + row
        return seen[0]

    return less


def test_a_data_set_with_a_memory_is_refused():
    train = Items(remembered())
    with refused("is another item after others were read, which mixes examples"):
        load(
            fedlsg.Workload(model=build, train=train, test=(X, Y), loss=torch.nn.CrossEntropyLoss())
        )


GENERATOR, NAMED = np.random.default_rng(0), np.random.default_rng(0)


def seeded(row):
    random.seed(float(row[0]))
    return random.random()


DRAWS = {
    "torch": lambda row: torch.rand(1),
    "numpy": lambda row: np.random.rand(),
    "python": lambda row: random.random(),
    "a seed of the row": seeded,
    "a global generator": lambda row: NAMED.random(),
    "a generator of its own": lambda row, generator=GENERATOR: generator.random(),
}


def inputs_of(draw, **more):
    """The training and test inputs that are read of a Dataset, changed by a draw."""
    data = Items(lambda row: draw(row) * torch.ones(6))
    own = fedlsg.Workload(model=build, train=data, test=data, loss=torch.nn.CrossEntropyLoss())
    made = own.load(Request(**REQUEST | more))
    return [split.batch(torch.arange(len(Y)))[0] for split in (made.train, made.test)]


REQUEST = {
    "data_dir": None,
    "cache_dir": None,
    "options": Options(),
    "progress": silent,
    "public_only": False,
}


@pytest.mark.parametrize("draw", [name for name in DRAWS if name != "a generator of its own"])
def test_draws_of_training_rows_are_secret_and_those_of_test_public(draw):
    """A number of the row says nothing of its draws, whatever the code seeds, and nobody else has
    them.
    """
    first, second = (inputs_of(DRAWS[draw]) for _ in range(2))
    assert not torch.equal(first[0], second[0])
    assert torch.equal(first[1], second[1])


@pytest.mark.parametrize("draw", [name for name in DRAWS if name != "a generator of its own"])
def test_draws_of_a_reproducible_run_follow_from_its_seed(draw):
    first, second, other = (inputs_of(DRAWS[draw], seed=seed)[0] for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_a_seed_of_the_row_is_known_without_the_interception(monkeypatch):
    """Negative control."""
    monkeypatch.setattr(
        "fedlsg.rows.draws.seeds_replaced", lambda replace: seeds_replaced(lambda *given: None)
    )
    first, second = (inputs_of(seeded)[0] for _ in range(2))
    assert torch.equal(first, second)


class Held(Items):
    """Draws from a generator that it keeps."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(0)

    def __getitem__(self, place):
        return X[place] + float(self.generator.random()), Y[place]


def test_a_generator_that_the_data_keep_is_seeded_in_secret():
    own = [
        fedlsg.Workload(model=build, train=Held(), test=(X, Y), loss=torch.nn.CrossEntropyLoss())
        for _ in range(2)
    ]
    assert not torch.equal(*(load(one).train.batch(torch.arange(9))[0] for one in own))


@pytest.mark.parametrize(
    "repeated",
    [
        Subset(Items(lambda row: 0), [0, 1, 1, 2]),
        ConcatDataset([Subset(Items(lambda row: 0), [0, 0, 1, 2])]),
    ],
)
def test_a_training_row_that_comes_twice_is_refused(repeated):
    own = {"model": build, "loss": torch.nn.CrossEntropyLoss()}
    with refused("1 row more than once", "weights in the loss"):
        load(fedlsg.Workload(train=repeated, test=(X, Y), **own))
    load(fedlsg.Workload(train=(X, Y), test=repeated, **own))


@pytest.mark.slow
def test_a_run_on_rows_that_draw_is_resumed(tmp_path):
    """With new draws; other targets are refused, and other inputs of rows that draw nothing."""
    own = {
        "model": linear,
        "test": (X[:, 1:], Y),
        "loss": torch.nn.CrossEntropyLoss(),
        "out": tmp_path / "run",
    }
    given = QUICK | own | {"reproducible": False, "rounds": 3}

    def stop(row):
        raise KeyError

    for place, (train, other) in enumerate(
        [(Shifted(random.random), None), (Shifted(lambda: 0), Shifted(lambda: 1))]
    ):
        given["out"] = tmp_path / str(place)
        with pytest.raises(KeyError):
            fedlsg.simulate(train=train, callbacks=[stop], **given)
        if other is not None:
            with refused("the data or its partition differ"):
                fedlsg.simulate(train=other, resume=True, **given)
        assert fedlsg.simulate(train=train, resume=True, **given).summary["rounds"] == 3


class Shifted(Items):
    """Five columns, moved by a draw."""

    def __getitem__(self, place):
        return X[place, 1:] + float(self.less()), Y[place]


def linear():
    return torch.nn.Linear(5, 3)


TEXTS = [["a", "banana", "cc"][place % 3] for place in range(len(Y))]


def test_a_transform_that_pads_to_the_longest_is_refused():
    def pad(texts):
        longest = max(map(len, texts))
        return torch.tensor([[1] * len(text) + [0] * (longest - len(text)) for text in texts])

    with refused('padding="max_length"'):
        loaded(TEXTS, pad)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x: x[1:], "give one row an example"),
        (lambda x: x.undefined, "transform fails: AttributeError"),
        (
            lambda x: [1] * len(x),
            "transform gave inputs as list: expected a tensor, or a dict of tensors by name",
        ),
    ],
)
def test_a_transform_that_fails_is_refused(change, words):
    with refused(words):
        loaded(X, change)


@pytest.mark.parametrize("count", [lambda text: text.count("1"), len])
def test_texts_that_look_like_numbers_are_texts_where_the_transform_takes_texts(
    count, tmp_path, monkeypatch
):
    """A column of short answers such as 12: as numbers, the transform fails, or counts something
    else in silence.
    """
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"0{place % 20},{place % 3}\n" for place in range(30)))
    given = {"train": path, "test": path, "inputs": "text"}
    change = lambda part: torch.tensor([[float(count(text))] for text in part])  # noqa: E731
    made = load(workload(**given, transform=change))
    expected = [[float(count(f"0{place % 20}"))] for place in range(30)]
    assert made.train.batch(torch.arange(30))[0].tolist() == expected
    assert made.read(path, tmp_path).batch(torch.arange(30))[0].tolist() == expected
    numbers = load(workload(**given, transform=lambda part: part / 10))
    assert (
        numbers.train.batch(torch.arange(3))[0].tolist() == (torch.arange(3)[:, None] / 10).tolist()
    )
    # negative control
    monkeypatch.setattr(
        "fedlsg.simulations.workloads.rows.read.prefers_texts", lambda *given: False
    )
    if count is len:
        assert (
            load(workload(**given, transform=change)).train.batch(torch.arange(30))[0].tolist()
            != expected
        )
    else:
        with refused(
            "transform fails: ", "what looks like numbers in a file is read as numbers", "dtype=str"
        ):
            load(workload(**given, transform=change))
