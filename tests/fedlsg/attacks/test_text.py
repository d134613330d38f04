"""Texts from gradients: found without noise, masked, padded; with much noise the blind guess is
left.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.attacks.text_matching import TextMatching, match_text
from fedlsg.attacks.token_reading import read_tokens
from fedlsg.attacks.tokens import TextPrior, received_span, span_test
from fedlsg.gradients.hooked_pass.supported import trainable
from tests.fedlsg.support.encoders import BEGIN, END, PAD, TOKENS, Encoder, texts, vocabulary
from tests.fedlsg.support.observed import cross_entropy, method, observe

LABEL = torch.tensor([1])
EVEN = torch.full((TOKENS,), -math.log(TOKENS - 3)).index_fill(
    0, torch.tensor([PAD, BEGIN, END]), -math.inf
)
"""Log frequency of tokens that are all alike."""
KNOWN = Knowledge(labels=LABEL, examples=1)


def seen_of(
    tokens: torch.Tensor, how: str = "rgp", labels: torch.Tensor = LABEL, **changes: object
) -> Observation:
    inputs = {"input_ids": tokens, "attention_mask": (tokens != PAD).long()}
    return observe(method(how, **changes), Encoder(), inputs, labels)


def prior_of(tokens: torch.Tensor, **changes: object) -> TextPrior:
    """Tokens that cost nothing to name; begin and end stand where they do in every text."""
    length = tokens.shape[1]
    frequency = torch.zeros(TOKENS)
    frequency[[PAD, BEGIN, END]] = -torch.inf
    blind = torch.tensor([BEGIN, *range(3, 1 + length), END])
    return TextPrior(
        vocabulary=vocabulary(length), **{"log_frequency": frequency, "blind": blind, **changes}
    )


def found(
    seen: Observation, prior: TextPrior, known: Knowledge = KNOWN, seed: int = 0, **changes: object
):
    attack = TextMatching(**{"restarts": 3, **changes})
    return match_text(
        seen, known, prior, attack=attack, generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("how", "changes"), [("dpsgd", {}), ("rgp", {}), ("lsg", {"sparsity": 0.5})]
)
def test_a_short_text_without_noise_is_found(how, changes):
    """Golden: from the blind guess, by swaps alone or from free embeddings; the objective says that
    it is exact.
    """
    tokens = texts(5)["input_ids"]
    guess = found(seen_of(tokens, how, **changes), prior_of(tokens))
    assert guess.inputs.tolist() == tokens.tolist()
    assert guess.objective < 1e-9


@pytest.mark.slow
def test_much_noise_leaves_the_blind_guess():
    """A replacement has to be worth its name: without that, noise would be fitted (negative
    control).
    """
    tokens = texts(7)["input_ids"]
    seen = seen_of(tokens, mechanism="dp", noise_multiplier=2.0)
    prior = prior_of(tokens, log_frequency=EVEN)
    guess = found(seen, prior, distance="likelihood", restarts=1)
    assert guess.inputs[0].tolist() == prior.blind.tolist()
    fitted = found(seen, prior_of(tokens), distance="likelihood", restarts=1)
    assert fitted.inputs[0].tolist() not in (prior.blind.tolist(), tokens[0].tolist())


def first_layers(
    how: str, *lengths: int, seed: int = 0, frozen_attention: bool = False, **changes: object
):
    """An observation of texts of these lengths, and their tokens."""
    inputs = texts(*lengths, seed=seed)
    targets = torch.arange(len(lengths)) % 2
    model = Encoder(seed=seed, frozen_attention=frozen_attention)
    return observe(method(how, **changes), model, inputs, targets, seed=seed), inputs["input_ids"]


def read(seen: Observation, tokens, **changes: object):
    words = vocabulary(tokens.shape[1], **changes)
    return read_tokens(
        seen.model,
        span_test(seen, words),
        words,
        texts=len(tokens),
        generator=torch.Generator().manual_seed(0),
    )


def test_rows_of_a_dense_gradient_are_combinations_of_the_embeddings():
    """Oracle: autograd's own gradient of the value layer is g^T X."""
    seen, tokens = first_layers("dpsgd", 6)
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


@pytest.mark.parametrize(
    ("how", "changes"), [("dpsgd", {}), ("rgp", {}), ("lsg", {"sparsity": 0.25})]
)
def test_a_text_without_noise_is_read_word_by_word(how, changes):
    """Golden: rank 8, three layers: 24 rows, 9 tokens."""
    seen, tokens = first_layers(how, 9, **changes)
    scores = span_test(seen, vocabulary(9))
    assert scores.span.complete
    assert torch.equal(scores.candidates(1)[0], tokens[0])
    assert scores.share.gather(0, tokens).min() > 0.999
    reading = read(seen, tokens)
    assert torch.equal(reading.tokens, tokens)
    assert reading.unexplained < 1e-12
