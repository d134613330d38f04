"""Matching texts: from any start to the truth without noise, no further than the blind guess with much of it."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from fedlsg.attacks.observation import DoesNotApply, Knowledge, Observation
from fedlsg.attacks.replay import objective
from fedlsg.attacks.text_matching import TextMatching, match_text, standing_in
from fedlsg.attacks.tokens import TextPrior
from tests.fedlsg.support.encoders import BEGIN, END, PAD, TOKENS, Encoder, texts, vocabulary
from tests.fedlsg.support.observed import method, observe
from tests.fedlsg.support.pretend_cuda import pretended_cuda

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


@pytest.mark.parametrize("how", [{"known": KNOWN}, {"known": Knowledge(examples=1), "distance": "euclidean"}])
def test_a_search_on_a_device_gives_the_same_guess(how, monkeypatch):
    """A pretended device: nothing mixes devices, and the guess is back on the CPU."""
    tokens = texts(5)["input_ids"]
    seen = seen_of(tokens)
    here = found(seen, prior_of(tokens), rounds=4, **how)
    with pretended_cuda(monkeypatch) as mode:
        there = found(seen.to("cuda"), prior_of(tokens), rounds=4, **how)
        assert there.inputs.device.type == "cpu"
    assert mode.operations > 100
    assert torch.equal(here.inputs, there.inputs)


def test_free_embeddings_stand_for_tokens():
    """Oracle: with the rows of the table itself, the objective is that of the tokens, and so is padding's place."""
    inputs = texts(6, 4)
    labels = torch.tensor([0, 1])
    seen = observe("rgp", Encoder(), inputs, labels)
    measure = objective(seen, distance="cosine")
    other = texts(6, 4, seed=3)
    table = seen.model.embeddings.words.weight.detach()
    places = torch.arange(12).view(2, 6).masked_fill(other["input_ids"] == PAD, -1) + PAD + 1
    with standing_in(seen.model.embeddings.words, table[other["input_ids"]].flatten(0, 1), PAD):
        free = measure({"input_ids": places, "attention_mask": other["attention_mask"]}, labels)
    assert_close(free, measure(other, labels))
    assert_close(measure(inputs, labels).detach(), torch.zeros(()).double(), atol=1e-9, rtol=0)
    assert not seen.model.embeddings.words._forward_hooks


@settings(max_examples=5)
@given(seed=st.integers(0, 50))
def test_it_never_ends_worse_than_it_started(seed):
    tokens = texts(6, seed=seed)["input_ids"]
    seen = seen_of(tokens)
    start = texts(6, seed=seed + 1)["input_ids"]
    prior = prior_of(tokens, start=start)
    before = {name: tensor.clone() for name, tensor in seen.model.state_dict().items()}
    guess = found(seen, prior, restarts=1, rounds=2)
    at_start = objective(seen, distance="cosine")({"input_ids": start, "attention_mask": torch.ones_like(start)}, LABEL)
    assert guess.objective <= float(at_start.detach())
    assert guess.inputs[0, 0] == BEGIN
    assert guess.inputs[0, -1] == END
    assert all(torch.equal(tensor, before[name]) for name, tensor in seen.model.state_dict().items())
    again = found(seen, prior, restarts=1, rounds=2)
    assert torch.equal(again.inputs, guess.inputs)


def test_only_candidates_are_tried():
    tokens = texts(6)["input_ids"]
    candidates = torch.stack([tokens[0], tokens[0].roll(1), torch.full((6,), 9)])
    start = torch.tensor([[BEGIN, 9, 9, 9, 9, END]])
    guess = found(seen_of(tokens), prior_of(tokens, candidates=candidates, start=start), restarts=1)
    assert guess.inputs.tolist() == tokens.tolist()
    wrong = torch.full((1, 6), 9)
    held = found(seen_of(tokens), prior_of(tokens, candidates=wrong, start=start), restarts=1)
    assert held.inputs.tolist() == start.tolist()


def test_a_label_that_nobody_grants_is_found():
    tokens = texts(5)["input_ids"]
    guess = found(seen_of(tokens, labels=torch.tensor([1])), prior_of(tokens, start=tokens), Knowledge(examples=1))
    assert guess.labels.tolist() == [1]
    assert guess.objective < 1e-9


def test_texts_of_a_batch_are_taken_apart():
    """All tokens at the right positions, but of the wrong text: exchanges between texts put them right."""
    tokens = texts(6, 6)["input_ids"]
    labels = torch.tensor([0, 1])
    seen = seen_of(tokens, labels=labels)
    mixed = tokens.clone()
    mixed[:, [2, 3]] = tokens[:, [2, 3]].flip(0)
    known = Knowledge(labels=labels, examples=2)
    guess = found(seen, prior_of(tokens, start=mixed, candidates=tokens), known, restarts=1)
    assert guess.inputs.tolist() == tokens.tolist()
    assert mixed.tolist() != tokens.tolist()


def test_much_noise_leaves_the_blind_guess():
    """A replacement has to be worth its name: without that, noise would be fitted (negative control)."""
    tokens = texts(7)["input_ids"]
    seen = seen_of(tokens, mechanism="dp", noise_multiplier=2.0)
    prior = prior_of(tokens, log_frequency=EVEN)
    guess = found(seen, prior, distance="likelihood", restarts=1)
    assert guess.inputs[0].tolist() == prior.blind.tolist()
    fitted = found(seen, prior_of(tokens), distance="likelihood", restarts=1)
    assert fitted.inputs[0].tolist() not in (prior.blind.tolist(), tokens[0].tolist())


def test_little_noise_does_not_hide_a_text():
    tokens = texts(5)["input_ids"]
    seen = seen_of(tokens, mechanism="dp", noise_multiplier=1e-3)
    guess = found(seen, prior_of(tokens, log_frequency=EVEN), distance="likelihood")
    assert guess.inputs.tolist() == tokens.tolist()


def test_time_ends_the_search():
    tokens = texts(8)["input_ids"]
    guess = found(seen_of(tokens), prior_of(tokens), seconds=1e-6)
    assert guess.inputs[0].tolist() == prior_of(tokens).blind.tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distance": "manhattan"}, "expected distance in"),
        ({"proposals": 0}, "proposals=0 >= 1"),
        ({"step_size": 0.0}, r"step_size=0\.0 > 0"),
        ({"seconds": 0.0}, r"seconds=0\.0 > 0"),
    ],
)
def test_wrong_settings_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        TextMatching(**changes)


def test_what_it_cannot_work_on():
    tokens = texts(4)["input_ids"]
    seen = seen_of(tokens)
    nothing = replace(prior_of(tokens), vocabulary=vocabulary(4, words=""))
    with pytest.raises(DoesNotApply, match="no table of word embeddings"):
        found(seen, nothing)
    with pytest.raises(ValueError, match="expected start of 4 positions"):
        prior_of(tokens, start=torch.zeros(1, 5, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected a log frequency for 60 tokens"):
        prior_of(tokens, log_frequency=torch.zeros(3))
    assert isinstance(seen.model, nn.Module)
