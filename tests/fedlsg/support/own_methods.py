"""Carriers and masks as a user writes them: plain functions of public values."""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fedlsg.carriers import OwnCarriers
from fedlsg.frame import Block, Coordinates, Frame, make_blocks
from fedlsg.frame.public import Public
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.lowrank import orthonormal_columns
from fedlsg.masks.mask import Mask
from fedlsg.method import Method
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.training import ServerOptimizer


def orthonormal(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """Random orthonormal L and R of each carried weight, drawn again each round."""
    pairs = {}
    for name, (m, r, s, n) in public.carried.items():
        generator = public.generator("toy", name, public.time.round)
        L = torch.randn(m, r, generator=generator).double()
        R = torch.randn(n, s, generator=generator).double()
        pairs[name] = orthonormal_columns(L), orthonormal_columns(R).mT
    return pairs


def scaled(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """The same with columns of L and rows of R of very different lengths, in any memory order."""
    return {
        name: (
            L * torch.logspace(-1, 1, L.shape[1]),
            R * torch.linspace(0.5, 2, len(R)).unsqueeze(1),
        )
        for name, (L, R) in orthonormal(public).items()
    }


def scaled_square(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """The same, a third as long, for square L and R, of which no direction is left out."""
    return {name: (L / 3, R) for name, (L, R) in scaled(public).items()}


def long_weights(block: Block, public: Public) -> Tensor:
    """Every other coordinate of a block, and of a bias those of positive weight, or the first
    one.
    """
    if block.part == "dense" and len(block.shape) == 1:
        kept = public.weights[block.parameter] > 0
        kept[0] = True
        return kept
    return (torch.arange(block.size) % 2 == 0).reshape(block.shape)


def probe(public: Public) -> dict[str, tuple[Tensor, Tensor]]:
    """Top eigenvectors of the second moments of per-example gradients on synthetic inputs, at the
    public weights.

    Columns of L and rows of R are scaled by the fourth root of the eigenvalues' inverse, for a
    core.
    """
    model = public.model()
    generator = public.generator("probe", public.time.round)
    features = next(W for name, W in public.weights.items() if name.endswith("weight")).shape[1]
    inputs = torch.randn(64, features, generator=generator).to(next(model.parameters()))
    labels = torch.randint(len(public.weights[f"{CLASSIFIER}.bias"]), (64,), generator=generator)
    where = tuple(
        Coordinates(name=name, shape=tuple(W.shape)) for name, W in public.weights.items()
    )
    frame = Frame(coordinates=where, blocks=make_blocks(where))
    gradients = per_example_gradients(
        model, partial(F.cross_entropy, reduction="none"), inputs, labels, frame
    )
    length = torch.cat(gradients, dim=1).norm(dim=1, keepdim=True)
    pairs = {}
    for block, G in zip(frame.blocks, gradients, strict=True):
        if block.parameter in public.carried:
            m, r, s, n = public.carried[block.parameter]
            G = (G / length).reshape(-1, m, n)
            out, into = (G @ G.mT).sum(0), (G.mT @ G).sum(0)
            pairs[block.parameter] = _top(out, r), _top(into, s).mT
    return pairs


def _top(moments: Tensor, rank: int) -> Tensor:
    values, vectors = torch.linalg.eigh(moments)
    energy = values[-rank:].clamp(min=0) / values.mean() + 0.01
    return vectors[:, -rank:] * energy**-0.25


CLASSIFIER = "classifier"
CORE = OwnCarriers(make=scaled, form="core", rank=3, out_rank=2)
PRECONDITIONED = OwnCarriers(make=scaled_square, form="preconditioned")
TANGENT = OwnCarriers(make=orthonormal, rank=2)
OWN_MASK = Mask(kind="own", choose=long_weights)
PROBE = OwnCarriers(make=probe, form="core", rank=4, out_rank=6)


def recipe(*, rank: int = 4, mechanism: Mechanism, server: ServerOptimizer) -> Method:
    """Scaled cores, one more column of L than rows of R, and every other coordinate of each
    block.
    """
    carrier = replace(CORE, rank=rank, out_rank=rank + 1)
    return Method(name="own", carrier=carrier, mask=OWN_MASK, mechanism=mechanism, server=server)


OWN_RECIPE = f"{__file__}:recipe"
"""The recipe by its file, as a user names it."""
