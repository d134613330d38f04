"""Public rows alone: what the server of a deployment loads, and what stands in place of the
training split.
"""

import sys
from pathlib import Path

import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import Options, public_rows
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import NoRows
from tests.simulations.support.made_images import write_cifar10
from tests.simulations.support.made_texts import make_bert, write_sst2


@pytest.fixture
def cifar(tmp_path):
    """A mirror of CIFAR-10 with both splits; returns its folder."""
    return write_cifar10(tmp_path / "mirror", train=5, test=3)


@pytest.fixture
def sst2(tmp_path):
    """A mirror of SST-2 and a small encoder; returns folder and encoder."""
    return write_sst2(tmp_path / "mirror", train=6, validation=4), make_bert(tmp_path / "bert")


def opened(load, folder):
    """Files of a folder that are opened in a call, by their names in it: the folder's own name says
    "training".
    """
    seen = []
    watching = True

    def hook(event, arguments):
        if watching and event == "open" and str(arguments[0]).startswith(str(folder)):
            seen.append(str(arguments[0]).removeprefix(str(folder)))

    sys.addaudithook(hook)
    try:
        load()
    finally:
        watching = False
    return seen


def test_digits_without_training_rows():
    whole, public = workloads.load("digits"), workloads.load("digits", public_only=True)
    assert (len(whole.train), len(public.train)) == (1437, 0)
    rows = torch.arange(3)
    assert public.test.batch(rows)[0].equal(whole.test.batch(rows)[0])
    with pytest.raises(IndexError):
        public.train.batch(rows)


def test_images_without_training_rows(cifar, tmp_path):
    kwargs = {"data_dir": tmp_path / "mirror", "cache_dir": tmp_path / "cache"}
    whole = workloads.load("cifar10", **kwargs)
    (cifar / "train-00000-of-00001.parquet").unlink()
    public = workloads.load("cifar10", public_only=True, **kwargs)
    assert isinstance(public.train, NoRows)
    rows = torch.arange(3)
    assert public.test.batch(rows)[0].equal(whole.test.batch(rows)[0])
    assert set(public.models) == set(whole.models)
    with pytest.raises(FileNotFoundError, match="no split 'train'"):
        workloads.load("cifar10", data_dir=tmp_path / "mirror", cache_dir=tmp_path / "other")


def test_no_file_of_training_rows_is_opened(cifar, sst2, tmp_path):
    _folder, bert = sst2
    kwargs = {"data_dir": tmp_path / "mirror", "cache_dir": tmp_path / "cache", "public_only": True}

    def load():
        workloads.load("cifar10", **kwargs)
        workloads.load("glue-sst2", options=Options(model=str(bert), max_length=16), **kwargs)

    seen = opened(load, tmp_path)
    assert any("test-00000" in name for name in seen)
    assert any("validation-00000" in name for name in seen)
    assert not any("train" in name for name in seen)
    seen = opened(lambda: workloads.load("cifar10", **{**kwargs, "public_only": False}), tmp_path)
    assert any("train" in name for name in seen), "negative control"


@pytest.mark.parametrize("options", [{"train_rows": 10}, {"holdout": 0.5}])
def test_settings_that_choose_among_training_rows_are_refused(options):
    (name,) = options
    with pytest.raises(ValueError, match=f"{name} chooses among training rows"):
        workloads.load("digits", options=Options(**options), public_only=True)


COUNT = 40


@pytest.fixture
def public(tmp_path: Path) -> Path:
    """Tensors in the size of digits."""
    path = tmp_path / "public.pt"
    inputs = torch.rand(COUNT, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.save((inputs, torch.arange(COUNT) % 13), path)
    return path


def digits(rows: object, **options: object) -> LoadedWorkload:
    setting = rows if rows == "synthetic" else f"data:{rows}"
    return public_rows.load("digits", str(setting), data_dir=None, options=Options(**options))  # type: ignore[arg-type]


def test_the_rows_of_a_path_are_trained_on_and_the_test_split_stays(public):
    loaded = digits(public)
    assert len(loaded.train) == 31  # of the classes 0 to 9; 10, 11 and 12 are left out
    assert sorted(loaded.train.labels.tolist()) == sorted(
        k % 13 for k in range(COUNT) if k % 13 < 10
    )
    assert len(loaded.test) == len(workloads.load("digits").test)


def test_no_training_file_is_opened_for_synthetic_texts(tmp_path):
    mirror, bert = tmp_path / "mirror", make_bert(tmp_path / "bert")
    write_sst2(mirror, train=6, validation=4)
    for file in mirror.rglob("train*"):
        file.unlink()
    loaded = public_rows.load(
        "glue-sst2",
        "synthetic",
        data_dir=mirror,
        options=Options(model=str(bert), max_length=16, train_rows=30),
    )
    inputs, labels = loaded.train.batch(torch.arange(30))
    assert inputs["input_ids"].shape == (30, 16)
    assert set(labels.tolist()) == {0, 1}
    assert loaded.train.groups is not None
    with pytest.raises(OSError, match="train"):  # negative control
        workloads.load(
            "glue-sst2", data_dir=mirror, options=Options(model=str(bert), max_length=16)
        )


def test_the_workloads_own_rows_are_refused():
    with pytest.raises(
        ValueError, match="public_rows=data:digits is refused: it is the run's own workload"
    ):
        digits("digits")
