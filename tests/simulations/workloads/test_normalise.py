"""``normalise=public`` takes constants of the public test rows; chance and standard errors by
hand.
"""

import numpy as np
import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import Split
from fedlsg.simulations.workloads.base.normalise import normalise_inputs
from fedlsg.simulations.workloads.base.split import Chance, chance_of
from tests.simulations.support.made_images import write_cifar10
from tests.simulations.support.own import TEST, TRAIN, load, quick, workload

ALL = torch.arange(24)


def test_test_inputs_have_mean_0_and_deviation_1():
    made = normalise_inputs(load(workload(test=(TEST[0] * 50 + 7, TEST[1]))))
    inputs, _ = made.test.batch(ALL)
    torch.testing.assert_close(inputs.mean(0), torch.zeros(8), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std(0, correction=0), torch.ones(8), atol=1e-5, rtol=0)


def test_no_number_comes_from_a_training_row():
    first, second = (
        normalise_inputs(load(workload(train=(TRAIN[0] * k, TRAIN[1])))) for k in (1, 1000)
    )
    assert first.normalised == second.normalised
    one, many = first.train.batch(torch.tensor([3])), first.train.batch(torch.arange(9))
    assert torch.equal(one[0][0], many[0][3])  # each row by itself


@pytest.mark.slow
def test_a_run_records_the_constants(tmp_path):
    run = quick(tmp_path / "run", normalise="public")
    assert len(run.summary["normalised"]["mean"]) == 8
    assert "normalised" not in quick(tmp_path / "plain").summary


def split(labels: list[int]) -> Split:
    return Split(
        inputs=np.zeros((len(labels), 1)), labels=torch.tensor(labels), prepare=torch.from_numpy
    )


def test_chance_by_hand():
    """Shares of class 0: 3/4 and 1/2, mean 5/8; the variance of a mean of two halves is that of 2^2
    / (1/4 + 1/2).
    """
    found = chance_of({"matched": split([0, 0, 0, 1]), "mismatched": split([0, 2])}, 3)
    assert found == Chance(num_classes=3, majority_share=0.625, test_examples=pytest.approx(16 / 3))
    assert found.level == 0.625
    assert Chance(num_classes=2, majority_share=0.2, test_examples=5).level == 0.5


@pytest.mark.parametrize("place", ["train-00000-of-00001.parquet", ".", "../.."])
def test_a_clients_own_files_are_normalised_as_the_public_rows(place, tmp_path):
    """A file, a folder of shards, and a mirror with the shards in folders below."""
    folder = write_cifar10(tmp_path / "mirror", train=12, test=6)

    def cifar10(*, public_only: bool):
        cache = tmp_path / "cache"
        return normalise_inputs(
            workloads.load(
                "cifar10", data_dir=tmp_path / "mirror", cache_dir=cache, public_only=public_only
            )
        )

    rows = cifar10(public_only=True).read(folder / place, tmp_path / "own")
    wanted, _ = cifar10(public_only=False).train.batch(torch.arange(12))
    assert torch.equal(rows.batch(torch.arange(12))[0], wanted)


@pytest.mark.parametrize("features", [None, "scattering"])
def test_public_images_are_normalised_as_the_rows_are(features, tmp_path):
    """Those that a probe draws, and those of named public data: the model sees both in the range
    that it trains on.
    """
    plain = workloads.load(
        "digits", cache_dir=tmp_path, options=workloads.Options(features=features)
    )
    made = normalise_inputs(plain)
    mean, deviation = (torch.tensor(made.normalised[name]) for name in ("mean", "deviation"))
    for name, draw in plain.synthetic.items():
        inputs, found = (
            one(3, torch.Generator().manual_seed(0)) for one in (draw, made.synthetic[name])
        )
        torch.testing.assert_close(found, (inputs - mean.view(-1, 1, 1)) / deviation.view(-1, 1, 1))
    if features is None:
        rows = torch.arange(5)
        again = made.pixels.inputs(made.pixels.images(made.test.inputs[rows.numpy()]))
        assert torch.equal(again, made.test.batch(rows)[0])
