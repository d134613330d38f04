"""Sources of probes: normalised as the workload's rows, blind to private ones, and never the
workload's own.
"""

import numpy as np
import pytest
import torch
from PIL import Image

from fedlsg.carriers.probe.synthetic import dead_leaves, pink
from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import Options
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.public_data import probe_source
from tests.simulations.support.made_texts import make_bert, sentences, write_split, write_sst2
from tests.simulations.support.own import load, workload

DIGITS = workloads.load("digits")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels(count: int, *form: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *form), dtype=np.uint8)


def colours(seed: int = 1, **changes):
    """A workload of a user's own with 12 images of 3x12x12."""
    array = pixels(12, 3, 12, 12, seed=seed)
    labels = np.arange(12) % 3
    return load(
        workload(train=(array[:8], labels[:8]), test=(array[8:], labels[8:]), **changes)
    ), array


def folder_of(root, arrays):
    for number, array in enumerate(arrays):
        place = root / f"class{number % 2}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(place / f"{number}.png")
    return root


def test_the_workloads_own_name_is_refused():
    with pytest.raises(
        ValueError,
        match=r"data:digits is refused: it is the run's own workload .*training rows are private",
    ):
        probe_source(DIGITS, "data:digits")


@pytest.mark.parametrize("which", ["itself", "above", "inside", "linked"])
def test_the_workloads_own_files_are_refused(tmp_path, which):
    train = folder_of(tmp_path / "data" / "train", pixels(6, 12, 12, 3))
    test = folder_of(tmp_path / "data" / "test", pixels(6, 12, 12, 3, seed=1))
    own = load(workload(train=train, test=test))
    (tmp_path / "link").symlink_to(train)
    named = {
        "itself": train,
        "above": tmp_path / "data",
        "inside": train / "class0",
        "linked": tmp_path / "link",
    }[which]
    with pytest.raises(ValueError, match="it holds the files of the run's own workload"):
        probe_source(own, f"data:{named}")


@pytest.mark.parametrize("row", [0, 7, 8, 11])
def test_one_equal_row_is_refused_whether_of_train_or_test(tmp_path, row):
    own, array = colours()
    public = pixels(20, 3, 12, 12, seed=5)
    place = tmp_path / "public.pt"
    torch.save(torch.from_numpy(public), place)
    probe_source(own, f"data:{place}")
    public[13] = array[row]
    torch.save(torch.from_numpy(public), place)
    with pytest.raises(ValueError, match="1 of its 20 rows are rows of that workload"):
        probe_source(own, f"data:{place}")


def test_equal_images_are_found_in_another_range_of_values(tmp_path):
    """Digits are stored as 0 to 16, and standardised images as any number; a file of them does not
    say so.
    """
    place = tmp_path / "copy.pt"
    torch.save(torch.from_numpy(DIGITS.train.inputs[np.arange(30)]), place)
    with pytest.raises(ValueError, match="30 of its 30 rows are rows of that workload"):
        probe_source(DIGITS, f"data:{place}")
    array = np.random.default_rng(3).standard_normal((12, 1, 8, 8)).astype(np.float32)
    own = load(workload(train=(array[:8], np.arange(8) % 3), test=(array[8:], np.arange(4) % 3)))
    for copy in (array[:8], (array[:8] - array.min()) / 10):
        torch.save(torch.from_numpy(copy), place)
        with pytest.raises(ValueError, match="8 of its 8 rows are rows of that workload"):
            probe_source(own, f"data:{place}")
    torch.save(torch.randn(8, 1, 8, 8, generator=generator()), place)
    probe_source(own, f"data:{place}")  # control


def test_equal_images_are_found_where_inputs_are_features(tmp_path):
    """A copy in another range has other features: the images are compared, not what they become."""
    own = workloads.load("digits", options=Options(features="scattering", train_rows=40))
    rows, place = torch.from_numpy(own.raw.train.inputs[np.arange(30)]), tmp_path / "copy.pt"
    for copy in (rows, rows * 4, (rows.float() - 4.9) / 6.0):
        torch.save(copy, place)
        with pytest.raises(ValueError, match="30 of its 30 rows are rows of that workload"):
            probe_source(own, f"data:{place}")
    torch.save(torch.randint(17, (30, 1, 8, 8), generator=generator()).byte(), place)
    assert probe_source(own, f"data:{place}").draw(3, generator()).shape[0] == 3  # control


def test_equal_texts_are_found_where_inputs_are_features(tmp_path, monkeypatch):
    """Features of equal texts are equal, so this holds with either comparison; images tell the two
    apart, above.
    """
    pytest.importorskip("transformers", reason="text models need the text extra")
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))
    bert = make_bert(tmp_path / "bert", layers=1)
    write_sst2(tmp_path, train=9, validation=6)
    own = workloads.load(
        "glue-sst2", data_dir=tmp_path, options=Options(features=str(bert), max_length=16)
    )
    texts, there = sentences(9, seed=0), tmp_path / "copy"
    columns = {"sentence": ["very " * 12, *texts[:3]], "label": [0, 1, 0, 1]}
    write_split(there, "public", columns)
    named = f"data:{there / 'public-00000-of-00001.parquet'}"
    with pytest.raises(ValueError, match="3 of its 4 rows are rows of that workload"):
        probe_source(own, named)
    write_split(there, "public", {"sentence": ["very " * 12] * 4, "label": [0, 1, 0, 1]})
    assert len(probe_source(own, named).draw(3, generator())) == 3  # control


SIDE = 12


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


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (lambda count, generator: torch.ones(count + 1, 8), r"gave \[\(5, 8\)\] for count=4"),
        (lambda count, generator: None, r"gave \['NoneType'\]"),
        (lambda count, generator: {}, r"gave \[\]"),
    ],
)
def test_a_function_that_gives_something_else_is_refused(made, found):
    with pytest.raises(ValueError, match=found):
        probe_source(load(workload(probe=made))).draw(4, generator())
