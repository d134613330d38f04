"""Features by patches: against their definition in float64, and each a function of one image."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedlsg.simulations.models import patches
from fedlsg.simulations.models.patches import Patches, PatchSettings, patch_filters

SHAPES = [(3, 32, 32), (1, 28, 28), (3, 20, 33)]
SMALL = PatchSettings(filters=16, size=5, places=2, scales=2)


@pytest.fixture(autouse=True)
def few_leaves(monkeypatch):
    monkeypatch.setattr(patches, "LEAVES", 20)


def by_definition(image, arrays, settings):
    """All maps of every scale in float64."""
    found = []
    for scale in range(settings.scales):
        weight, bias = (torch.tensor(arrays[f"{n}{scale}"]).double() for n in ("weight", "bias"))
        u = F.unfold(image.double()[None], settings.size)[0]
        v = (u - u.mean(0)) / (u.var(0, correction=0) + patches.CONTRAST).sqrt()
        z = weight @ v + bias[:, None]
        rows, columns = (side - settings.size + 1 for side in image.shape[1:])
        both = torch.cat([z - patches.THRESHOLD, -z - patches.THRESHOLD]).clamp(min=0)
        means = F.adaptive_avg_pool2d(both.view(-1, rows, columns), settings.places)
        found.append((means - means.mean()) / means.std(correction=0))
        image = F.avg_pool2d(image[None], 2)[0]
    return torch.cat(found)


@pytest.mark.parametrize("shape", SHAPES)
def test_they_are_what_the_docstring_says(shape):
    arrays = patch_filters(shape, SMALL)
    image = torch.rand(shape)
    found = Patches(arrays, SMALL)(image[None])[0]
    assert found.shape == (2 * 2 * 16, 2, 2)
    assert torch.allclose(found.double(), by_definition(image, arrays, SMALL), atol=1e-4)


def test_an_image_has_the_same_bits_in_any_company():
    encode = Patches(patch_filters((3, 32, 32), SMALL), SMALL)
    images = torch.rand(4, 3, 32, 32)
    alone = encode(images[2:3])[0]
    assert torch.equal(encode(images)[2], alone)
    assert torch.equal(encode(images.flip(0))[1], alone)
    images[[0, 1, 3]] = torch.nan
    assert torch.equal(encode(images)[2], alone)


def test_filters_are_equal_bits_each_time_and_follow_the_settings():
    first, again = (patch_filters((1, 16, 16), SMALL) for _ in range(2))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert sorted(first) == ["bias0", "bias1", "weight0", "weight1"]
    assert first["weight0"].shape == (16, 25)
    assert np.abs(first["weight0"].mean(1)).max() < 1e-6


def test_a_plain_image_has_finite_features():
    encode = Patches(patch_filters((3, 32, 32), SMALL), SMALL)
    assert encode(torch.full((1, 3, 32, 32), 0.3)).isfinite().all()


@pytest.mark.parametrize(
    ("shape", "settings", "words"),
    [
        ((3, 8, 8), SMALL, "needs images of 12 pixels on a side"),
        ((1, 16, 16), PatchSettings(filters=10**6, size=5), "patch_filters=1000000: images of"),
    ],
)
def test_what_does_not_fit_is_refused(shape, settings, words):
    with pytest.raises(ValueError, match=words):
        patch_filters(shape, settings)
