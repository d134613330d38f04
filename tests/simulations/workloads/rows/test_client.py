"""Parquet files of a client's own, images and texts: read as the workload reads its own shards."""

from pathlib import Path

import pytest
import torch

from simulations import workloads
from simulations.client.drawing import batches
from simulations.plan.base import Own
from simulations.plan.continuity import data_digest
from simulations.plan.plan import Base, prepare
from simulations.settings.settings import from_mapping
from simulations.workloads import LoadedWorkload, Options
from simulations.workloads.rows.decode import read_client
from tests.simulations.support.made_images import write_cifar10


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """A mirror of cifar10 with made-up images: 12 to train on, 6 to test on."""
    return write_cifar10(tmp_path / "mirror", train=12, test=6)


def cifar10(images: Path, tmp_path: Path, *, public_only: bool) -> LoadedWorkload:
    return workloads.load(
        "cifar10", data_dir=images.parent.parent, cache_dir=tmp_path / "cache", public_only=public_only
    )


@pytest.mark.parametrize("given", ["a file", "a folder of shards"])
def test_images_are_those_of_the_workload(given, images, tmp_path):
    whole = cifar10(images, tmp_path, public_only=False)
    path = images / "train-00000-of-00001.parquet" if given == "a file" else images
    for _ in range(2):  # decoded, then from the cache
        rows = read_client(path, cifar10(images, tmp_path, public_only=True), tmp_path / "own")
        assert data_digest(rows) == data_digest(whole.train)
        for found, wanted in zip(rows.batch(torch.arange(12)), whole.train.batch(torch.arange(12)), strict=True):
            assert torch.equal(found, wanted)
    assert len(list((tmp_path / "own").iterdir())) == 1


def test_texts_are_those_of_the_workload(tmp_path):
    pytest.importorskip("transformers")
    from tests.simulations.support.made_texts import make_bert, write_sst2

    model = make_bert(tmp_path / "bert")
    folder = write_sst2(tmp_path / "mirror", train=14, validation=6)
    options = Options(model=str(model), max_length=16)
    whole, public = (
        workloads.load(
            "glue-sst2", data_dir=tmp_path / "mirror", cache_dir=tmp_path / "cache", options=options, public_only=only
        )
        for only in (False, True)
    )
    rows = read_client(folder / "train-00000-of-00001.parquet", public, tmp_path / "own")
    assert data_digest(rows) == data_digest(whole.train)
    assert rows.lengths is not None
    assert torch.equal(rows.lengths, whole.train.lengths)


def test_augmentation_of_a_clients_own_rows_is_secret(images, tmp_path, monkeypatch):
    """One row less moves all rows after it: with public draws by row each of them would be augmented in another way."""
    monkeypatch.setenv("FEDLSG_CACHE", str(tmp_path / "cache"))
    settings = from_mapping({
        "workload": "cifar10", "data_dir": str(images.parent.parent), "clients": 1, "augment": "flip-crop",
        "model": "cnn", "noise_multiplier": 2.0,
    })  # fmt: skip

    def drawn(base: Base) -> torch.Tensor:
        inputs, _ = batches(base, 0, 1, [])(torch.arange(12))
        assert isinstance(inputs, torch.Tensor)
        return inputs

    simulated = prepare(settings)
    assert torch.equal(drawn(simulated), drawn(simulated))
    own = prepare(settings, own=Own(client=0, read=lambda workload: read_client(images, workload, tmp_path / "own")))
    assert own.augment is not None
    assert not torch.equal(drawn(own), drawn(own))
