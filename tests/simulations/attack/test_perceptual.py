"""LPIPS in the report of image attacks: a small distance for the rules, the package itself where it is installed."""

import logging
import math
import sys
import warnings
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Guess
from simulations.attack.images import perceptual
from simulations.attack.images.page import COLUMNS, NOTE, score_table
from simulations.attack.images.perceptual import SIDE, alexnet, as_seen, distances, on
from simulations.attack.images.score import scored, summarise

GREY = Prior(shape=(1, 8, 8), low=-0.6, high=1.4)
BLACK, WHITE = torch.full((2, 1, 8, 8), -0.6), torch.full((2, 1, 8, 8), 1.4)


def apart(images: Tensor, truth: Tensor) -> Tensor:
    """The mean absolute difference: a distance of images as AlexNet would see them, which it checks."""
    assert images.shape == truth.shape
    assert images.dtype == truth.dtype == torch.float32
    assert images.shape[1] == 3
    assert min(images.shape[2:]) >= SIDE
    assert max(images.abs().max(), truth.abs().max()) <= 1
    return (images - truth).abs().mean((1, 2, 3))


@pytest.fixture
def forgotten():
    """What was loaded is forgotten before and after a test."""
    alexnet.cache_clear()
    yield
    alexnet.cache_clear()


def test_distances_by_hand():
    """Black against white is 2 in [-1, 1], grey against white is 1, equal images are 0."""
    assert distances(BLACK, WHITE, GREY, apart) == pytest.approx((2.0, 2.0))
    assert distances((BLACK + WHITE) / 2, WHITE, GREY, apart) == pytest.approx((1.0, 1.0))
    assert distances(WHITE, WHITE, GREY, apart) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((1, 8, 8), (3, 64, 64)), ((3, 32, 32), (3, 64, 64)), ((3, 28, 56), (3, 64, 128)), ((3, 70, 90), (3, 70, 90))],
)
def test_small_images_are_enlarged_and_large_ones_stay(shape, seen):
    images = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    found = as_seen(images, Prior(shape=shape))
    assert found.shape == (2, *seen)
    torch.testing.assert_close(found[:, 0].mean(), 2 * images[:, 0].mean() - 1, rtol=0, atol=0.02)
    if shape[1:] == seen[1:]:
        torch.testing.assert_close(found, 2 * images - 1)


def test_channels_have_their_own_range():
    prior = Prior(shape=(3, 64, 64), low=(0.0, -1.0, -2.0), high=(1.0, 1.0, 2.0))
    low, high = (end.expand(1, 3, 64, 64) for end in prior.bounds)
    assert (as_seen(low, prior) == -1).all()
    assert (as_seen(high + 5, prior) == 1).all()


def test_other_channels_are_refused():
    with pytest.raises(ValueError, match="channels"):
        as_seen(torch.zeros(1, 2, 64, 64), Prior(shape=(2, 64, 64)))


def test_scores_have_it_only_where_it_is_given():
    truth, blind = torch.cat([BLACK[:1], WHITE[:1]]), torch.full((2, 1, 8, 8), 0.4, dtype=torch.float64)
    unknown = truth.flip(0).clone()
    unknown[..., :4] = math.nan
    results = {
        name: scored("map", Guess(inputs=guess), truth, blind, GREY, 1.0, apart)
        for name, guess in {"paired": truth.flip(0), "half": unknown}.items()
    }
    assert results["paired"].lpips == (0.0, 0.0)  # a batch has no order
    assert results["half"].lpips == pytest.approx((0.5, 0.5), abs=0.02)  # the unknown half is grey
    row = summarise(list(results.values()), 2)
    assert row.lpips == pytest.approx(0.25, abs=0.01)
    table = score_table([row])
    assert table.columns == COLUMNS
    assert dict(zip(table.columns, table.rows[0].cells, strict=True))["LPIPS"] in ("0.25", "0.24", "0.26")
    assert [table.columns[position] for position in table.optional] == ["seconds", "SSIM", "LPIPS"]
    assert "lower is more alike" in table.note

    without = score_table([summarise([scored("map", Guess(inputs=truth), truth, blind, GREY, 1.0)], 2)])
    assert without.columns == tuple(name for name in COLUMNS if name != "LPIPS")
    assert len(without.rows[0].cells) == len(without.columns)
    assert without.note == NOTE


def test_an_absent_package_changes_nothing(forgotten, monkeypatch, caplog):
    monkeypatch.setattr(perceptual, "find_spec", lambda name: None)
    assert alexnet() is None
    assert not caplog.records


def test_weights_that_do_not_load_are_one_line(forgotten, monkeypatch, caplog):
    """A package of this name whose network fails as the real one does without a connection."""

    def unreachable(**settings: object) -> None:
        warnings.warn("an old form", stacklevel=2)
        raise OSError("no route\nto host")

    fake = ModuleType("lpips")
    fake.LPIPS = unreachable
    monkeypatch.setitem(sys.modules, "lpips", fake)
    monkeypatch.setattr(perceptual, "find_spec", lambda name: object())
    with caplog.at_level(logging.WARNING):
        assert alexnet() is None
        assert alexnet() is None
    assert [record.getMessage() for record in caplog.records] == [
        "no LPIPS in the report: the package lpips is installed but does not load (no route)"
    ]


@pytest.mark.filterwarnings("ignore")
def test_the_package_itself_on_small_images():
    """With random weights, because those of AlexNet need a download: equal images have 0, others more."""
    lpips = pytest.importorskip("lpips", reason="lpips, the package of the metric, is not installed")
    torch.manual_seed(0)
    own = on(lpips.LPIPS(net="alex", pnet_rand=True, verbose=False).eval())
    images = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(1)) * 2 - 0.6
    assert distances(images, images, GREY, own) == (0.0, 0.0)
    assert min(distances(images, WHITE, GREY, own)) > 0
    near, far = (distances(images, images + size * (WHITE - images), GREY, own) for size in (0.1, 0.9))
    assert all(a < b for a, b in zip(near, far, strict=True))
