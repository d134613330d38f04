"""Bags of words follow their laws of ranks and lengths, in the form of a tokenizer."""

import pytest
import torch

from fedlsg.synthetic import Vocabulary, bags_of_words

WORDS = torch.arange(100, 1100)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vocabulary(**changes) -> Vocabulary:
    return Vocabulary(
        **{"words": WORDS, "around": ((1,), (2,)), "pad_id": 0, "types": True, "max_length": 128, **changes}
    )


def test_a_text_is_words_between_its_special_tokens_and_padding():
    drawn = bags_of_words(300, vocabulary(), generator())
    ids, mask = drawn["input_ids"], drawn["attention_mask"]
    assert ids.dtype == mask.dtype == torch.int64
    for row, real in zip(ids, mask.bool(), strict=True):
        text = row[real].tolist()
        assert (text[0], text[-1]) == (1, 2)
        assert all(100 <= token < 1100 for token in text[1:-1])
        assert real.tolist() == [True] * len(text) + [False] * (len(real) - len(text))
        assert (row[~real] == 0).all()
    assert not drawn["token_type_ids"].any()
    assert mask.sum(1).max() == ids.shape[1]


def test_lengths_are_equally_likely_in_each_octave():
    lengths = bags_of_words(4000, vocabulary(), generator())["attention_mask"].sum(1) - 2
    assert 4 <= lengths.min() <= lengths.max() <= 63
    for low in (4, 8, 16, 32):
        assert abs(float(((lengths >= low) & (lengths < 2 * low)).double().mean()) - 0.25) < 0.03


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_words_follow_the_law_of_ranks(exponent):
    ids = bags_of_words(3000, vocabulary(), generator(), exponent=exponent)["input_ids"]
    drawn = ids[ids >= 100] - 99
    chances = torch.arange(1, 1001).double() ** -exponent
    chances /= chances.sum()
    for low, high in ((1, 3), (4, 30), (31, 1000)):
        expected = float(chances[low - 1 : high].sum())
        assert abs(float(((drawn >= low) & (drawn <= high)).double().mean()) - expected) < 0.01


def test_a_pair_has_two_texts_and_their_types():
    drawn = bags_of_words(50, vocabulary(around=((1,), (2, 2), (2,))), generator())
    for ids, real, types in zip(*(drawn[name] for name in drawn), strict=True):
        text = ids[real.bool()].tolist()
        middle = text.index(2)
        assert text[middle + 1] == 2
        assert text[-1] == 2
        assert types[real.bool()].tolist() == [0] * (middle + 2) + [1] * (len(text) - middle - 2)


def test_a_text_has_at_most_max_length_tokens_and_no_types_that_are_not_read():
    drawn = bags_of_words(50, vocabulary(max_length=9, types=False), generator())
    assert drawn.keys() == {"input_ids", "attention_mask"}
    assert drawn["input_ids"].shape == (50, 9)


def test_equal_generators_give_equal_texts():
    first, again, other = (bags_of_words(9, vocabulary(), generator(seed))["input_ids"] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert first.shape != other.shape or not torch.equal(first, other)


@pytest.mark.parametrize("changes", [{"words": WORDS[:0]}, {"max_length": 3}, {"around": ((1,),)}])
def test_a_vocabulary_without_words_or_room_is_refused(changes):
    with pytest.raises(ValueError, match="expected words"):
        vocabulary(**changes)
