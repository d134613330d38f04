"""Tokens from the span of what first layers sent: by hand, masked, padded, noisy, and where nothing is to be found."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.attacks.token_reading import read_tokens
from fedlsg.attacks.tokens import embedded, readers, received_span, span_test
from fedlsg.gradients.supported import trainable
from tests.fedlsg.support.encoders import PAD, TOKENS, Encoder, texts, vocabulary
from tests.fedlsg.support.observed import cross_entropy, method, observe

FIRST = ("query.weight", "key.weight", "value.weight")


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


def test_which_layers_read_the_embeddings():
    assert readers(Encoder(), "embeddings", 5) == FIRST
    with pytest.raises(DoesNotApply, match=r"no trained layer reads embeddings: the lowest layers are frozen"):
        readers(Encoder(frozen_attention=True), "embeddings", 5)


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


def test_shares_by_hand():
    """The share of a token is the squared cosine of its embedding to the span, the common direction taken out."""
    seen, tokens = seen_of("rgp", 5)
    words = vocabulary(5)
    scores = span_test(seen, words)
    n = scores.direction
    assert_close(n.norm(), torch.ones((), dtype=n.dtype))
    for token, position in ((int(tokens[0, 2]), 2), (7, 1)):
        x = seen.model.embeddings(torch.full((1, 5), token))[0, position].detach()
        x = x - (x @ n) * n
        rows = scores.span.basis - torch.outer(scores.span.basis @ n, n)
        near = torch.linalg.lstsq(rows.mT, x.unsqueeze(1)).solution.squeeze(1) @ rows
        assert_close(
            float(scores.share[token, position]), float(near.square().sum() / x.square().sum()), atol=1e-5, rtol=0
        )
    assert scores.share[PAD].abs().max() == 0
    assert scores.share.shape == (TOKENS, 5)
    every = torch.cat([x for _, x in embedded(seen.model, words)])
    assert_close(every[7, 1], seen.model.embeddings(torch.full((1, 5), 7))[0, 1].detach())


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


@settings(max_examples=8)
@given(length=st.integers(3, 14), seed=st.integers(0, 100))
def test_more_tokens_than_rows_can_be_read_too(length, seed):
    """Rank 2: six rows; the right tokens leave nothing of what was received over."""
    seen, tokens = seen_of("rgp", length, seed=seed, rank=2)
    reading = read(seen, tokens)
    right = bool((reading.tokens == tokens).all())
    assert right == (reading.unexplained < 1e-12)
    assert reading.unique


def test_six_rows_tell_twelve_tokens():
    """What one pass of the span test cannot tell, reading does, in nearly every text."""
    exact, ranked = 0, 0
    for seed in range(6):
        seen, tokens = seen_of("rgp", 12, seed=seed, rank=2)
        exact += bool(torch.equal(read(seen, tokens).tokens, tokens))
        ranked += bool(torch.equal(span_test(seen, vocabulary(12)).candidates(1)[0], tokens[0]))
    assert exact >= 4
    assert ranked < exact


def test_a_batch_of_padded_texts():
    """Every token of both texts is found at its place; padding leaves nothing, and is left out."""
    seen, tokens = seen_of("rgp", 8, 5)
    found = read(seen, tokens).tokens
    for position in range(8):
        wanted = set(tokens[:, position].tolist()) - {PAD}
        assert wanted == set(found[:, position].tolist()) - {PAD}


def test_masked_columns_are_left_out():
    seen, _ = seen_of("lsg", 4, sparsity=0.5)
    span = received_span(seen, FIRST)
    kept = torch.stack([seen.kept[(name, "R")].any(0) for name in FIRST]).all(0)
    assert torch.equal(span.columns, kept.nonzero().squeeze(1))
    assert len(span.columns) < 32


def test_pairs_have_two_token_types():
    """A token of the second text has another embedding: tested as one of the first it is not found."""
    tokens = texts(8)["input_ids"]
    types = (torch.arange(8) >= 4).long().unsqueeze(0)
    inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "token_type_ids": types}
    seen = observe("rgp", Encoder(), inputs, torch.tensor([1]))
    assert torch.equal(read(seen, tokens, types=2).tokens, tokens)
    assert not torch.equal(read(seen, tokens).tokens, tokens)


def test_noise_is_noticed():
    seen, tokens = seen_of("rgp", 9)
    noise = torch.randn(seen.values.shape, generator=torch.Generator().manual_seed(0)).to(seen.values)
    noisy = replace(seen, values=seen.values + noise * seen.values.norm(), noise_std=float(seen.values.norm()))
    with pytest.raises(DoesNotApply, match="noise hides every direction of the first layers"):
        span_test(noisy, vocabulary(9))
    little = 1e-7 * float(seen.values.norm())
    faint = replace(seen, values=seen.values + little * noise, noise_std=little)
    assert (span_test(faint, vocabulary(9)).candidates(1)[0] == tokens[0]).float().mean() > 0.7


def test_another_texts_tokens_are_not_found():
    """Negative control: tokens that were not there have small shares, and a payload of another text shows that text."""
    seen, tokens = seen_of("rgp", 9)
    other, others = seen_of("rgp", 9, seed=5)
    share = span_test(seen, vocabulary(9)).share
    absent = torch.tensor([token for token in range(3, TOKENS) if token not in tokens])
    assert share[absent].max() < 0.98
    mixed = replace(seen, values=other.values)  # another client's payload in this frame: not a batch of this text
    assert not torch.equal(read(mixed, tokens).tokens, tokens)
    assert not torch.equal(others, tokens)


def test_what_cannot_be_asked_for():
    with pytest.raises(ValueError, match="size=60, length=0"):
        vocabulary(0)
    with pytest.raises(ValueError, match=r"expected tokens in \[0, 60\)"):
        vocabulary(3, special=(60,))
    seen, tokens = seen_of("rgp", 4)
    words = vocabulary(4)
    with pytest.raises(ValueError, match="texts=0"):
        read_tokens(seen.model, span_test(seen, words), words, texts=0, generator=torch.Generator())
    with pytest.raises(DoesNotApply, match=r"nothing was received of gone\.weight"):
        received_span(seen, ("gone.weight",))
    assert span_test(seen, words).candidates(10**6).shape == (TOKENS, 4)
    assert tokens.shape == (1, 4)
