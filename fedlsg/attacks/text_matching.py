"""Matching attacks on texts: find the tokens whose update is nearest to what was received.

Tokens are no continuous values. From a start, the gradient of the objective with respect to the
word embeddings e_t ranks the replacements of every token by their first-order change <grad_t, e(v)
- e_t> (HotFlip, Ebrahimi et al. 2018); the best are tried one after the other by the client's own
computation (``replay``), and kept if they lower it. Where no start is better than another, e_t are
first moved freely by Adam, then each is replaced by the token that points the same way (embedding
matching with projection: TAG, Deng et al. 2021; LAMP, Balunovic et al. 2022). With noise the
objective is the likelihood, and a replaced token must be worth what it takes to name it: -log p(v).
Differs from the sources: no language model ranks the texts; the candidates may come from the span
test.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Bool, Float, Int64
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


@dataclass(frozen=True, kw_only=True)
class TextMatching(Search):
    """A matching attack on texts.

    evaluations: steps of Adam on free embeddings before; the first restart, from the given start,
        has none of them.
    proposals: replacements tried at each gradient, over all positions.
    rounds: gradients at most, a restart.
    """

    distance: DistanceName = "cosine"
    restarts: Count = 2
    evaluations: Count = 60
    step_size: Annotated[float, Setting(above=0, below=math.inf)] = 0.3
    tolerance: Weight = 1e-9
    rounds: Count = 50
    proposals: Count = 24


def match_text(
    observation: Observation,
    knowledge: Knowledge,
    prior: TextPrior,
    *,
    attack: TextMatching,
    generator: torch.Generator,
    progress: Progress = lambda done, total, text: None,
) -> Guess:
    """The tokens (B, T) and labels of lowest objective over all restarts; padding is outside the
    attention mask.

    Where the number of examples is not known, the declared expected batch is used. Guarantee: the
    same arguments and generator state give the same guess unless ``seconds`` cuts it off; the model
    is left as it was.
    Raises DoesNotApply where ``objective`` does, and for a vocabulary that names no word embedding.
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
    sought = Tokens(observation, knowledge, prior.to(observation.values.device), attack, words)
    minimum = search(
        observation, attack, partial(sought.minimum, generator), sought.split, progress
    )
    tokens, labels = minimum.point
    note = (
        f"{attack.compare} {attack.distance}, {minimum.restarts} restart(s), {sought.tried} replays"
    )
    return Guess(
        inputs=tokens.cpu(),
        labels=labels.cpu(),
        objective=minimum.objective,
        unexplained=minimum.unexplained,
        note=note,
    )


class Tokens:
    """Tokens and labels of one observation, their objective, and how many replays it took."""

    def __init__(
        self,
        observation: Observation,
        known: Knowledge,
        prior: TextPrior,
        attack: TextMatching,
        words: nn.Embedding,
    ) -> None:
        self.observation = observation
        self.known = known
        self.prior = prior
        self.attack = attack
        self.words = words
        self.examples = known.examples or observation.expected_examples
        self.distance = objective(observation, distance=attack.distance, compare=attack.compare)
        v = prior.vocabulary
        common = (
            observation.values.new_zeros(v.size)
            if prior.log_frequency is None
            else prior.log_frequency
        )
        barred = torch.zeros(v.size, dtype=torch.bool, device=common.device)
        barred[[*v.special, v.pad]] = True
        self.allowed = (~barred & (common > -math.inf)).nonzero().squeeze(1)
        self.tried = 0

    def minimum(
        self, generator: torch.Generator, watch: Watch
    ) -> tuple[tuple[Tensor, Tensor], float]:
        """The prior's start or blind guess, then a continuous search from tokens that are drawn;
        both improved.
        """
        prior, allowed = self.prior, self.allowed
        labels = (
            torch.zeros(self.examples, dtype=torch.int64)
            if self.known.labels is None
            else self.known.labels
        )
        labels = labels.to(allowed.device)
        draw = torch.randint(
            len(allowed), (self.examples, prior.vocabulary.length), generator=generator
        )
        drawn = allowed[draw.to(allowed.device)]
        blind = drawn if prior.blind is None else prior.blind.expand(self.examples, -1)
        start = (blind if prior.start is None else prior.start).clone()
        if watch.restart > 1:
            start = self.free(torch.where(self.replaceable(blind), drawn, blind), labels, watch)
        return self.improve(start, labels, watch)

    def split(self, point: tuple[Tensor, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """(inputs, targets) of tokens and labels."""
        return self.inputs(point[0]), point[1]

    def inputs(self, tokens: TokenIds) -> dict[str, Tensor]:
        return {"input_ids": tokens, "attention_mask": (tokens != self.prior.vocabulary.pad).long()}

    def replaceable(self, tokens: TokenIds) -> Bool[Tensor, "batch positions"]:
        """Which positions hold a token that texts are made of."""
        return torch.isin(tokens, self.allowed)

    def value(self, tokens: Tensor, labels: Tensor) -> float:
        """The objective, and with a likelihood the cost of naming what differs from the blind
        guess.
        """
        self.tried += 1
        value = float(self.distance(self.inputs(tokens), labels).detach())
        known = (
            torch.zeros_like(tokens, dtype=torch.bool)
            if self.prior.blind is None
            else tokens == self.prior.blind
        )
        return value + float(self._cost(tokens)[~known & self.replaceable(tokens)].sum())

    def _cost(self, tokens: Tensor) -> Tensor:
        if not DISTANCES[self.attack.distance].likelihood:
            return torch.zeros(tokens.shape, device=tokens.device)
        if self.prior.log_frequency is None:
            return torch.full(
                tokens.shape, math.log(self.prior.vocabulary.size), device=tokens.device
            )
        return -self.prior.log_frequency[tokens].clamp_min(-1e6)

    def gradient(
        self, tokens: Tensor, labels: Tensor
    ) -> tuple[float, Float[Tensor, "batch positions n"]]:
        """The objective and its gradient with respect to every word embedding."""
        table = self.words.weight.detach()[tokens].requires_grad_()
        value = self.energy(table, labels, tokens == self.prior.vocabulary.pad)
        (gradient,) = torch.autograd.grad(value, table)
        return float(value.detach()), gradient

    def energy(
        self, table: Float[Tensor, "batch positions n"], labels: Tensor, padded: Tensor
    ) -> Tensor:
        """The objective of free word embeddings: placeholder numbers index the table, so that rows
        can be replayed.
        """
        self.tried += 1
        pad = self.prior.vocabulary.pad
        places = (
            torch.arange(table[..., 0].numel(), device=table.device).view(table.shape[:2]) + pad + 1
        )
        # Fused attention has no second derivative; the plain form of it has.
        with standing_in(self.words, table.flatten(0, 1), pad), sdpa_kernel(SDPBackend.MATH):
            return self.distance(self.inputs(places.masked_fill(padded, pad)), labels)

    def free(self, tokens: Tensor, labels: Tensor, watch: Watch) -> TokenIds:
        """Adam on free embeddings, then the token of each position that points the same way."""
        table = self.words.weight.detach()
        shape = torch.Size((*tokens.shape, table.shape[1]))
        spread = table[self.allowed].std()
        limit = torch.full((shape.numel(),), math.inf, device=table.device)
        padded = tokens == self.prior.vocabulary.pad
        # Free embeddings that explain everything are no text yet: only the time ends this.
        point, _ = adam(
            lambda at: self.energy(at.view(shape), labels, padded),
            table[tokens].flatten(),
            Box(low=-limit, high=limit),
            evaluations=self.attack.evaluations,
            signed=False,
            step_size=self.attack.step_size * spread,
            go_on=lambda done, _: watch.go_on(done, math.inf),
        )
        likeness = F.normalize(point.view(shape), dim=-1) @ F.normalize(table, dim=-1).mT
        return torch.where(
            self.replaceable(tokens), self._only_candidates(likeness).argmax(-1), tokens
        )

    def _only_candidates(self, scores: Float[Tensor, "batch positions tokens"]) -> Tensor:
        """-inf for tokens that are not tried at a position."""
        keep = torch.zeros(scores.shape[1:], dtype=torch.bool, device=scores.device)
        if self.prior.candidates is None:
            keep[:, self.allowed] = True
        else:
            keep.scatter_(1, self.prior.candidates.mT, True)
        return scores.masked_fill(~keep, -math.inf)

    def improve(
        self, tokens: Tensor, labels: Tensor, watch: Watch
    ) -> tuple[tuple[Tensor, Tensor], float]:
        """Tokens, labels and their objective: the best moves one after the other while any lowers
        it.
        """
        lowest = self.value(tokens, labels)
        for number in range(self.attack.rounds):
            watch.progress(number, self.attack.rounds, f"objective {lowest:.3g}")
            if lowest <= self.attack.tolerance or watch.over:
                break
            before = lowest
            for moved in self.moves(tokens, labels):
                value = self.value(*moved)
                if value < lowest:
                    lowest, (tokens, labels) = value, moved
                    break
                if watch.over:
                    break
            if not lowest < before:
                break
        return (tokens, labels), lowest

    def moves(self, tokens: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Other labels where they are not known, exchanges between texts, tokens by first-order
        change, then pairs of tokens of a text in each other's place, which is where single
        replacements get stuck."""
        if self.known.labels is None:
            for row in range(len(labels)):
                for label in range(self.classes):
                    if label != labels[row]:
                        yield (
                            tokens,
                            labels.index_fill(0, torch.tensor([row], device=labels.device), label),
                        )
        for first, other in itertools.combinations(range(len(tokens)), 2):
            for position in (tokens[first] != tokens[other]).nonzero().squeeze(1).tolist():
                yield exchanged(tokens, (first, position), (other, position)), labels
        _, gradient = self.gradient(tokens, labels)
        table = self.words.weight.detach()
        change = gradient @ table.mT - (gradient * table[tokens]).sum(-1, keepdim=True)
        gain = self._only_candidates(-change)
        gain = gain.scatter(2, tokens.unsqueeze(2), -math.inf)
        gain = gain.masked_fill(~self.replaceable(tokens).unsqueeze(2), -math.inf)
        top = gain.flatten().topk(min(self.attack.proposals, gain.numel()))
        for score, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            if score > -math.inf:
                at, token = divmod(place, len(table))
                replaced = tokens.clone()
                replaced.view(-1)[at] = token
                yield replaced, labels
        for row, places in enumerate(self.replaceable(tokens)):
            for first, other in itertools.combinations(places.nonzero().squeeze(1).tolist(), 2):
                if tokens[row, first] != tokens[row, other]:
                    yield exchanged(tokens, (row, first), (row, other)), labels

    @property
    def classes(self) -> int:
        """Outputs of the model, counted in a run of one text."""
        ids = self.allowed[:1].expand(1, self.prior.vocabulary.length)
        with torch.no_grad():
            outputs: Tensor = self.observation.model(**self.inputs(ids))
        return outputs.shape[1]


def exchanged(tokens: TokenIds, one: tuple[int, int], other: tuple[int, int]) -> TokenIds:
    """The tokens with two of them in each other's place."""
    changed = tokens.clone()
    changed[one], changed[other] = tokens[other], tokens[one]
    return changed


@contextmanager
def standing_in(words: nn.Embedding, table: Float[Tensor, "rows n"], pad: int) -> Iterator[None]:
    """Within: token number ``pad + 1 + i`` has row i of ``table`` as its embedding; ``pad`` keeps
    its own.
    """
    read: list[Tensor] = []

    def before(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        read.append(args[0])
        return (torch.full_like(args[0], pad),)

    def after(module: nn.Module, args: object, output: Tensor) -> Tensor:
        ids = read.pop()
        return torch.where((ids == pad).unsqueeze(-1), output, table[(ids - pad - 1).clamp_min(0)])

    handles = [words.register_forward_pre_hook(before), words.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
