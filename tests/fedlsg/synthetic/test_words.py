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


@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_words_follow_the_law_of_ranks(exponent):
    ids = bags_of_words(3000, vocabulary(), generator(), exponent=exponent)["input_ids"]
    drawn = ids[ids >= 100] - 99
    chances = torch.arange(1, 1001).double() ** -exponent
    chances /= chances.sum()
    for low, high in ((1, 3), (4, 30), (31, 1000)):
        expected = float(chances[low - 1 : high].sum())
        assert abs(float(((drawn >= low) & (drawn <= high)).double().mean()) - expected) < 0.01
