"""Views keep shape and content, differ from draw to draw, and depend on their own image alone."""

import pytest
import torch

from simulations.pretrain import views
from simulations.pretrain.views import cropped, random_view, recoloured


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 6, channels: int = 3) -> torch.Tensor:
    return torch.randn(count, channels, 12, 16, generator=generator(9))


@pytest.mark.parametrize("view", [random_view, cropped, recoloured])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_view_has_the_shape_and_repeats_with_its_seed(view, channels):
    given = images(channels=channels)
    first, again, other = (view(given, generator(seed)) for seed in (1, 1, 2))
    assert first.shape == given.shape
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    assert first.isfinite().all()


@pytest.mark.parametrize("view", [cropped, recoloured])
def test_a_row_depends_on_its_own_image(view):
    given, changed = images(), images()
    changed[3] += 5
    differs = (view(given, generator()) != view(changed, generator())).flatten(1).any(1)
    assert differs.tolist() == [False, False, False, True, False, False]


def test_a_crop_of_the_whole_image_is_the_image_or_its_mirror(monkeypatch):
    monkeypatch.setattr(views, "LEAST_CROP", 1.0)
    given = images(20)
    found = cropped(given, generator())
    same = [torch.allclose(a, b, atol=1e-5) for a, b in zip(found, given, strict=True)]
    mirrored = [torch.allclose(a, b, atol=1e-5) for a, b in zip(found, given.flip(3), strict=True)]
    assert all(a != b for a, b in zip(same, mirrored, strict=True))
    assert 2 < sum(same) < 18


def test_colours_change_by_an_affine_map_of_each_channel(monkeypatch):
    monkeypatch.setattr(views, "GREY", 0.0)
    given = images()
    found = recoloured(given, generator())
    for a, b in zip(given.flatten(0, 1), found.flatten(0, 1), strict=True):
        slope = (b[0, 0] - b[1, 1]) / (a[0, 0] - a[1, 1])
        torch.testing.assert_close(b, b[0, 0] + slope * (a - a[0, 0]), atol=2e-3, rtol=0)
        assert 0.4 < slope < 1.7
