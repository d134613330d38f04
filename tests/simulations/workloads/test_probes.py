"""A workload and a word give a probe's source: normalised as the workload's images, and blind to private rows."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedlsg.synthetic import dead_leaves, pink
from simulations import workloads
from simulations.workloads.base.split import NoRows, Split
from simulations.workloads.base.workload import LoadedWorkload
from simulations.workloads.public_data import probe_source
from tests.simulations.support.own import load, workload

SIDE = 12


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(array: np.ndarray, **changes) -> LoadedWorkload:
    """A workload of a user's own with these images."""
    labels = np.arange(len(array)) % 3
    return load(workload(train=(array, labels), test=(array[:6], labels[:6]), **changes))


def bytes_of(*form: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (12, *form), dtype=np.uint8)


def test_digits_go_through_the_pipeline_of_the_workload():
    loaded = workloads.load("digits")
    source = probe_source(loaded)
    assert (source.name, source.num_classes) == ("leaves", 10)
    drawn = source.draw(40, generator())
    stored = (dead_leaves(40, (1, 8, 8), generator()) * 16).round().numpy().astype(np.uint8)
    assert torch.equal(drawn, loaded.test.prepare(stored))
    assert torch.equal(drawn, (torch.from_numpy(stored).float() - 4.8) / 8)
    assert not torch.equal(drawn, probe_source(loaded, "pink").draw(40, generator()))


@pytest.mark.parametrize("form", [(3, SIDE, SIDE), (1, SIDE, SIDE), (SIDE, SIDE, 3), (SIDE, SIDE)])
def test_images_of_a_users_own_take_their_stored_form_and_transform(form):
    loaded = images(bytes_of(*form), transform=lambda stored: stored.float() / 255 - 0.25)
    drawn = probe_source(loaded, "pink").draw(5, generator())
    assert drawn.shape == (5, *form)
    channels = form[0] if form[0] in (1, 3) else form[-1] if len(form) == 3 else 1
    made = (pink(5, (channels, SIDE, SIDE), generator()) * 255).round()
    placed = made.squeeze(1) if len(form) == 2 else made.movedim(1, 3) if form[0] == SIDE else made
    torch.testing.assert_close(drawn, placed / 255 - 0.25)


@pytest.mark.parametrize(("made", "found"), [
    (lambda count, generator: torch.ones(count + 1, 8), r"gave \[\(5, 8\)\] for count=4"),
    (lambda count, generator: None, r"gave \['NoneType'\]"),
    (lambda count, generator: {}, r"gave \[\]"),
])  # fmt: skip
def test_a_function_that_gives_something_else_is_refused(made, found):
    with pytest.raises(ValueError, match=found):
        probe_source(load(workload(probe=made))).draw(4, generator())


SOURCES = ("auto", "leaves", "pink")


@pytest.mark.parametrize("spec", SOURCES)
def test_draws_do_not_change_with_any_private_row(spec):
    loaded = workloads.load("digits")
    other = replace(loaded, train=changed(loaded.train))
    none = replace(loaded, train=NoRows())
    drawn = [probe_source(one, spec).draw(20, generator()) for one in (loaded, other, none)]
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], drawn[2])


def changed(split: Split) -> Split:
    """The split with another value in every row."""
    stored = np.asarray(split.inputs[np.arange(len(split))])
    return replace(split, inputs=(stored + 1) % 17, labels=split.labels.flip(0))
