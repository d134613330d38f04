"""Steps without clip and noise give the very bits of the general steps; draws made ahead are the
same draws.
"""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.privacy.sampling import BernoulliDraws, poisson_batch
from fedlsg.randomness import reproducible_stream
from fedlsg.training import client_round
from fedlsg.training.client_round import LocalTraining

N = 23


def subject(layout=torch.contiguous_format):
    torch.manual_seed(0)
    body = [
        nn.Conv2d(3, 5, 3),
        nn.GroupNorm(1, 5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(5 * 16, 7),
        nn.ReLU(),
    ]
    model = nn.Sequential(*body, nn.Linear(7, 4)).to(memory_format=layout)
    where = tuple(Coordinates(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters())
    inputs, targets = torch.randn(N, 3, 6, 6), torch.randint(4, (N,))
    return model, Frame(coordinates=where, blocks=make_blocks(where)), inputs, targets


def result(step, model, frame, inputs, targets, local, kind, charge=lambda: None):
    def batch(rows):
        rows = rows.repeat_interleave(local.multiplicity)
        return inputs[rows], targets[rows]

    return step(
        model,
        batch,
        lambda outputs, t: F.cross_entropy(outputs, t, reduction="none"),
        frame=frame,
        mechanism=Mechanism(kind=kind),
        local=local,
        num_examples=N,
        sampler=reproducible_stream(1, "sampler"),
        noise=reproducible_stream(1, "noise"),
        charge=charge,
    )


def general_steps(*arguments, **settings):
    """``client_step`` without the short way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_round, "unprotected", lambda *_: False)
        return client_round.client_step(*arguments, **settings)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("kind", ["none", "noise-only", "clip-only", "dp"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps": 1},
        {"momentum": 0.9},
        {"microbatch_size": 3},
        {"multiplicity": 2, "microbatch_size": 7},
        {"sample_rate": 0.02, "momentum": 0.5},
        {"proximal": 0.3},
        {"proximal": 0.3, "momentum": 0.5},
    ],
)
def test_every_bit_is_that_of_the_general_steps(layout, kind, changes):
    local = LocalTraining(**{"steps": 5, "sample_rate": 0.4, "expected_batch": 9.0, **changes})
    model, frame, inputs, targets = subject(layout)
    before = [p.detach().clone() for p in model.parameters()]
    found, wanted = (
        result(step, model, frame, inputs, targets, local, kind)
        for step in (client_round.client_step, general_steps)
    )
    assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)), (
        "the model comes back"
    )
    assert all(p.grad is None for p in model.parameters())


def test_a_refused_charge_leaves_the_model_as_it_was_and_nothing_to_send():
    model, frame, inputs, targets = subject()
    before = [p.detach().clone() for p in model.parameters()]

    def refuse():
        raise RuntimeError("spent")

    with pytest.raises(RuntimeError, match="spent"):
        result(
            client_round.client_step,
            model,
            frame,
            inputs,
            targets,
            LocalTraining(steps=3),
            "none",
            refuse,
        )
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@given(
    seed=st.integers(0, 99),
    count=st.integers(1, 300),
    rate=st.floats(0.01, 1.0),
    batches=st.integers(1, 6),
)
def test_draws_made_ahead_are_those_made_one_batch_at_a_time(seed, count, rate, batches):
    ahead = BernoulliDraws(reproducible_stream(seed), batches=batches)
    stream = reproducible_stream(seed)
    for _ in range(batches):
        assert torch.equal(poisson_batch(count, rate, ahead), poisson_batch(count, rate, stream))
    with pytest.raises(ValueError, match="expected 0 more batches"):
        ahead.bernoulli(count, rate)
