"""``fedlsg attack`` on heads of public features: it searches for the images behind them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.observation import DoesNotApply, Knowledge, Observation, ThreatModel
from fedlsg.attacks.recognition import LEAKS
from fedlsg.attacks.replay import replay
from fedlsg.simulations.attacks.findings import read_each
from fedlsg.simulations.attacks.images_attack import Images
from fedlsg.simulations.attacks.observations import Record, open_record
from fedlsg.simulations.attacks.target import Options, Truth, attack_each, truth_of
from tests.simulations.support.runs import run_local

CLIENT = ThreatModel()
RECORDING = {
    "method": "sgd",
    "noise_multiplier": None,
    "model": "linear",
    "clients": 2,
    "rounds": 1,
    "sample_rate": None,
    "batch_size": 1,
    "record_updates": True,
}
PATCHES = {"features": "patches", "patch_filters": 32, "patch_size": 3, "feature_axes": 64}
DEFAULT = Options(batches=None, examples=1, attacks=None, naive=False, seconds=None, seed=0)
ROUNDED = 5e-3
"""Features are stored in half precision; relative."""


def recorded(path, **settings) -> Record:
    return open_record(str(run_local(path, **{**RECORDING, **settings}).path), CLIENT)


@pytest.fixture(scope="module")
def patches(tmp_path_factory) -> Record:
    return recorded(tmp_path_factory.mktemp("patches") / "run", **PATCHES)


def test_the_true_images_send_what_was_received(patches):
    """The replay goes from pixels through the encoder to the head; of other images it does not."""
    seen, truth = one_example(patches)
    assert truth.inputs.shape[1:] == (1, 8, 8)
    assert far(seen, truth.inputs, truth) <= ROUNDED
    assert far(seen, truth.inputs.flip(3), truth) > 10 * ROUNDED


def test_rows_that_are_held_out_move_nothing(tmp_path):
    seen, truth = one_example(recorded(tmp_path / "run", **PATCHES, holdout=0.2))
    assert far(seen, truth.inputs, truth) <= ROUNDED


def test_images_are_recovered_without_noise(patches):
    options = replace(DEFAULT, attacks="inverting-gradients", batches=(1,), seconds=3.0)
    found = attack_each(Images(patches), patches, CLIENT, options, lambda share, text: None)
    readings = [reading for target in read_each(found) for reading in target]
    assert readings
    assert {reading.verdict for reading in readings} <= set(LEAKS)


def test_no_layer_of_a_head_reads_pixels(patches):
    """Not even where it reads as many numbers as an image has: 64 axes of 8 x 8 pixels."""
    seen, _ = one_example(patches)
    kind, known = Images(patches), Knowledge(examples=1)
    names = [attack.name for attack in kind.attacks(seen, known, DEFAULT)]
    assert names == ["inverting-gradients", "dlg"]
    with pytest.raises(DoesNotApply, match="the first layer sees features"):
        input_of_linear(seen, kind.prior)


def far(seen: Observation, images: Tensor, truth: Truth) -> float:
    """How far an update of these images is from what was received, relative to that."""
    sent = replay(seen, images, truth.labels).detach()
    return float(torch.dist(sent, seen.values) / seen.values.norm())


def one_example(record: Record) -> tuple[Observation, Truth]:
    """The first update of round 1 that has an example, and its images."""
    each = ((seen, truth_of(record, seen)) for seen in record.pick(1, CLIENT) if seen.values.any())
    return next(each)


@pytest.mark.parametrize(
    "settings",
    [
        {"features": "scattering"},
        {**PATCHES, "normalise": "public"},
    ],
)
def test_features_without_a_way_back_are_refused(settings, tmp_path):
    with pytest.raises(ValueError, match="no gradient leads from these back"):
        recorded(tmp_path / "run", **settings)
