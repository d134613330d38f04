"""The frame of an average round: how many coordinates a run keeps, without making its carriers."""

from dataclasses import replace
from statistics import fmean

import torch

from fedlsg.carriers import carried_sizes
from fedlsg.carriers.probe.basis import Basis, Pair
from fedlsg.frame import Frame
from fedlsg.state.public_state import PublicState


def mean_frame(public: PublicState) -> Frame:
    """A training frame with as many blocks and kept coordinates as the mean round of the run, up to rounding.

    Only these numbers mean something: carriers are unit vectors, and where a mask changes its rate over the rounds, it
    has the mean rate. A mask of the user's is that of the first round. Factors (PowerSGD) are left out: the step is
    dense.
    """
    method, schedule = public.method, public.schedule
    carrier, mask = method.carrier.in_sizes(), method.mask
    if mask.choose is not None and method.carrier.adds_up:
        carrier = method.carrier
    basis = unit_basis(public) if carrier.source is not None and mask.choose is None else None
    if mask.choose is None and mask.sparsity:
        rate = fmean(mask.rate(schedule.time(round)) for round in range(1, schedule.rounds + 1))
        mask = replace(mask, sparsity=rate, cooling=False, sparsity_from=0.0)
    public = replace(public, carried=() if carrier.dense else public.carried)
    return replace(public, method=replace(method, carrier=carrier, mask=mask)).frame(1, updates=0, basis=basis)


def unit_basis(public: PublicState) -> Basis:
    """A basis of unit vectors in place of a probe's."""
    carrier, weights = public.method.carrier, public.parameters
    pairs = {}
    for name, sizes in carried_sizes(carrier, weights, public.carried).items():
        rows, columns = carrier.form.energies(sizes, weights[name])
        pairs[name] = Pair(
            torch.eye(sizes.m, sizes.r), torch.eye(sizes.s, sizes.n), torch.ones(rows), torch.ones(columns)
        )
    return Basis(round=1, pairs=pairs)
