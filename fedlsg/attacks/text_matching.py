"""Matching attack on texts: which tokens and labels would have sent the update that was received?

The data are one ``Observation`` (the public model and the received values), what the threat model
grants (``Knowledge``), and what is public about the texts (``TextPrior``). The private batch is not
among them.

A candidate is a batch of tokens with labels. Its objective is the distance between the received
values and the values that a client would send for it (``replay``). Tokens cannot be changed by a
small step, so each restart searches in one or two stages:

1. From the second restart on: Adam moves the word embeddings freely, then each position takes the
   token whose embedding points in the most similar direction (TAG, Deng et al. 2021; LAMP,
   Balunovic et al. 2022). The first restart skips this stage.
2. A greedy search over tokens. Let e_t be the embedding of the token at position t. The gradient of
   the objective with respect to e_t ranks the replacement by token v by its first-order change
   <gradient_t, e_v - e_t> (HotFlip, Ebrahimi et al. 2018). The best replacements are evaluated one
   after the other, and the first that lowers the objective is kept.

With noise the objective is a negative log-likelihood. A token v that differs from the blind guess
(the guess without the update) then adds -log p(v): without that price, the search would fit the
noise.

Differs from the sources: no language model ranks the texts; the span test (``tokens``) may give the
candidate tokens.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, Shaped
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from fedlsg.attacks.distances import DISTANCES, DistanceName
from fedlsg.attacks.observation import DoesNotApply, Guess, Knowledge, Observation
from fedlsg.attacks.replay import objective
from fedlsg.attacks.search import Box, Count, Progress, Search, Watch, Weight, adam, search
from fedlsg.attacks.tokens import TextPrior
from fedlsg.config import Setting

TokenIds = Int64[Tensor, "batch positions"]
Embeddings = Float[Tensor, "batch positions width"]
Position = tuple[int, int]
"""(text, position in it)."""

LEAST_LOG_FREQUENCY = -1e6
"""In place of -inf, for a token that no public text holds: the sum of prices stays finite."""


@dataclass(frozen=True, kw_only=True)
class TextMatching(Search):
    """The settings of a matching attack on texts.

    evaluations: steps of Adam on free embeddings, in each restart but the first.
    rounds: the most moves (``TextSearch.moves``) that one restart accepts.
    proposals: replacements that are evaluated for one gradient, over all positions.
    """

    distance: DistanceName = "cosine"
    restarts: Count = 2
    evaluations: Count = 60
    step_size: Annotated[float, Setting(above=0, below=math.inf)] = 0.3
    tolerance: Weight = 1e-9
    rounds: Count = 50
    proposals: Count = 24


class Candidate(NamedTuple):
    """A batch that the clients may have trained on: B texts of T tokens, and a label each."""

    tokens: TokenIds
    labels: Shaped[Tensor, "batch *target"]


def match_text(
    observation: Observation,
    knowledge: Knowledge,
    prior: TextPrior,
    *,
    attack: TextMatching,
    generator: torch.Generator,
    progress: Progress = lambda done, total, text: None,
) -> Guess:
    """The candidate of lowest objective over all restarts: tokens (B, T), padded, and labels (B,).

    If the number of examples is not known, the declared expected batch is used.
    Guarantee: the same arguments and generator state give the same guess unless ``seconds`` ends
    the search; the model is left as it was.
    Raises DoesNotApply if ``replay.objective`` does, if the vocabulary names no table of word
    embeddings, and if unknown labels are not classes.
    """
    path = prior.vocabulary.words
    words = observation.model.get_submodule(path) if path else None
    if not isinstance(words, nn.Embedding):
        raise DoesNotApply(
            f"words={path!r} is no table of word embeddings: tokens have no gradient"
        )
    if knowledge.labels is None and not observation.class_targets:
        raise DoesNotApply(
            "the targets are no classes, which a search could try: grant them, labels='known'"
        )
    texts = TextSearch(
        observation, knowledge, prior.to(observation.values.device), attack=attack, words=words
    )
    minimum = search(
        observation, attack, partial(texts.local_minimum, generator), texts.model_batch, progress
    )
    tokens, labels = minimum.point
    note = (
        f"{attack.compare} {attack.distance}, {minimum.restarts} restart(s), "
        f"{texts.replays} replays"
    )
    return Guess(
        inputs=tokens.cpu(),
        labels=labels.cpu(),
        objective=minimum.objective,
        unexplained=minimum.unexplained,
        note=note,
    )


class TextSearch:
    """The search for the candidate of lowest objective, for one observation.

    text_tokens: the tokens that texts are made of: neither special, nor padding, nor absent from
        all public texts. The search changes no other token.
    replays: how often the client's computation was replayed so far.
    """

    def __init__(
        self,
        observation: Observation,
        knowledge: Knowledge,
        prior: TextPrior,
        *,
        attack: TextMatching,
        words: nn.Embedding,
    ) -> None:
        self.observation = observation
        self.knowledge = knowledge
        self.prior = prior
        self.attack = attack
        self.words = words
        self.pad = prior.vocabulary.pad
        self.distance = objective(observation, distance=attack.distance, compare=attack.compare)
        self.text_tokens = text_tokens(prior, observation.values.device)
        self.replays = 0

    def local_minimum(self, generator: torch.Generator, watch: Watch) -> tuple[Candidate, float]:
        """One restart: where the search ends, and the objective there."""
        start = self.first_candidate(generator, restart=watch.restart)
        if watch.restart > 1:
            start = self.match_free_embeddings(start, watch)
        return self.greedy_search(start, watch)

    def first_candidate(self, generator: torch.Generator, *, restart: int) -> Candidate:
        """Where a restart begins.

        Restart 1: at ``prior.start``, else the blind guess, else random text tokens. The others: at
        random text tokens; tokens of the blind guess that no text is made of (begin, end) stay at
        their positions.
        """
        device = self.text_tokens.device
        examples = self.knowledge.examples or self.observation.expected_examples
        labels = self.knowledge.labels
        if labels is None:
            labels = torch.zeros(examples, dtype=torch.int64)
        shape = (examples, self.prior.vocabulary.length)
        places = torch.randint(len(self.text_tokens), shape, generator=generator)
        random_tokens = self.text_tokens[places.to(device)]
        blind = random_tokens  # text tokens alone: all of them may be replaced
        if self.prior.blind is not None:
            blind = self.prior.blind.expand(examples, -1)
        if restart > 1:
            tokens = torch.where(self.replaceable(blind), random_tokens, blind)
        else:
            tokens = (blind if self.prior.start is None else self.prior.start).clone()
        return Candidate(tokens, labels.to(device))

    def greedy_search(self, start: Candidate, watch: Watch) -> tuple[Candidate, float]:
        """Accept moves that lower the objective until none does, or time or rounds are over."""
        best, lowest = start, self.priced_objective(start)
        for number in range(self.attack.rounds):
            watch.progress(number, self.attack.rounds, f"objective {lowest:.3g}")
            if lowest <= self.attack.tolerance or watch.over:
                break
            improvement = self.first_improvement(best, lowest, watch)
            if improvement is None:
                break
            best, lowest = improvement
        return best, lowest

    def first_improvement(
        self, candidate: Candidate, lowest: float, watch: Watch
    ) -> tuple[Candidate, float] | None:
        """The first move with an objective below ``lowest``; None if there is none in time."""
        for moved in self.moves(candidate):
            value = self.priced_objective(moved)
            if value < lowest:
                return moved, value
            if watch.over:
                break
        return None

    def moves(self, candidate: Candidate) -> Iterator[Candidate]:
        """Candidates that differ by one step, in the order in which they are evaluated.

        Two kinds of exchange are among them because replacements of one token get stuck when the
        right tokens are found in the wrong text or order.
        """
        if self.knowledge.labels is None:
            yield from self.label_changes(candidate)
        yield from exchanges_between_texts(candidate)
        yield from self.replacements(candidate)
        yield from self.exchanges_within_texts(candidate)

    def label_changes(self, candidate: Candidate) -> Iterator[Candidate]:
        """Each text with each other class."""
        tokens, labels = candidate
        for text, label in itertools.product(range(len(labels)), range(self.count_classes())):
            if label != labels[text]:
                changed = labels.clone()
                changed[text] = label
                yield Candidate(tokens, changed)

    def replacements(self, candidate: Candidate) -> Iterator[Candidate]:
        """One token replaced: the ``proposals`` of best first-order change, best first."""
        tokens, labels = candidate
        table = self.words.weight.detach()
        gradient = self.embedding_gradient(candidate)
        # <gradient_t, e_v - e_t> of every token v at every position t
        change = gradient @ table.mT - (gradient * table[tokens]).sum(-1, keepdim=True)
        gain = self.without_other_tokens(-change)
        gain = gain.scatter(2, tokens.unsqueeze(2), -math.inf)  # no token replaces itself
        gain = gain.masked_fill(~self.replaceable(tokens).unsqueeze(2), -math.inf)
        best = gain.flatten().topk(min(self.attack.proposals, gain.numel()))
        for score, place in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if score == -math.inf:
                return
            position, token = divmod(place, len(table))
            replaced = tokens.clone()
            replaced.view(-1)[position] = token
            yield Candidate(replaced, labels)

    def exchanges_within_texts(self, candidate: Candidate) -> Iterator[Candidate]:
        """Two different tokens of one text, each at the other's position."""
        tokens, labels = candidate
        for text, replaceable in enumerate(self.replaceable(tokens)):
            positions = replaceable.nonzero().squeeze(1).tolist()
            for first, second in itertools.combinations(positions, 2):
                if tokens[text, first] != tokens[text, second]:
                    yield Candidate(exchange(tokens, (text, first), (text, second)), labels)

    def replaceable(self, tokens: TokenIds) -> Bool[Tensor, "batch positions"]:
        """Which positions hold a token that texts are made of."""
        return torch.isin(tokens, self.text_tokens)

    def without_other_tokens(
        self, scores: Float[Tensor, "batch positions tokens"]
    ) -> Float[Tensor, "batch positions tokens"]:
        """The scores, with -inf for each token that is not tried at a position."""
        tried = torch.zeros(scores.shape[1:], dtype=torch.bool, device=scores.device)
        if self.prior.candidates is None:
            tried[:, self.text_tokens] = True
        else:
            tried.scatter_(1, self.prior.candidates.mT, True)  # of (tokens, positions)
        return scores.masked_fill(~tried, -math.inf)

    def model_batch(self, candidate: Candidate) -> tuple[dict[str, Tensor], Tensor]:
        """(inputs, targets), as the model and the loss take them."""
        return self.model_inputs(candidate.tokens), candidate.labels

    def model_inputs(self, tokens: TokenIds) -> dict[str, Tensor]:
        """The model's arguments: padding is outside the attention mask."""
        return {"input_ids": tokens, "attention_mask": (tokens != self.pad).long()}

    def count_classes(self) -> int:
        """Number of outputs of the model, by a run on one text."""
        one_text = self.text_tokens[:1].expand(1, self.prior.vocabulary.length)
        with torch.no_grad():
            outputs: Tensor = self.observation.model(**self.model_inputs(one_text))
        return outputs.shape[1]

    def priced_objective(self, candidate: Candidate) -> float:
        """The objective, plus the price of every text token that differs from the blind guess."""
        self.replays += 1
        value = float(self.distance(*self.model_batch(candidate)).detach())
        tokens = candidate.tokens
        priced = self.replaceable(tokens)
        if self.prior.blind is not None:
            priced &= tokens != self.prior.blind
        return value + float(self.token_prices(tokens)[priced].sum())

    def token_prices(self, tokens: TokenIds) -> Float[Tensor, "batch positions"]:
        """-log p(token) of each token for a likelihood; 0 for other distances.

        Without a public frequency, p is the same for all tokens of the vocabulary.
        """
        if not DISTANCES[self.attack.distance].likelihood:
            return torch.zeros(tokens.shape, device=tokens.device)
        if self.prior.log_frequency is None:
            uniform = math.log(self.prior.vocabulary.size)
            return torch.full(tokens.shape, uniform, device=tokens.device)
        return -self.prior.log_frequency[tokens].clamp_min(LEAST_LOG_FREQUENCY)

    def match_free_embeddings(self, start: Candidate, watch: Watch) -> Candidate:
        """Adam on free embeddings, then at each position the token of most similar direction."""
        tokens, labels = start
        table = self.words.weight.detach()
        embeddings = table[tokens]
        padded = tokens == self.pad
        no_limit = torch.full((embeddings.numel(),), math.inf, device=table.device)
        lowest_point, _ = adam(
            lambda point: self.embedding_objective(point.view_as(embeddings), labels, padded),
            embeddings.flatten(),
            Box(low=-no_limit, high=no_limit),
            evaluations=self.attack.evaluations,
            signed=False,
            step_size=self.attack.step_size * table[self.text_tokens].std(),
            # An objective of 0 ends no search here, as free embeddings are no text yet.
            go_on=lambda done, _: watch.go_on(done, math.inf),
        )
        directions = F.normalize(lowest_point.view_as(embeddings), dim=-1)
        similarity = directions @ F.normalize(table, dim=-1).mT
        most_similar = self.without_other_tokens(similarity).argmax(-1)
        return Candidate(torch.where(self.replaceable(tokens), most_similar, tokens), labels)

    def embedding_gradient(self, candidate: Candidate) -> Embeddings:
        """Gradient of the objective, without prices, with respect to each token's embedding."""
        tokens, labels = candidate
        embeddings = self.words.weight.detach()[tokens].requires_grad_()
        value = self.embedding_objective(embeddings, labels, tokens == self.pad)
        (gradient,) = torch.autograd.grad(value, embeddings)
        return gradient

    def embedding_objective(
        self, embeddings: Embeddings, labels: Tensor, padded: Bool[Tensor, "batch positions"]
    ) -> Float[Tensor, ""]:
        """The objective of texts whose word embeddings are given; ``padded`` positions have none.

        The replay passes inputs to the model one example at a time, so the inputs themselves must
        say which embeddings are meant: each position gets a number of its own (``use_embeddings``).
        """
        self.replays += 1
        numbers = torch.arange(padded.numel(), device=embeddings.device).view_as(padded)
        placeholders = (numbers + self.pad + 1).masked_fill(padded, self.pad)
        # Fused attention has no second derivative; its plain form has.
        with (
            use_embeddings(self.words, embeddings.flatten(0, 1), self.pad),
            sdpa_kernel(SDPBackend.MATH),
        ):
            return self.distance(self.model_inputs(placeholders), labels)


def text_tokens(prior: TextPrior, device: torch.device) -> Int64[Tensor, " allowed"]:
    """The tokens that texts are made of: not special, not padding, of positive frequency."""
    vocabulary = prior.vocabulary
    allowed = torch.ones(vocabulary.size, dtype=torch.bool, device=device)
    if prior.log_frequency is not None:
        allowed = prior.log_frequency > -math.inf
    allowed[[*vocabulary.special, vocabulary.pad]] = False
    return allowed.nonzero().squeeze(1)


def exchanges_between_texts(candidate: Candidate) -> Iterator[Candidate]:
    """The tokens at one position of two texts, each in the other text."""
    tokens, labels = candidate
    for first, second in itertools.combinations(range(len(tokens)), 2):
        for position in (tokens[first] != tokens[second]).nonzero().squeeze(1).tolist():
            yield Candidate(exchange(tokens, (first, position), (second, position)), labels)


def exchange(tokens: TokenIds, first: Position, second: Position) -> TokenIds:
    """A copy of the tokens in which two of them have changed places."""
    exchanged = tokens.clone()
    exchanged[first] = tokens[second]
    exchanged[second] = tokens[first]
    return exchanged


@contextmanager
def use_embeddings(
    words: nn.Embedding, table: Float[Tensor, "rows width"], pad: int
) -> Iterator[None]:
    """Within: the placeholder ``pad + 1 + i`` has row i of ``table`` as its embedding.

    ``pad`` keeps its own embedding, so that the model still sees where the padding is. Placeholders
    may be larger than the vocabulary: ``words`` itself looks up ``pad`` in their place.
    """
    pending: list[Tensor] = []

    def hide_placeholders(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        pending.append(args[0])
        return (torch.full_like(args[0], pad),)

    def look_up(module: nn.Module, args: object, output: Tensor) -> Tensor:
        placeholders = pending.pop()
        rows = (placeholders - pad - 1).clamp_min(0)
        return torch.where((placeholders == pad).unsqueeze(-1), output, table[rows])

    handles = [
        words.register_forward_pre_hook(hide_placeholders),
        words.register_forward_hook(look_up),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
