"""The verdict on one example: exact ones are recovered, guesses without a payload are not,
and the rank alone decides in between.
"""

import pytest
import torch

from fedlsg.attacks import recognition
from fedlsg.attacks.recognition import (
    FALSE_ALARM_CHANCE,
    LEAKS,
    RECOVERED_IMAGE,
    ImagePool,
    pool_size,
    recognise,
)

SHAPE = (1, 8, 8)


def images(count: int, seed: int, side: int = 3) -> torch.Tensor:
    """Smooth made-up images, which are alike as those of one class are."""
    coarse = torch.randn(count, 1, side, side, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.interpolate(coarse, size=8, mode="bilinear")


def verdict(originals, guesses, *, public=60, examples=None, **more):
    """Of the first original, with a public pool that is made as large as it must be."""
    wanted = examples or len(originals)
    pool = ImagePool(blind=torch.zeros(SHAPE), beyond=images(public, 1))
    pool = pool.unlike(originals, pool_size(wanted), torch.Generator().manual_seed(2))
    own = ImagePool(blind=pool.blind, beyond=originals[:1]).similarities(guesses)
    rest = {"examples": wanted, "least": RECOVERED_IMAGE, **more}
    found = recognise(own[:, 0], pool.similarities(guesses), **rest)
    if found.verdict in LEAKS:  # as of a run; most guesses need none
        found = recognise(
            own[:, 0], pool.similarities(guesses), mixture=pool.nearest_mixture(guesses), **rest
        )
    return found


@pytest.mark.parametrize("count", [1, 2, 8])
def test_exact_images_are_recovered_in_any_order(count):
    originals = images(count, 3)
    found = verdict(originals, originals.flip(0))
    assert found.verdict == "recovered"
    assert found.similarity > 0.999
    assert found.p <= FALSE_ALARM_CHANCE / count


def test_an_image_of_the_pool_itself_is_recovered():
    """Public rows may hold the original, and must not outrank it."""
    original = images(1, 1)
    assert verdict(original, original).verdict == "recovered"


def test_half_of_the_pixels_suffice():
    original = images(1, 3)
    half = original.clone()
    half[..., 4:] = torch.nan
    assert verdict(original, half).verdict == "recovered"


def test_guesses_without_a_payload_are_not_recovered():
    """The blind guess never is; sharp images of the same kind are as often as the level says."""
    originals, others = images(400, 4), images(400, 5)
    blind = verdict(originals[:1], torch.zeros(1, *SHAPE))
    assert (blind.verdict, blind.p) == ("not told apart", 1.0)
    pairs = zip(originals.split(1), others.split(1), strict=True)
    false = sum(verdict(true, other).verdict in LEAKS for true, other in pairs)
    assert false <= 12, "400 at a level of .01: more than 12 have a probability of .001"


def test_planted_a_pool_that_is_far_from_the_guess_is_noticed():
    """Negative control: against public images of another kind any guess would be recovered."""
    originals, others = images(100, 4, side=2), images(100, 5, side=2)
    generator = torch.Generator().manual_seed(6)
    pool = ImagePool(blind=torch.zeros(SHAPE), beyond=torch.randn(200, *SHAPE, generator=generator))
    false = 0
    for true, other in zip(originals.split(1), others.split(1), strict=True):
        own = ImagePool(blind=pool.blind, beyond=true).similarities(other)
        found = recognise(own[:, 0], pool.similarities(other), examples=1, least=RECOVERED_IMAGE)
        false += found.verdict in LEAKS
    assert false > 3


def test_the_searchs_own_evidence_separates_undecided_from_not_recovered():
    original, other = images(1, 4), torch.zeros(1, *SHAPE)
    assert verdict(original, other, unexplained=0.2).verdict == "undecided"
    assert verdict(original, other, unexplained=0.001).verdict == "not told apart"
    assert verdict(original, original, unexplained=0.2).verdict == "recovered"


def test_a_pool_that_is_too_small_decides_nothing():
    original = images(1, 4)
    own, pool = torch.tensor([1.0]), torch.zeros(1, 50)
    assert recognise(own, pool, examples=1, least=RECOVERED_IMAGE).verdict == "undecided"
    assert (
        recognise(own, torch.zeros(1, 99), examples=1, least=RECOVERED_IMAGE).verdict == "recovered"
    )
    assert (
        recognise(own, torch.zeros(1, 99), examples=2, least=RECOVERED_IMAGE).verdict == "undecided"
    )
    assert verdict(original, original, public=1).verdict == "undecided"


def test_a_blind_guess_that_is_as_near_is_no_leak():
    own, pool = torch.tensor([0.95]), torch.zeros(1, 99)
    assert (
        recognise(own, pool, examples=1, least=RECOVERED_IMAGE, blind=0.95).verdict
        == "not told apart"
    )
    assert recognise(own, pool, examples=1, least=RECOVERED_IMAGE, blind=0.7).verdict == "recovered"


@pytest.mark.parametrize("similarity", [0.3, 0.55, 0.76, 0.89, 0.91, 1.0])
@pytest.mark.parametrize("unexplained", [None, 0.0, 0.2])
def test_the_first_rank_is_a_leak_and_similarity_only_the_word_for_it(similarity, unexplained):
    """A plain truck had .55 and ranked first of 401: it was "not recovered" by a similarity of .6
    at least. The control: one public example that is as near.
    """
    own, pool = torch.tensor([similarity]), torch.full((1, 400), 0.25)
    rest = {"examples": 1, "least": RECOVERED_IMAGE, "unexplained": unexplained}
    found = recognise(own, pool, **rest)
    assert found.verdict == ("recovered" if similarity >= RECOVERED_IMAGE else "recognisable")
    assert found.p == pytest.approx(1 / 401)
    assert found.among == 401
    pool[0, 7] = similarity
    assert recognise(own, pool, **rest).verdict not in LEAKS


def test_the_first_rank_is_never_not_told_apart():
    """Not even where a mixture of public images is as near: that is undecided, and close."""
    own, pool = torch.tensor([0.4]), torch.full((1, 400), 0.3)
    rest = {"examples": 1, "least": RECOVERED_IMAGE, "unexplained": 0.0}
    found = recognise(own, pool, mixture=0.45, **rest)
    assert (found.verdict, found.close) == ("undecided", True)
    assert not recognise(own, pool, mixture=0.35, **rest).close


def test_a_mixture_is_the_nearest_of_all_differences():
    """By brute force, on the pixels that the guess knows; equal images have no difference."""
    pool = ImagePool(blind=torch.zeros(SHAPE), beyond=images(12, 1)[[*range(12), 3]])
    guess = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(0))
    guess[1, ..., 5:] = torch.nan
    known = [~row.isnan().flatten() for row in guess]
    cosines = [
        torch.cosine_similarity(row.flatten()[at], (one - other).flatten()[at], dim=0)
        for row, at in zip(guess, known, strict=True)
        for one in pool.beyond[:12]
        for other in pool.beyond[:12]
    ]
    assert pool.nearest_mixture(guess) == pytest.approx(float(max(cosines)), abs=1e-4)


def test_noise_is_recognised_less_often_than_by_the_pool_alone():
    """Smooth noise, 200 times: by the rank of 100 images some are, by chance, and with mixtures
    none.
    """
    originals, guesses = images(200, 4), images(200, 9)
    guesses += 0.7 * torch.randn(guesses.shape, generator=torch.Generator().manual_seed(0))
    pairs = zip(originals.split(1), guesses.split(1), strict=True)
    found = [verdict(true, guess) for true, guess in pairs]
    assert sum(one.close for one in found) > 0
    assert not any(one.verdict in LEAKS for one in found)


def test_a_few_pixels_at_a_time_give_the_same_numbers(monkeypatch):
    """Similarities, mixtures and synthetic images are those of images that are formed whole."""
    originals, guesses = images(2, 3), images(3, 9)
    guesses[1, ..., 5:] = torch.nan
    pool = ImagePool(blind=torch.zeros(SHAPE), beyond=torch.cat([images(30, 1), originals]))
    pool = pool.unlike(originals, 200, torch.Generator().manual_seed(2))
    assert pool.real.tolist() == list(range(30))
    assert pool.pairs.shape == (2, 170)
    assert not bool((pool.pairs[0] == pool.pairs[1]).any())
    first, second = pool.beyond[pool.pairs]
    whole = torch.cat([pool.beyond[:30], (first - second) / 2**0.5]).flatten(1)
    by_hand = [
        [torch.cosine_similarity(row[at], public[at], dim=0) for public in whole]
        for row in guesses.flatten(1)
        for at in [~row.isnan()]
    ]
    for block in (2**24, 1000, 1):
        monkeypatch.setattr(recognition, "POOL_NUMBERS", block)
        found = pool.similarities(guesses)
        torch.testing.assert_close(found.float(), torch.tensor(by_hand), atol=1e-4, rtol=0)
        all_of_them = ImagePool(blind=pool.blind, beyond=whole.unflatten(1, SHAPE))
        assert pool.nearest_mixture(guesses) == pytest.approx(
            all_of_them.nearest_mixture(guesses), abs=1e-5
        )


def test_large_images_take_the_memory_of_a_block():
    """600 synthetic images of 112 pixels a side would be 90 MB; what is added is a block."""
    pool = ImagePool(blind=torch.zeros(3, 112, 112), beyond=torch.randn(20, 3, 112, 112))
    pool = pool.unlike(pool.beyond[:1], 600, torch.Generator().manual_seed(2))
    sizes = [public.numel() for _, public in pool.pixels()]
    assert max(sizes) <= recognition.POOL_NUMBERS
    assert sum(sizes) == 600 * 3 * 112 * 112 > recognition.POOL_NUMBERS
    assert pool.beyond.untyped_storage().nbytes() == 20 * 3 * 112 * 112 * 4


def test_an_exact_image_of_one_colour_is_recovered():
    """All have one direction, so that cosines said "not told apart" of an image that is there.
    Controls: another colour, and no payload at all.
    """
    levels = torch.rand(300, generator=torch.Generator().manual_seed(0)) - 0.5
    flat = levels.view(-1, 1, 1, 1).expand(-1, *SHAPE).contiguous()
    blind = torch.zeros(SHAPE)
    found = {"recovered": 0, "another": 0}
    for at in range(20):
        original = flat[at : at + 1]
        pool = ImagePool(blind=blind, beyond=flat).unlike(
            original, 100, torch.Generator().manual_seed(2)
        )
        assert len(pool.real) == 299
        own = ImagePool(blind=blind, beyond=original)
        for kind, guess in (("recovered", original), ("another", flat[[at + 100]] + 1e-3)):
            verdict = recognise(
                own.similarities(guess)[:, 0],
                pool.similarities(guess),
                examples=1,
                least=RECOVERED_IMAGE,
                mixture=pool.nearest_mixture(guess),
            ).verdict
            found[kind] += verdict in LEAKS
    assert found == {"recovered": 20, "another": 0}
