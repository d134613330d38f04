"""The span that texts leave in what was received of the layers that read their embeddings.

Symbols: x_t (n,) input of the first layers at position t      X (T, n)      dR = V X (r, n), V = (g L)^T
Every received row of dR is a combination of the x_t of the text; so is every row of a dense gradient g^T X.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn

from fedlsg.attacks.guess import DoesNotApply
from fedlsg.attacks.observation import Observation
from fedlsg.gradients import trainable

ROUNDING = 1e-5
"""Singular values below this share of the largest are rounding, not signal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """Orthonormal rows that the texts' embeddings had a part in, over the in units that every layer kept.

    strength: singular value of each; least: what rounding and noise alone would reach; rows: received numbers of rows.
    complete: fewer directions than rows, so that the span holds every token's embedding.
    """

    basis: Float[Tensor, "k columns"]
    strength: Float[Tensor, " k"]
    least: float
    columns: Int64[Tensor, " columns"]
    rows: int
    layers: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether nothing of the texts can lie outside: the rows had room for more directions than there are."""
        return len(self.basis) < min(self.rows, len(self.columns))


def readers(model: nn.Module, embeddings: str, length: int) -> tuple[str, ...]:
    """Weights of the trained Linear layers whose input is the output of the module ``embeddings`` itself.

    Raises DoesNotApply if there is none: then their inputs are mixtures over the whole text.
    """
    made: list[Tensor] = []
    found: list[str] = []
    own = trainable(model)

    def remember(module: nn.Module, args: object, output: Tensor) -> None:
        made.append(output)

    def look(name: str, args: tuple[Tensor, ...]) -> None:
        if made and args and args[0].shape == made[0].shape and torch.equal(args[0], made[0]):
            found.append(f"{name}.weight")

    handles = [model.get_submodule(embeddings).register_forward_hook(remember)]
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and f"{name}.weight" in own:
            handles.append(module.register_forward_pre_hook(lambda m, args, name=name: look(name, args)))
    try:
        ids = torch.zeros(1, length, dtype=torch.int64)
        with torch.no_grad():
            model(input_ids=ids, attention_mask=torch.ones_like(ids))
    finally:
        for handle in handles:
            handle.remove()
    if not found:
        raise DoesNotApply(
            f"no trained layer reads {embeddings}: the lowest layers are frozen, and the first ones that send "
            "anything see mixtures of the whole text"
        )
    return tuple(dict.fromkeys(found))


def received_span(seen: Observation, layers: tuple[str, ...]) -> Span:
    """The span of what was received of ``layers``: rows of dR, or of the dense gradient.

    Directions whose singular value noise alone would reach are left out: sigma (sqrt(rows) + sqrt(columns) + 3), which
    the largest one of noise passes with a probability of exp(-9/2) at most (Davidson and Szarek 2001).
    Raises DoesNotApply where nothing is left.
    """
    blocks, kept = seen.blocks, seen.kept
    found = [key for name in layers for key in ((name, "R"), (name, "dense")) if key in blocks]
    if not found:
        raise DoesNotApply(f"nothing was received of {', '.join(layers)}")
    columns = torch.stack([_whole_columns(kept[key]) for key in found]).all(0).nonzero().squeeze(1)
    if not len(columns):
        raise DoesNotApply(f"no in unit was kept in all of {', '.join(layers)}")
    rows = torch.cat([blocks[key].flatten(1)[kept[key].flatten(1).any(1)][:, columns] for key in found])
    noise = seen.noise_std * (math.sqrt(len(rows)) + math.sqrt(len(columns)) + 3)
    _, values, right = torch.linalg.svd(rows.double(), full_matrices=False)
    least = max(noise, ROUNDING * float(values[0])) if len(values) else noise
    above = values > least
    if not bool(above.any()):
        raise DoesNotApply(
            f"noise hides every direction of the first layers (it alone would reach {noise:.3g}, the strongest has "
            f"{float(values[0]) if len(values) else 0.0:.3g}): no token can be distinguished"
        )
    return Span(
        basis=right[above],
        strength=values[above],
        least=least,
        columns=columns,
        rows=len(rows),
        layers=tuple(dict.fromkeys(name for name, _ in found)),
    )


def _whole_columns(kept: Bool[Tensor, "rows n"]) -> Bool[Tensor, " n"]:
    """Columns that every row with anything kept has: what a span over columns can be taken of."""
    kept = kept.flatten(1)
    return kept[kept.any(1)].all(0) if bool(kept.any()) else torch.zeros(kept.shape[1], dtype=torch.bool)
