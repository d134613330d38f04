"""Factors of a noisy update: exact for rank r, the best in the spans of one power step otherwise,
post-processing.
"""

import pytest
import torch
from torch import Tensor, nn

from fedlsg.carriers import Factors, carried_parameters
from fedlsg.carriers.powersgd import decode, encode
from fedlsg.frame import Frame
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.method import Method, Schedule, make_frame
from fedlsg.privacy.mechanism import Mechanism

RANK = 2


def frame(rank: int = RANK, updates: int = 0, mechanism: Mechanism | None = None) -> Frame:
    torch.manual_seed(0)
    conv = [nn.Conv2d(3, 10, 3), nn.GroupNorm(1, 10), nn.Tanh(), nn.Flatten()]
    model = nn.Sequential(*conv, nn.Linear(90, 20), nn.Tanh(), nn.Linear(20, 4)).double()
    carrier = Factors(rank=rank)
    weights = {name: p.detach() for name, p in trainable(model).items()}
    carried = carried_parameters(model, carrier)
    assert carried == ("0.weight", "4.weight")
    initial = {name: torch.randn_like(weights[name]) for name in carried}
    method = Method(name="dp-powersgd", carrier=carrier, mechanism=mechanism or Mechanism())
    return make_frame(
        method,
        weights,
        initial,
        carried=carried,
        round=1,
        updates=updates,
        schedule=Schedule(rounds=9),
        seed=3,
    )


def low_rank_values(f: Frame, rank: int) -> Tensor:
    pieces = []
    for c in f.coordinates:
        m, n = c.shape[0], torch.Size(c.shape).numel() // c.shape[0]
        G = torch.randn(m, rank, dtype=torch.float64) @ torch.randn(rank, n, dtype=torch.float64)
        pieces.append(G.flatten())
    return torch.cat(pieces)


def test_rank_r_updates_come_back_exactly_and_others_as_their_projection():
    f = frame()
    values = low_rank_values(f, RANK)
    torch.testing.assert_close(decode(encode(values, f), f), values)
    values = torch.randn(f.kept).double()
    once = decode(encode(values, f), f)
    assert not torch.allclose(once, values)
    for block, G, back in zip(f.blocks, f.split(values), f.split(once), strict=True):
        if block.parameter not in ("0.weight", "4.weight"):
            assert back.equal(G)
            continue
        assert back.norm() <= G.norm()
        assert torch.linalg.matrix_rank(back.flatten(1)) == RANK
        torch.testing.assert_close(
            (G - back).flatten() @ back.flatten(), torch.tensor(0.0).double(), atol=1e-9, rtol=0
        )


def test_factors_are_refused_where_only_the_sum_would_be_private():
    """They are no linear function of the noisy values: the server reads each client's, with a share
    of the noise.
    """
    carrier = Factors(rank=RANK)
    Method(name="dp-powersgd", carrier=carrier, mechanism=Mechanism(noise_share=1.0))
    with pytest.raises(ValueError, match=r"factors do not add up.*trust='client'"):
        Method(name="dp-powersgd", carrier=carrier, mechanism=Mechanism(noise_share=0.5))
