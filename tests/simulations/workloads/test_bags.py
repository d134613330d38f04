"""Bags of words in the form of a workload's tokenizer: its words, its special tokens, its model's arguments."""

import torch

from fedlsg.synthetic import bags_of_words
from simulations.workloads.texts.bags import WordDraw, words_of

PIECES = ["[PAD]", "[CLS]", "[SEP]", "!", "a", "the", "##ing", "cat", "42", "sat"]


class Pieces:
    """A tokenizer of words with BERT's special tokens."""

    all_special_ids, pad_token_id = (0, 1, 2), 0
    model_input_names = ("input_ids", "token_type_ids", "attention_mask")

    def get_vocab(self):
        return {token: number for number, token in reversed(list(enumerate(PIECES)))}

    def decode(self, ids):
        return " ".join(PIECES[number] for number in ids)

    def __call__(self, *texts):
        ids = [1]
        for text in texts:
            ids += [*(PIECES.index(word) for word in text.split()), 2]
        return {"input_ids": ids}


class Bytes(Pieces):
    """Byte pairs: a mark before each word, two special tokens between texts, no types."""

    tokens = ("<s>", "<pad>", "</s>", "ing", "Ġa", "Ġthe", "Ġ42", "Ġcat")
    all_special_ids, pad_token_id, model_input_names = (0, 1, 2), 1, ("input_ids", "attention_mask")

    def get_vocab(self):
        return {token: number for number, token in enumerate(self.tokens)}

    def decode(self, ids):
        return "".join(self.tokens[number] for number in ids).replace("Ġ", " ")

    def __call__(self, *texts):
        rows = [[self.tokens.index(word.replace(" ", "Ġ"))] for text in texts for word in [text]]
        return {"input_ids": [0, *rows[0], 2, *([2, *rows[1], 2] if len(rows) > 1 else [])]}


def test_words_are_letters_in_the_order_of_their_numbers():
    assert [PIECES[number] for number in words_of(Pieces())] == ["the", "cat", "sat"]
    assert [Bytes.tokens[number] for number in words_of(Bytes())] == ["Ġthe", "Ġcat"]


def test_a_draw_is_a_bag_of_the_tokenizers_words():
    draw = WordDraw(Pieces(), 1, 16)
    drawn = draw(20, torch.Generator().manual_seed(3))
    assert drawn.keys() == {"input_ids", "attention_mask", "token_type_ids"}
    assert set(drawn["input_ids"].unique().tolist()) == {0, 1, 2, 5, 7, 9}
    again = bags_of_words(20, draw.vocabulary, torch.Generator().manual_seed(3))
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
