"""What the server of a deployment loads: the public test split, and no training row; its files may be missing."""

import sys

import pytest
import torch

from simulations import workloads
from simulations.workloads import Options
from simulations.workloads.base.split import NoRows
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
    """Files of a folder that are opened in a call, by their names in it: the folder's own name says "training"."""
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
