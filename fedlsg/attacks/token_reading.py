"""Texts from the span test: tokens whose embeddings together span what was received.

One token is chosen for each position of each text.
Symbols: Y (k, n) received rows, by singular directions    x_(t,v) (n,) embedding of token v at
                                                           position t
Every row of Y is a combination of the true x, B T of them. The most certain one is taken, projected
out of rows and candidates, and the rest tested again: what remains of Y is in the span of what
remains of the texts, so that each right token makes the test of the others stronger (rank-aware
order recursive matching pursuit, Davies and Eldar 2012). Then every choice is made again, given all
others, while that explains more of Y. No gradient is computed.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedlsg.attacks.tokens import TokenScores, Vocabulary, embedded

Pairs = list[tuple[int, int]]

CANDIDATES = 64
"""Tokens a position that are looked at again; the span test ranks all of them first."""
SWEEPS = 4
"""How often all choices are made again, at most."""
RESTARTS = 4
"""Searches, at most."""
EXACT = 1e-9
"""Share of the received energy left over that is rounding of a payload of float32: the search is
over.
"""
GONE = 1e-8
"""An embedding of which this share or less is left is explained by those taken before."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """The texts that were read, and how far they explain what was received.

    tokens: (B, T), in position; which of several texts a token belongs to is not known. ``pad``:
        no token was chosen for that place.
    unexplained: share of the received energy outside the span of the chosen embeddings; 0 to
        rounding for the truth.
    unique: whether fewer tokens were taken than received in-units (columns of Y) - 1. Otherwise any
        tokens span everything, and ``unexplained`` = 0 proves nothing.
    """

    tokens: Int64[Tensor, "texts positions"]
    unexplained: float
    unique: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class _Choices:
    """What is received and what may explain it.

    Y: (k, n) received rows, without the common direction.
    least: singular values at or below it are noise (``Span.least``).
    x: (C, T, n) unit embeddings of the candidates, without the common direction. C = types x
        CANDIDATES: the same tokens once for each token type.
    tokens: (C, T) their tokens.
    """

    Y: Float[Tensor, "k n"]
    least: float
    x: Float[Tensor, "c t n"]
    tokens: Int64[Tensor, "c t"]


def read_tokens(
    model: nn.Module,
    scores: TokenScores,
    vocabulary: Vocabulary,
    *,
    texts: int,
    generator: torch.Generator,
) -> Reading:
    """The tokens of ``texts`` texts, by the restart that explains most of what was received.

    A text has at most ``vocabulary.length`` positions.
    The first restart takes the most certain token each time, the others one of the most certain
    ones, by ``generator``.
    Raises ValueError for ``texts`` < 1.
    """
    if texts < 1:
        raise ValueError(f"expected {texts=} >= 1")
    problem = _choices(model, scores, vocabulary)
    taken, lowest = [], math.inf
    for restart in range(RESTARTS):
        tried = _refine(problem, _pursue(problem, texts, generator if restart else None))
        remainder = _project_out(problem.Y, _basis_of(problem, tried))
        left = float(remainder.square().sum() / problem.Y.square().sum())
        if left < lowest:
            taken, lowest = tried, left
        if lowest < EXACT:
            break
    tokens = torch.full((texts, vocabulary.length), vocabulary.pad)
    places = [0] * vocabulary.length
    for choice, position in sorted(taken):
        tokens[places[position], position] = problem.tokens[choice, position]
        places[position] += 1
    return Reading(tokens=tokens, unexplained=lowest, unique=len(taken) < problem.Y.shape[1] - 1)


def _choices(model: nn.Module, scores: TokenScores, vocabulary: Vocabulary) -> _Choices:
    """The received rows and the candidates of the span test, in the order of ``embedded``."""
    span, direction = scores.span, scores.direction
    tokens = scores.candidates(CANDIDATES)
    parts = embedded(model, vocabulary, tokens=tokens)
    x = torch.cat([part[..., span.columns].double() for _, part in parts])
    Y = span.strength.unsqueeze(1) * span.basis
    out = direction.unsqueeze(0)
    x = _project_out(x, out)
    x = x / x.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    return _Choices(
        Y=_project_out(Y, out), least=span.least, x=x, tokens=tokens.repeat(vocabulary.types, 1)
    )


def _project_out(
    x: Float[Tensor, "*some n"], basis: Float[Tensor, "k n"]
) -> Float[Tensor, "*some n"]:
    """x without its part in the span of orthonormal rows."""
    return x - (x @ basis.mT) @ basis


def _pursue(problem: _Choices, texts: int, generator: torch.Generator | None) -> Pairs:
    """Pairs (candidate, position), the most certain first.

    Until nothing of Y remains, or every place has a token.
    """
    Y, x = problem.Y, problem.x.clone()
    open_places = torch.full((x.shape[1],), texts)
    taken: Pairs = []
    for _ in range(texts * x.shape[1]):
        _, values, right = torch.linalg.svd(Y, full_matrices=False)
        basis = right[values > problem.least]
        if not len(basis):
            break
        energy = x.square().sum(-1)
        share = (x @ basis.mT).square().sum(-1) / energy.clamp_min(GONE)
        share = share.masked_fill((energy <= GONE) | (open_places == 0), -1.0)
        if float(share.max()) < 0:
            break
        if generator is not None:
            # Random in proportion to the doubt: certain tokens keep their rank, others trade it.
            doubt = (1 - share).clamp_min(0.0)
            share = share - doubt * torch.rand(share.shape, generator=generator, dtype=share.dtype)
        best = int(share.argmax())
        choice, position = divmod(best, x.shape[1])
        taken.append((choice, position))
        open_places[position] -= 1
        step = (x[choice, position] / x[choice, position].norm()).unsqueeze(0)
        Y, x = _project_out(Y, step), _project_out(x, step)
    return taken


def _refine(problem: _Choices, taken: Pairs) -> Pairs:
    """Make each choice again, given all others, until none changes.

    The part of the received squared norm that is not explained never grows.
    """
    taken = list(taken)
    for _ in range(SWEEPS):
        before = list(taken)
        for number, (old, position) in enumerate(taken):
            others = _basis_of(problem, taken[:number] + taken[number + 1 :])
            Y, x = _project_out(problem.Y, others), _project_out(problem.x[:, position], others)
            energy = x.square().sum(-1)
            gain = (x @ Y.mT).square().sum(-1) / energy.clamp_min(GONE)
            gain = gain.masked_fill(energy <= GONE, 0.0)
            new = int(gain.argmax())
            # ``least`` is a singular value and a gain an energy, its square.
            if gain[new] > gain[old] + problem.least**2:
                taken[number] = (new, position)
        if taken == before:
            break
    return taken


def _basis_of(problem: _Choices, taken: Pairs) -> Float[Tensor, "k n"]:
    """Orthonormal rows of the span of the chosen embeddings."""
    if not taken:
        return problem.x.new_zeros(0, problem.x.shape[-1])
    rows = torch.stack([problem.x[choice, position] for choice, position in taken])
    _, values, right = torch.linalg.svd(rows, full_matrices=False)
    # GONE is a share of energy, a singular value is its root.
    basis: Tensor = right[values > GONE**0.5]
    return basis
