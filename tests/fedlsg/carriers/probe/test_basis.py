"""The carriers of a probe: their eigenvectors, form and scale, when they are made, and what they
depend on.
"""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.carriers import Carrier, carried_sizes
from fedlsg.carriers.own_carriers import check_orthonormal
from fedlsg.carriers.probe import Probe, ProbeSource, flatten, probe_basis, unflatten
from fedlsg.carriers.probe.eigen import is_large, top_eigenvectors
from fedlsg.carriers.probe.moments import second_moments
from fedlsg.frame.public import Public, RoundTime
from fedlsg.gradients import trainable
from fedlsg.lowrank import flatten_kernel

CARRIED = ("0.weight", "3.weight")
TANGENT = Probe(rank=2, probes=12)
CORE = Probe(form="core", rank=5, out_rank=4, probes=12)
WHOLE = Probe(form="preconditioned", probes=12, power=0.5, damping=0.1)


def draw(count: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(count, 2, 5, 5, generator=generator)


def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


SOURCE = ProbeSource(name="normal", draw=draw, loss=loss, num_classes=3)


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(54, 8),
        nn.Dropout(0.5),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def public(carrier: Carrier, model: nn.Module | None = None, **more) -> Public:
    weights = {name: p.detach() for name, p in trainable(net() if model is None else model).items()}
    known = {"time": RoundTime(round=1), "seed": 3, "make_model": net}
    return Public(weights=weights, carried=carried_sizes(carrier, weights, CARRIED), **known | more)


def flat(carrier: Carrier, **more) -> torch.Tensor:
    return flatten(probe_basis(carrier, public(carrier, **more), SOURCE))


@pytest.mark.parametrize("power", [0.0, 0.25, 1.0])
def test_carriers_of_eq_3_are_never_scaled(power):
    """Whatever power is asked for: the form tangent is right for orthonormal carriers alone."""
    basis = probe_basis(replace(TANGENT, power=power), public(TANGENT), SOURCE)
    for pair in basis.pairs.values():
        check_orthonormal(pair.L, pair.R, "here")
    core = probe_basis(replace(CORE, power=power), public(CORE), SOURCE).pairs["3.weight"]
    with pytest.raises(ValueError, match="orthonormal") if power else nullcontext():
        check_orthonormal(core.L, core.R, "here")


def test_the_predicted_energy_is_that_of_the_probes_gradients():
    """Core: of the gradients projected on each carrier. Tangent: of each row, and of each column or
    in channel.
    """
    model, generator = net().eval(), public(CORE).generator("probe", 1)
    inputs, targets = SOURCE.batch(model, 12, trained=False, generator=generator)
    moments = second_moments(model, loss, inputs, targets, CARRIED)
    core = probe_basis(replace(CORE, power=0.0), public(CORE), SOURCE).pairs
    tangent = probe_basis(TANGENT, public(TANGENT), SOURCE).pairs
    for name in CARRIED:
        A, B = moments[name]
        for X, energy, moment in (
            (core[name].L.mT, core[name].out_energy, B),
            (core[name].R, core[name].in_energy, A),
        ):
            along = torch.stack([x @ moment @ x for x in X]) / moment.trace()
            assert torch.allclose(energy, along, atol=1e-5)
            assert bool((energy.diff() <= 1e-6).all())
        rows, columns = tangent[name].out_energy, tangent[name].in_energy
        W = model.get_parameter(name)
        assert (len(rows), len(columns)) == W.shape[:2]
        assert torch.allclose(rows, B.diagonal() / B.trace(), atol=1e-6)
        assert torch.allclose(
            columns, A.diagonal().reshape(W.shape[1], -1).sum(1) / A.trace(), atol=1e-6
        )


@pytest.mark.parametrize("carrier", [TANGENT, CORE, WHOLE])
def test_a_basis_is_a_function_of_weights_seed_and_round(carrier):
    first = flat(carrier)
    assert first.equal(flat(carrier))
    moved = net()
    with torch.no_grad():
        moved[0].weight.mul_(1.5)
    others = [
        flat(carrier, model=moved),
        flat(carrier, seed=4),
        flat(carrier, time=RoundTime(round=2)),
    ]
    assert not any(first.equal(other) for other in others)
    assert first.equal(flat(carrier, time=RoundTime(round=1, rounds=9, epoch=3, epochs=5)))


@pytest.mark.parametrize("carrier", [TANGENT, CORE, WHOLE])
def test_a_basis_comes_back_from_its_numbers(carrier):
    seen = public(carrier)
    basis = probe_basis(carrier, seen, SOURCE)
    back = unflatten(flatten(basis), carrier, seen.weights, CARRIED, round=1)
    assert flatten(back).equal(flatten(basis))
    assert back.round == 1
    for name, pair in basis.pairs.items():
        m, n = flatten_kernel(seen.weights[name]).shape
        again = back.pairs[name]
        assert again.L.equal(pair.L)
        assert again.R.equal(pair.R)
        assert again.out_energy.equal(pair.out_energy)
        assert again.in_energy.equal(pair.in_energy)
        assert (pair.L.shape[0], pair.R.shape[1]) == (m, n)


LARGE = 400


def seeded() -> torch.Generator:
    """A generator in one state."""
    return torch.Generator().manual_seed(5)


def spectrum(side: int, power: float = 1.4) -> Tensor:
    """A positive matrix with eigenvalues i^-power."""
    Q = torch.linalg.qr(torch.randn(side, side, generator=seeded(), dtype=torch.float64))[0]
    return ((Q * torch.arange(1, side + 1) ** -power) @ Q.mT).float()


@pytest.mark.parametrize(
    ("side", "count"), [(40, 40), (40, 8), (LARGE, 8), (LARGE, 128), (LARGE, LARGE)]
)
def test_they_hold_the_largest_energy(side: int, count: int) -> None:
    assert is_large(side, count) == (side == LARGE and count < LARGE)
    A = spectrum(side)
    values, vectors = top_eigenvectors(A, count, generator=seeded())
    best = torch.arange(1, side + 1)[:count] ** -1.4
    held = (vectors * (A @ vectors)).sum(0)
    assert float(held.sum()) > (1 - 1e-3) * float(best.sum())
    torch.testing.assert_close(values, held, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(values[:4], best[:4], rtol=1e-4, atol=0)
    assert bool((values[:-1] >= values[1:]).all())
    assert bool((vectors.gather(0, vectors.abs().argmax(0, keepdim=True)) > 0).all())


@pytest.mark.parametrize("side", [40, LARGE])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_they_are_orthonormal_where_the_rank_is_too_small(side: int, rank: int) -> None:
    factor = torch.randn(rank, side, generator=seeded())
    values, vectors = top_eigenvectors(factor.mT @ factor, 8, generator=seeded())
    assert vectors.shape == (side, 8)
    check_orthonormal(vectors, vectors.mT, "here")
    assert bool(values.isfinite().all())
    assert bool((values >= 0).all())
    torch.testing.assert_close((factor @ vectors).square().sum(), factor.square().sum())
    torch.testing.assert_close(values[rank:], torch.zeros(8 - rank), rtol=0, atol=1e-3)
