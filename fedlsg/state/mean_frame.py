"""The frame of an average round: how many coordinates a run keeps, without making its carriers."""

from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean

import torch
from torch import Tensor

from fedlsg.carriers import Carrier
from fedlsg.carriers.own import carried_sizes
from fedlsg.carriers.probe.basis import Basis, Pair
from fedlsg.frame import Frame
from fedlsg.public import Public
from fedlsg.state.public_state import PublicState


def mean_frame(public: PublicState) -> Frame:
    """A training frame with as many blocks and kept coordinates as the mean round of the run, up to rounding.

    Only these numbers mean something: carriers are unit vectors, and where a mask changes its rate over the rounds, it
    has the mean rate. A mask of the user's is that of the first round. Factors (PowerSGD) are left out: the step is
    dense.
    """
    method, schedule = public.method, public.schedule
    carrier, mask = method.carrier, method.mask
    basis = unit_basis(public) if carrier.kind == "probe" and mask.choose is None else None
    if carrier.kind == "factors":
        carrier, public = Carrier(), replace(public, carried=())
    elif carrier.kind not in ("dense", "lora", "probe") and mask.choose is None:
        carrier = replace(carrier, kind="own", make=unit_vectors, residual=True)
    if mask.choose is None and mask.sparsity:
        rate = fmean(mask.rate(schedule.time(round)) for round in range(1, schedule.rounds + 1))
        mask = replace(mask, sparsity=rate, cooling=False, sparsity_from=0.0)
    return replace(public, method=replace(method, carrier=carrier, mask=mask)).frame(1, updates=0, basis=basis)


def unit_basis(public: PublicState) -> Basis:
    """A basis of unit vectors in place of a probe's."""
    carrier, weights = public.method.carrier, public.parameters
    pairs = {}
    for name, (m, r, s, n) in carried_sizes(carrier, weights, public.carried).items():
        rows, columns = (m, weights[name].shape[1]) if carrier.form == "tangent" else (r, s)
        pairs[name] = Pair(torch.eye(m, r), torch.eye(s, n), torch.ones(rows), torch.ones(columns))
    return Basis(round=1, pairs=pairs)


def unit_vectors(public: Public) -> Mapping[str, tuple[Tensor, Tensor]]:
    """The first unit vectors as carriers: they have the right sizes, and cost nothing."""
    return {name: (torch.eye(m, r), torch.eye(s, n)) for name, (m, r, s, n) in public.carried.items()}
