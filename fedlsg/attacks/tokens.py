"""The span test: which tokens were in a text, from the received rows of dR.

After DAGER (Petrov et al. 2024), for carriers. Symbols: T positions, n numbers of an embedding,
    x_t (n,)  input of the first layers at position t
    X (T, n)  all of them
    dR = V X (r, n), with V = (g L)^T
Every received row of dR is a combination of the x_t of the text, and so is every row of a dense
gradient g^T X. An embedding is a public function of token and position. So each (token, position)
can be tested by itself: its score is the part of its squared norm that is in the span of the
received rows. With as many rows as tokens the score is 1 for tokens of the text. With fewer rows it
is still far larger for them than for others, and ``token_reading`` continues from there.
Differs from the source: scores are ranked instead of compared with a threshold, so that noise,
masks and fewer rows than tokens weaken the test and do not break it. The common direction of all
embeddings is removed first.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from fedlsg.attacks.observation import DoesNotApply, Observation
from fedlsg.attacks.search import Count
from fedlsg.config import check_declared
from fedlsg.gradients import trainable

NUMBERS_AT_ONCE = 2**19
"""Numbers in the embeddings of one chunk: small enough to stay in a processor's cache."""
ROUNDING = 1e-5
"""Singular values below this share of the largest are rounding, not signal."""
SAMPLE = 1024
"""Tokens from which the common direction is computed, spread over the vocabulary."""


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """What is public about the inputs of a text model.

    embeddings: path of the module that turns input_ids (B, T) into x (B, T, n).
    words: path of the nn.Embedding in it that holds one row a token; only matching reads it.
    size: number of tokens.
    length: T, special tokens included.
    special: tokens that no text is made of.
    pad: the token that fills texts up; its positions are outside the attention mask.
    types: token types that the model distinguishes (2 for pairs of texts); 1: all alike.
    """

    embeddings: str
    size: Count
    length: Count
    words: str = ""
    special: tuple[int, ...] = ()
    pad: int = 0
    types: Count = 1

    def __post_init__(self) -> None:
        check_declared(self)
        if not all(0 <= token < self.size for token in (*self.special, self.pad)):
            raise ValueError(
                f"expected tokens in [0, {self.size}), got special={self.special} and "
                f"pad={self.pad}"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """The span of the received rows, over the in units that every layer kept.

    basis: orthonormal rows.
    strength: the singular value of each.
    least: singular values up to it may be rounding and noise alone.
    columns: numbers of these in units.
    rows: how many rows were received.
    layers: names of the weights that they are of.
    """

    basis: Float[Tensor, "k columns"]
    strength: Float[Tensor, " k"]
    least: float
    columns: Int64[Tensor, " columns"]
    rows: int
    layers: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the span holds every token's embedding.

        This is so if there were rows and columns for more directions than there are.
        """
        return len(self.basis) < min(self.rows, len(self.columns))


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenScores:
    """The scores of all tokens.

    share: (V, T) the part of a token's squared norm that is inside the span, 0 to 1, at each
        position.
    span: the span that was tested.
    direction: common to all embeddings, of length 1; it was removed from span and embeddings.
    """

    share: Float[Tensor, "tokens positions"]
    span: Span
    direction: Float[Tensor, " columns"]

    def candidates(self, count: int) -> Int64[Tensor, "count positions"]:
        """The ``count`` tokens of largest share at each position, best first."""
        return self.share.topk(min(count, len(self.share)), dim=0).indices


def span_test(observation: Observation, vocabulary: Vocabulary) -> TokenScores:
    """Score every token at every position; special ones get 0.

    Raises DoesNotApply where no received layer reads the embeddings, or where noise hides every
    direction.
    """
    span = received_span(
        observation, readers(observation.model, vocabulary.embeddings, vocabulary.length)
    )
    n = _width(observation.model, vocabulary)
    direction = _common(observation.model, vocabulary)[span.columns].double()
    direction = direction / direction.norm().clamp_min(torch.finfo(direction.dtype).tiny)
    basis, _ = without(span, direction)
    in_columns = torch.zeros(n, 1).index_fill_(0, span.columns, 1.0)
    axes = torch.zeros(n, len(basis) + 1)  # the common direction, then the basis
    axes[span.columns] = torch.cat([direction.unsqueeze(0), basis]).float().mT
    shares = torch.zeros(vocabulary.size, vocabulary.length)
    for tokens, x in embedded(observation.model, vocabulary):
        x = x.float()
        squares = (x @ axes).square()
        whole = (x.square() @ in_columns).squeeze(-1) - squares[..., 0]
        share = squares[..., 1:].sum(-1) / whole.clamp_min(torch.finfo(x.dtype).tiny)
        shares[tokens] = torch.maximum(shares[tokens], share.clamp(max=1.0))
    shares[list(vocabulary.special)] = 0.0
    return TokenScores(share=shares, span=span, direction=direction)


def without(
    span: Span, direction: Float[Tensor, " columns"]
) -> tuple[Float[Tensor, "k columns"], Tensor]:
    """Orthonormal rows and strengths of the span, after ``direction`` is removed from it.

    direction: of length 1.
    """
    rows = span.strength.unsqueeze(1) * span.basis
    _, values, right = torch.linalg.svd(
        rows - (rows @ direction).unsqueeze(1) * direction, full_matrices=False
    )
    above = values > span.least
    return right[above], values[above]


def embedded(
    model: nn.Module,
    vocabulary: Vocabulary,
    *,
    tokens: Int64[Tensor, "some positions"] | None = None,
) -> Iterator[tuple[Int64[Tensor, " some"], Float[Tensor, "some positions n"]]]:
    """Row numbers and embeddings (rows, T, n) of texts, in chunks, once for each token type.

    tokens: the texts. By default there is one for each token, which has it at every position.
    """
    embed = model.get_submodule(vocabulary.embeddings)
    if tokens is None:
        tokens = torch.arange(vocabulary.size).unsqueeze(1).expand(-1, vocabulary.length)
    at_once = max(1, NUMBERS_AT_ONCE // (vocabulary.length * _width(model, vocabulary)))
    with torch.no_grad():
        for kind in range(vocabulary.types):
            for rows in torch.arange(len(tokens)).split(at_once):
                arguments = {"input_ids": tokens[rows]}
                if vocabulary.types > 1:
                    arguments["token_type_ids"] = torch.full_like(tokens[rows], kind)
                yield rows, embed(**arguments)


def _width(model: nn.Module, vocabulary: Vocabulary) -> int:
    """n, by a run on one token."""
    with torch.no_grad():
        x: Tensor = model.get_submodule(vocabulary.embeddings)(
            input_ids=torch.zeros(1, 1, dtype=torch.int64)
        )
    return x.shape[-1]


def _common(model: nn.Module, vocabulary: Vocabulary) -> Float[Tensor, " n"]:
    """The mean embedding over ``SAMPLE`` tokens and all positions."""
    sample = torch.arange(0, vocabulary.size, max(1, vocabulary.size // SAMPLE))
    tokens = sample.unsqueeze(1).expand(-1, vocabulary.length)
    total, count = torch.zeros(()), 0
    for _, x in embedded(model, vocabulary, tokens=tokens):
        total = total + x.double().sum((0, 1))
        count += x.shape[0] * x.shape[1]
    return total / count


def readers(model: nn.Module, embeddings: str, length: int) -> tuple[str, ...]:
    """Names of the weights of trained Linear layers that read the embeddings themselves.

    embeddings: path of the module whose output they read.
    Raises DoesNotApply if there is none: then their inputs are mixtures over the whole text.
    """
    outputs: list[Tensor] = []
    names: list[str] = []
    parameters = trainable(model)

    def record(module: nn.Module, args: object, output: Tensor) -> None:
        outputs.append(output)

    def compare(module: nn.Module, args: tuple[Tensor, ...], *, weight: str) -> None:
        if outputs and args and torch.equal(args[0], outputs[0]):
            names.append(weight)

    handles = [model.get_submodule(embeddings).register_forward_hook(record)]
    for path, module in model.named_modules():
        weight = f"{path}.weight"
        if isinstance(module, nn.Linear) and weight in parameters:
            handles.append(module.register_forward_pre_hook(partial(compare, weight=weight)))
    try:
        ids = torch.zeros(1, length, dtype=torch.int64)
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        for handle in handles:
            handle.remove()
    if not names:
        raise DoesNotApply(
            f"no trained layer reads {embeddings}: the lowest layers are frozen, and the first "
            "ones that send anything see mixtures of the whole text"
        )
    return tuple(dict.fromkeys(names))


def received_span(observation: Observation, layers: tuple[str, ...]) -> Span:
    """The span of what was received of ``layers``: rows of dR, or of the dense gradient.

    Directions that may be noise alone are left out: those with singular values up to sigma
    (sqrt(rows) + sqrt(columns) + 3). The largest singular value of noise is above that with a
    probability of at most exp(-9/2) (Davidson and Szarek 2001).
    Raises DoesNotApply if no direction remains.
    """
    blocks, kept = observation.blocks, observation.kept
    keys = [key for name in layers for key in ((name, "R"), (name, "dense")) if key in blocks]
    if not keys:
        raise DoesNotApply(
            f"nothing was received of {', '.join(layers)}: neither dR nor a dense gradient"
        )
    columns = torch.stack([_whole_columns(kept[key]) for key in keys]).all(0).nonzero().squeeze(1)
    if not len(columns):
        raise DoesNotApply(f"no in unit was kept in all of {', '.join(layers)}")
    rows = torch.cat(
        [blocks[key].flatten(1)[kept[key].flatten(1).any(1)][:, columns] for key in keys]
    )
    noise = observation.noise_std * (math.sqrt(len(rows)) + math.sqrt(len(columns)) + 3)
    _, values, right = torch.linalg.svd(rows.double(), full_matrices=False)
    least = max(noise, ROUNDING * float(values[0])) if len(values) else noise
    above = values > least
    if not bool(above.any()):
        raise DoesNotApply(
            f"noise hides every direction of the first layers (it alone would reach {noise:.3g}, "
            f"the strongest has {float(values[0]) if len(values) else 0.0:.3g}): no token can be "
            "distinguished"
        )
    return Span(
        basis=right[above],
        strength=values[above],
        least=least,
        columns=columns,
        rows=len(rows),
        layers=tuple(dict.fromkeys(name for name, _ in keys)),
    )


def _whole_columns(kept: Bool[Tensor, "rows n"]) -> Bool[Tensor, " n"]:
    """Which columns were kept in every row of which anything was kept."""
    kept = kept.flatten(1)
    if not bool(kept.any()):
        return torch.zeros(kept.shape[1], dtype=torch.bool)
    return kept[kept.any(1)].all(0)


@dataclass(frozen=True, kw_only=True, eq=False)
class TextPrior:
    """What is public about the texts.

    vocabulary: of the model.
    log_frequency: (V,) log p of a token in public texts, -inf for one that no text holds; None: all
        are equally frequent.
    blind: (T,) the guess without a payload, from which a likelihood counts changes; None: a random
        one. Its tokens that no text is made of (begin, end: special, or of frequency 0) stay where
        they are.
    start: (B, T) tokens to start from; None: ``blind``.
    candidates: (C, T) the only tokens that are tried at each position; None: all that texts are
        made of.
    """

    vocabulary: Vocabulary
    log_frequency: Float[Tensor, " tokens"] | None = None
    blind: Int64[Tensor, " positions"] | None = None
    start: Int64[Tensor, "batch positions"] | None = None
    candidates: Int64[Tensor, "c positions"] | None = None

    def __post_init__(self) -> None:
        if self.log_frequency is not None and self.log_frequency.shape != (self.vocabulary.size,):
            raise ValueError(
                f"expected a log frequency for {self.vocabulary.size} tokens, got "
                f"{tuple(self.log_frequency.shape)}"
            )
        for name in ("blind", "start", "candidates"):
            tokens = getattr(self, name)
            if tokens is not None and tokens.shape[-1:] != (self.vocabulary.length,):
                raise ValueError(
                    f"expected {name} of {self.vocabulary.length} positions, got "
                    f"{tuple(tokens.shape)}"
                )

    def to(self, device: torch.device) -> "TextPrior":
        """The same on a device."""
        tensors = {
            name: getattr(self, name) for name in ("log_frequency", "blind", "start", "candidates")
        }
        return replace(self, **{name: t.to(device) for name, t in tensors.items() if t is not None})
