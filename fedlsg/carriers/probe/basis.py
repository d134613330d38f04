"""The carriers that a probe makes: a function of the weights at a refresh, the public seed and the
source.

Symbols: A (n, n), B (m, m) second moments of the probes' gradients of a weight W (m, n), lambda and
nu their eigenvalues; L (m, r) the top eigenvectors of B, R (s, n) those of A. In the form
preconditioned they are (B / mean + damping I)^-power and the same of A, where mean is that of the
eigenvalues.

For checkpoints and messages a basis is one flat vector: L, R and both energies of every carried
weight. The round is not in it: it follows from that of the state or message.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

import torch
from jaxtyping import Float
from torch import Tensor

from fedlsg.carriers.base import Carrier
from fedlsg.carriers.own_carriers import check_orthonormal
from fedlsg.carriers.probe.anchors import anchor_basis, anchor_gradients
from fedlsg.carriers.probe.carrier import Probe, ProbeSource
from fedlsg.carriers.probe.eigen import top_eigenvectors
from fedlsg.carriers.probe.moments import Moments, second_moments
from fedlsg.frame.forms import PRECONDITIONED, TANGENT, Sizes
from fedlsg.frame.public import Public

NORM = 0.5
"""Predicted norm of a scaled core over that of the gradient. L and R have a factor of NORM^(1/2)
each.
"""


@dataclass(frozen=True, eq=False)
class Pair:
    """Carriers of one weight, and the energies that the probe predicts: shares of the trace.

    L, R: the carriers.
    out_energy: share of B in each eigenvector of L, (r,), descending; in the form ``tangent`` in
        each row of dL, (m,).
    in_energy: share of A in each eigenvector of R, (s,), descending; in the form ``tangent`` in
        each column of dR, (n,), or in channel of a kernel, (c,).
    """

    L: Float[Tensor, "m r"]
    R: Float[Tensor, "s n"]
    out_energy: Float[Tensor, " rows"]
    in_energy: Float[Tensor, " columns"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Basis:
    """The carriers of all rounds from ``round`` on, up to the next refresh; by weight."""

    round: int
    pairs: Mapping[str, Pair]

    @property
    def energies(self) -> dict[str, tuple[Tensor, Tensor]]:
        """``out_energy`` and ``in_energy`` by weight."""
        return {name: (pair.out_energy, pair.in_energy) for name, pair in self.pairs.items()}

    @property
    def carriers(self) -> dict[str, tuple[Tensor, Tensor]]:
        """L and R by weight."""
        return {name: (pair.L, pair.R) for name, pair in self.pairs.items()}


def refresh_of(round: int, carrier: Carrier) -> int:
    """The last round, up to ``round``, whose weights are probed: 1, 1 + refresh, 1 + 2 refresh,
    ...
    """
    return round - (round - 1) % carrier.refresh


def probe_basis(carrier: Probe, public: Public, source: ProbeSource) -> Basis:
    """The carriers by a probe of the public weights W_t, in the round of ``public``.

    Guarantee: deterministic in the weights, the public seed, the round and the source, on one kind
    of processor.
    Raises ValueError, naming the source, for inputs or targets on which the model or the loss
    fails.
    """
    model = public.model()
    generator = public.generator("probe", public.time.round)
    inputs, targets = source.batch(
        model, carrier.probes, trained=public.updates > 0, generator=generator
    )
    moments: Mapping[str, Moments] = {}
    anchors: Mapping[str, Tensor] = {}
    try:
        if carrier.form.embeds:
            anchors = anchor_gradients(model, source.loss, inputs, targets)
        else:
            moments = second_moments(model, source.loss, inputs, targets, tuple(public.carried))
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, IndexError) as error:
        raise ValueError(
            f"probe source {source.name!r}: the model or the loss fails on its inputs: {error}"
        ) from error
    embeds = carrier.form.embeds
    pairs = _embedding_pairs(public, anchors) if embeds else _moment_pairs(carrier, public, moments)
    return Basis(round=public.time.round, pairs=pairs)


def _embedding_pairs(public: Public, anchors: Mapping[str, Tensor]) -> dict[str, Pair]:
    """Bases L of the anchors' gradients; R and its energy are 1."""
    pairs = {}
    for name, sizes in public.carried.items():
        generator = public.generator("eigenvectors", public.time.round, name)
        L, energy = anchor_basis(anchors[name], sizes.r, generator=generator)
        pairs[name] = Pair(L, torch.ones(1, 1).to(L), energy, torch.ones(1).to(L))
    return pairs


def _moment_pairs(
    carrier: Probe, public: Public, moments: Mapping[str, Moments]
) -> dict[str, Pair]:
    """The carriers of every other form, from the moments."""
    pairs = {}
    for name, sizes in public.carried.items():
        generator = public.generator("eigenvectors", public.time.round, name)
        columns = public.weights[name].shape[1]
        pairs[name] = make_pair(moments[name], sizes, carrier, generator, columns=columns)
        if carrier.splits:
            check_orthonormal(pairs[name].L, pairs[name].R, f"carriers of a probe for {name}")
    return pairs


def make_pair(
    moments: Moments, sizes: Sizes, carrier: Probe, generator: torch.Generator, *, columns: int
) -> Pair:
    """L and R of one weight, with their energies.

    In all forms but tangent they are scaled by the predicted spectrum. ``columns``: in units of the
    weight, n, or the in channels of a kernel.
    """
    out_energy, L = energies(moments.B, sizes.r, generator)
    in_energy, R = energies(moments.A, sizes.s, generator)
    if carrier.form is TANGENT:
        out_energy = unit_shares(moments.B, sizes.m)
        in_energy = unit_shares(moments.A, columns)
    else:
        L, R = scaled(L, out_energy, carrier), scaled(R, in_energy, carrier)
    return Pair(*(X.float().contiguous() for X in (L, R.mT, out_energy, in_energy)))


def unit_shares(moment: Float[Tensor, "k k"], units: int) -> Float[Tensor, " units"]:
    """The share of the trace in each unit: its diagonal entry, or the sum of those of a channel's
    taps.
    """
    diagonal = moment.diagonal().reshape(units, -1).sum(1)
    return diagonal / diagonal.sum().clamp_min(torch.finfo(diagonal.dtype).tiny)


def energies(
    moment: Float[Tensor, "k k"], count: int, generator: torch.Generator
) -> tuple[Float[Tensor, " c"], Float[Tensor, "k c"]]:
    """Top eigenvalues as shares of the trace, and their eigenvectors; all shares of zeros are 0."""
    values, vectors = top_eigenvectors(moment, count, generator=generator)
    return values / moment.trace().clamp_min(torch.finfo(values.dtype).tiny), vectors


def scaled(
    vectors: Float[Tensor, "k c"], energy: Float[Tensor, " c"], carrier: Probe
) -> Float[Tensor, "k c"]:
    """X D, the eigenvectors X times their scales; in the form preconditioned X D X^T.

    In the form core D has a factor that makes sum lambda D^2 = NORM sum lambda. With it on both
    sides, the predicted norm of a carried weight's gradient is NORM times as large, whatever D is:
    a weight's share in the joint clip does not depend on D. One half measured best
    (docs/results/probe.md). With ``power=0`` carriers are orthonormal, without a factor.
    """
    if not carrier.power:
        return vectors @ vectors.mT if carrier.form is PRECONDITIONED else vectors
    D = scales(energy, len(vectors), carrier)
    if carrier.form is PRECONDITIONED:
        return vectors * D @ vectors.mT
    scaled_energy = (energy * D.square()).sum()
    if scaled_energy > 0:
        D = D * (NORM * energy.sum() / scaled_energy).sqrt()
    return vectors * D


def scales(energy: Float[Tensor, " c"], units: int, carrier: Probe) -> Float[Tensor, " c"]:
    """D = (lambda / mean + damping)^-power; ``energy`` is lambda over the sum of all ``units``."""
    return (energy * units + carrier.damping) ** -carrier.power


def flatten(basis: Basis) -> Float[Tensor, " numbers"]:
    """All numbers of a basis in the order of its weights, float32."""
    tensors = chain(*(vars(pair).values() for pair in basis.pairs.values()))
    return torch.cat([X.flatten() for X in tensors])


def unflatten(
    flat: Float[Tensor, " numbers"],
    carrier: Carrier,
    weights: Mapping[str, Tensor],
    carried: Sequence[str],
    *,
    round: int,
) -> Basis:
    """The basis of ``round`` with these numbers, on the device of the weights.

    Raises ValueError for another length, or for numbers that are not finite float32.
    """
    shapes = [shape for name in carried for shape in _shapes(carrier, weights[name])]
    sizes = [math.prod(shape) for shape in shapes]
    is_basis = flat.shape == (sum(sizes),) and flat.dtype == torch.float32
    if not is_basis or not bool(flat.isfinite().all()):
        raise ValueError(
            f"expected {sum(sizes)} finite float32 numbers of a basis, got {tuple(flat.shape)} "
            f"{flat.dtype}"
        )
    device = next(iter(weights.values())).device
    parts = zip(flat.to(device).split(sizes), shapes, strict=True)
    tensors = (part.reshape(shape).clone() for part, shape in parts)
    pairs = {name: Pair(*islice(tensors, 4)) for name in carried}
    return Basis(round=round, pairs=pairs)


def _shapes(carrier: Carrier, W: Tensor) -> tuple[tuple[int, ...], ...]:
    """The shapes of a weight's ``Pair``, in the order of its fields."""
    sizes = carrier.sizes(W)
    rows, columns = carrier.form.energies(sizes, W)
    return (sizes.m, sizes.r), (sizes.s, sizes.n), (rows,), (columns,)
