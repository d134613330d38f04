"""Real payloads of a round: one index set for all clients, and one grid that they can be summed on."""

import math

import torch

from fedlsg.payload.layout import HEADER
from fedlsg.payload.values.common_grid import error_variance, from_sum, grid_for, to_grid
from fedlsg.training import accumulated_noise
from tests.simulations.support.runs import Run


def payloads(run: Run, round: int) -> list[bytes]:
    return [payload for path, payload in run.payloads.items() if path.startswith(f"round-{round:06d}")]


def values(payload: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(payload[HEADER.size : -16]), dtype=torch.float32)


def test_all_clients_of_a_round_keep_the_same_positions(small):
    """The digest of the frame covers the kept positions; another round has another mask."""
    frames = [{HEADER.unpack_from(payload)[-1] for payload in payloads(small, round)} for round in (1, 2)]
    assert [len(digests) for digests in frames] == [1, 1]
    assert frames[0] != frames[1]


def test_the_payloads_of_a_round_can_be_summed_as_integers(small):
    """The plan's bound is N C, that of an honest client's largest possible value."""
    terms, mechanism, local = small.plan.terms, small.plan.method.mechanism, small.plan.local
    noise_std = accumulated_noise(terms[0].mechanism(mechanism).noise_std, local.steps, local.momentum)
    each = [values(payload) for payload in payloads(small, 1)]
    grid = grid_for(
        seed=0, bound=max(t.num_examples for t in terms) * mechanism.clip_norm, noise_std=noise_std, floor_step=0.5,
        clients=len(each), count=len(each[0]), failure=1e-9,
    )  # fmt: skip
    integers = [to_grid(own, grid, 1) for own in each]
    total = from_sum(sum(integers) % grid.modulus, grid, 1, len(each))
    error = total - torch.stack(each).double().sum(0)
    assert error.abs().max() <= len(each) * grid.step / 2
    assert float(error.std()) < 1.2 * math.sqrt(error_variance(grid, len(each), noise_std))
    assert grid.bits < 16
    wrong = from_sum(sum(integers) % grid.modulus, grid, 2, len(each)) - torch.stack(each).double().sum(0)
    assert wrong.abs().max() > len(each) * grid.step / 2, "negative control: another round's dither"
