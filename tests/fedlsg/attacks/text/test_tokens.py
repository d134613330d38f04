"""Tokens from the span of what first layers sent: by hand, masked, padded, noisy, and where nothing is to be found."""

import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.observation import Observation
from fedlsg.attacks.token_reading import read_tokens
from fedlsg.attacks.tokens import received_span, span_test
from fedlsg.gradients.supported import trainable
from tests.fedlsg.support.encoders import Encoder, texts, vocabulary
from tests.fedlsg.support.observed import cross_entropy, method, observe


def seen_of(how: str, *lengths: int, seed: int = 0, frozen_attention: bool = False, **changes: object):
    """An observation of texts of these lengths, and their tokens."""
    inputs = texts(*lengths, seed=seed)
    targets = torch.arange(len(lengths)) % 2
    model = Encoder(seed=seed, frozen_attention=frozen_attention)
    return observe(method(how, **changes), model, inputs, targets, seed=seed), inputs["input_ids"]


def read(seen: Observation, tokens, **changes: object):
    words = vocabulary(tokens.shape[1], **changes)
    return read_tokens(
        seen.model, span_test(seen, words), words, texts=len(tokens), generator=torch.Generator().manual_seed(0)
    )


def test_rows_of_a_dense_gradient_are_combinations_of_the_embeddings():
    """Oracle: autograd's own gradient of the value layer is g^T X."""
    seen, tokens = seen_of("dpsgd", 6)
    model = seen.model
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    loss = cross_entropy(model(**inputs), torch.tensor([0])).sum()
    (gradient,) = torch.autograd.grad(loss, trainable(model)["value.weight"])
    x = model.embeddings(tokens)[0].detach()
    span = received_span(seen, ("value.weight",))
    assert_close(span.basis @ torch.linalg.pinv(x) @ x, span.basis)
    scaled = gradient / gradient.norm()
    assert_close((scaled @ span.basis.mT) @ span.basis, scaled, atol=1e-5, rtol=0)
    assert span.complete
    assert len(span.basis) <= 6


@pytest.mark.parametrize(("how", "changes"), [("dpsgd", {}), ("rgp", {}), ("lsg", {"sparsity": 0.25})])
def test_a_text_without_noise_is_read_word_by_word(how, changes):
    """Golden: rank 8, three layers: 24 rows, 9 tokens."""
    seen, tokens = seen_of(how, 9, **changes)
    scores = span_test(seen, vocabulary(9))
    assert scores.span.complete
    assert torch.equal(scores.candidates(1)[0], tokens[0])
    assert scores.share.gather(0, tokens).min() > 0.999
    reading = read(seen, tokens)
    assert torch.equal(reading.tokens, tokens)
    assert reading.unexplained < 1e-12
