"""Matching texts: from any start to the truth without noise, no further than the blind guess with much of it."""

import math

import pytest
import torch

from fedlsg.attacks.observation import Knowledge, Observation
from fedlsg.attacks.text_matching import TextMatching, match_text
from fedlsg.attacks.tokens import TextPrior
from tests.fedlsg.support.encoders import BEGIN, END, PAD, TOKENS, Encoder, texts, vocabulary
from tests.fedlsg.support.observed import method, observe

LABEL = torch.tensor([1])
EVEN = torch.full((TOKENS,), -math.log(TOKENS - 3)).index_fill(0, torch.tensor([PAD, BEGIN, END]), -math.inf)
"""Log frequency of tokens that are all alike."""
KNOWN = Knowledge(labels=LABEL, examples=1)


def seen_of(tokens: torch.Tensor, how: str = "rgp", labels: torch.Tensor = LABEL, **changes: object) -> Observation:
    inputs = {"input_ids": tokens, "attention_mask": (tokens != PAD).long()}
    return observe(method(how, **changes), Encoder(), inputs, labels)


def prior_of(tokens: torch.Tensor, **changes: object) -> TextPrior:
    """Tokens that cost nothing to name; begin and end stand where they do in every text."""
    length = tokens.shape[1]
    frequency = torch.zeros(TOKENS)
    frequency[[PAD, BEGIN, END]] = -torch.inf
    blind = torch.tensor([BEGIN, *range(3, 1 + length), END])
    return TextPrior(vocabulary=vocabulary(length), **{"log_frequency": frequency, "blind": blind, **changes})


def found(seen: Observation, prior: TextPrior, known: Knowledge = KNOWN, seed: int = 0, **changes: object):
    attack = TextMatching(**{"restarts": 3, **changes})
    return match_text(seen, known, prior, attack=attack, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("how", "changes"), [("dpsgd", {}), ("rgp", {}), ("lsg", {"sparsity": 0.5})])
def test_a_short_text_without_noise_is_found(how, changes):
    """Golden: from the blind guess, by swaps alone or from free embeddings; the objective says that it is exact."""
    tokens = texts(5)["input_ids"]
    guess = found(seen_of(tokens, how, **changes), prior_of(tokens))
    assert guess.inputs.tolist() == tokens.tolist()
    assert guess.objective < 1e-9


def test_much_noise_leaves_the_blind_guess():
    """A replacement has to be worth its name: without that, noise would be fitted (negative control)."""
    tokens = texts(7)["input_ids"]
    seen = seen_of(tokens, mechanism="dp", noise_multiplier=2.0)
    prior = prior_of(tokens, log_frequency=EVEN)
    guess = found(seen, prior, distance="likelihood", restarts=1)
    assert guess.inputs[0].tolist() == prior.blind.tolist()
    fitted = found(seen, prior_of(tokens), distance="likelihood", restarts=1)
    assert fitted.inputs[0].tolist() not in (prior.blind.tolist(), tokens[0].tolist())
