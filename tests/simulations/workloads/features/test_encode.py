"""Features of one example depend on that example alone; the cache is read again, and by nothing
else.
"""

from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlsg.simulations import workloads
from fedlsg.simulations.models.small import heads
from fedlsg.simulations.workloads import build_model
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.simulations.workloads.features import encode
from fedlsg.simulations.workloads.features.axes import on_axes
from fedlsg.simulations.workloads.features.encode import (
    ALONE,
    DAMPING,
    POWER,
    Encoder,
    decorrelated,
    encode_later,
    encode_split,
    grouped,
    statistics,
)
from fedlsg.simulations.workloads.features.encoders import image_encoder

ROWS = 6


def split_of(stored: np.ndarray) -> Split:
    return Split(inputs=stored, labels=torch.zeros(len(stored), dtype=torch.int64), prepare=prepare)


def prepare(stored: np.ndarray) -> Tensor:
    return torch.from_numpy(stored) / 255


def images(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, 1, 8, 8), dtype=np.uint8)


def scattering() -> Encoder:
    return image_encoder("scattering", (1, 8, 8), {})


def draw(count: int, generator: torch.Generator) -> Tensor:
    return prepare(images(0, 40))


OF_SYNTHETIC = {
    "decorrelated": partial(decorrelated, draw=draw, progress=lambda line: None),
    "axes": partial(on_axes, draw=draw, count=5, progress=lambda line: None),
}


def features(split: Split, encoder: Encoder, folder, say=lambda line: None) -> np.ndarray:
    return encode_split(split, encoder, cache=folder, progress=say, what="train").inputs


def carried_over(encoder: Encoder, folder) -> float:
    """The largest change of an example's features when another one is changed, added or removed."""
    stored = images()
    others = {
        "changed": np.concatenate([images(1)[:1], stored[1:]]),
        "added": np.concatenate([images(1)[:1], stored]),
        "removed": stored[1:],
    }
    rest = features(split_of(stored), encoder, folder)[1:]
    found = [features(split_of(other), encoder, folder)[-len(rest) :] for other in others.values()]
    return max(float(abs(rest.astype(np.float64) - other).max()) for other in found)


@pytest.mark.parametrize("norm", ["none", *ALONE, *OF_SYNTHETIC])
def test_features_depend_on_no_other_example_to_the_last_bit(norm, tmp_path):
    encoder = scattering()
    if norm in ALONE:
        encoder = ALONE[norm](encoder)
    if norm in OF_SYNTHETIC:
        encoder = OF_SYNTHETIC[norm](encoder, cache=tmp_path)
    assert carried_over(encoder, tmp_path) == 0


def test_a_planted_statistic_of_the_rows_is_caught(tmp_path, monkeypatch):
    """Negative control: the mean over all rows that a careless normalisation takes."""
    honest = encode._encode

    def centred(*arguments) -> np.ndarray:
        found = honest(*arguments)
        return found - found.mean(0)

    monkeypatch.setattr(encode, "_encode", centred)
    assert carried_over(scattering(), tmp_path) > 1e-3


def other_pixels() -> tuple[Split, Encoder]:
    stored = images()
    stored[3, 0, 2, 2] ^= 1
    return split_of(stored), scattering()


def other_order() -> tuple[Split, Encoder]:
    return split_of(images()[::-1].copy()), scattering()


def other_prepare() -> tuple[Split, Encoder]:
    split = Split(
        inputs=images(),
        labels=torch.zeros(ROWS, dtype=torch.int64),
        prepare=lambda x: prepare(x) - 0.5,
    )
    return split, scattering()


def other_norm() -> tuple[Split, Encoder]:
    return split_of(images()), grouped(scattering())


@pytest.mark.parametrize("other", [other_pixels, other_order, other_prepare, other_norm])
def test_another_setting_does_not_read_the_cache(other, tmp_path):
    features(split_of(images()), scattering(), tmp_path)
    features(*other(), tmp_path)
    assert len(list(tmp_path.glob("features-*"))) == 2


def test_a_damaged_entry_is_computed_again(tmp_path):
    first = np.array(features(split_of(images()), scattering(), tmp_path))
    (file,) = tmp_path.glob("features-*/features.npy")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert features(split_of(images()), scattering(), tmp_path).tobytes() == first.tobytes()


def maps(seed: int = 0) -> torch.Tensor:
    """(200, 5, 2, 2) with channels of different means and scales that are correlated."""
    x = torch.randn(200, 5, 2, 2, generator=torch.Generator().manual_seed(seed))
    mix = torch.randn(5, 5, generator=torch.Generator().manual_seed(9))
    return torch.einsum("oc,nchw->nohw", mix, x) + torch.arange(5.0).view(1, -1, 1, 1)


@pytest.mark.parametrize("shape", ["maps", "vectors"])
def test_the_matrix_is_a_power_of_the_damped_covariance(shape):
    x = maps() if shape == "maps" else maps().movedim(1, -1).reshape(-1, 5)
    mean, Q = statistics(x)
    rows = x.movedim(1, -1).reshape(-1, 5).double()
    S = torch.cov(rows.mT, correction=0)
    damped = S / (S.trace() / 5) + DAMPING * torch.eye(5).double()
    root = torch.linalg.matrix_power(torch.linalg.inv(Q.double()), round(-1 / POWER))
    torch.testing.assert_close(root / root[0, 0], damped / damped[0, 0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(mean.double(), rows.mean(0), atol=1e-5, rtol=0)
    assert float(((rows - mean) @ Q.double()).var(0).mean()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize(("shape", "parameters"), [((243, 8, 8), 187_210), ((81, 7, 7), 33_066)])
def test_heads_on_scattering_features_have_the_published_sizes(shape, parameters):
    """H-CNN of Zhu and Blaschko 2023, Table 2: 187K on CIFAR-10, 33K on Fashion-MNIST."""
    with torch.device("meta"):
        assert sum(p.numel() for p in heads(shape, 10)["cnn"]().parameters()) == parameters


def test_the_model_that_became_features_says_so():
    with pytest.raises(ValueError, match="'h-cnn' is features=scattering with model=cnn now"):
        build_model(workloads.load("digits"), "h-cnn")


def test_features_that_are_made_later_are_the_same(tmp_path):
    split, encoder = split_of(images(rows=70)), scattering()
    whole = features(split, encoder, tmp_path)
    later = encode_later(split, encoder).inputs
    for rows in ([3], [5, 3, 3], list(range(70))):
        assert (later[np.array(rows)] == whole[rows]).all()


def test_the_time_left_is_said_from_a_first_measurement_on(tmp_path, monkeypatch):
    clock = iter(range(0, 1000, 30))  # each block takes 30 seconds
    monkeypatch.setattr(encode.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(encode, "BLOCK_ROWS", 1)
    said: list[str] = []
    features(split_of(images()), scattering(), tmp_path, said.append)
    left = [line for line in said if "left" in line]
    size = len(images())
    assert (
        left[0] == f"features of train: 1 of {size} examples, about {(size - 1) / 2} minutes left"
    )
    assert 0 < len(left) < size, "not a line a block"
