"""A client's step: the naive dense loop, the order of ledger and noise, and a model that comes back
unchanged.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fedlsg.method import LocalTraining
from fedlsg.noise import add_gaussian
from fedlsg.noise.sampler import CELL_CHOICE_BITS
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from tests.fedlsg.support.step_oracle import (
    CLIP_ONLY,
    EMPTY,
    EXACT,
    EXAMPLES,
    FRAMES,
    NOISY,
    NONE,
    assert_untouched,
    cnn,
    mlp,
    naive_step,
    problem,
    snapshot,
)
from tests.noise import noise_by


class Recorded(SecretStream):
    """A stream that writes down what is asked of it."""

    def __init__(self, events: list[str], name: str) -> None:
        super().__init__(bytes(32))
        self.events, self.name = events, name

    def words(self, count: int, *, bits: int = 64) -> np.ndarray:
        if bits == CELL_CHOICE_BITS:  # each number of noise asks for so many, once
            self.events.append(f"{self.name} {count}")
        return super().words(count, bits=bits)

    def bernoulli(self, count: int, probability: float) -> Tensor:
        self.events.append(f"{self.name} {count}")
        return super().bernoulli(count, probability)


@pytest.mark.thinned(20)
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize(
    "mechanism",
    [CLIP_ONLY, NONE, replace(CLIP_ONLY, clip="per-block")],
    ids=["joint", "none", "block"],
)
def test_a_noiseless_step_equals_the_naive_dense_loop(make, name, mechanism):
    p = problem(*FRAMES[name], make=make)
    local = LocalTraining(sample_rate=0.7)
    wanted, _ = naive_step(
        p, mechanism, local, sampler=reproducible_stream(0, "sampler"), noise=secret_stream()
    )
    torch.testing.assert_close(p.step(mechanism, local), wanted, **EXACT)


@pytest.mark.parametrize("mechanism", [CLIP_ONLY, NONE, NOISY], ids=["clip-only", "none", "dp"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["lsg", "rgp", "rs", "own mask on core"])
def test_local_steps_equal_the_naive_loop(mechanism, momentum, name):
    """K = 4 steps that move the local weights; and the result carries their whole change: -lr Eq3 /
    expected batch.
    """
    p = problem(*FRAMES[name])
    local = LocalTraining(
        steps=4, sample_rate=0.5, learning_rate=0.7, momentum=momentum, expected_batch=5.5
    )
    got = p.step(mechanism, local)
    wanted, change = naive_step(
        p,
        mechanism,
        local,
        sampler=reproducible_stream(0, "sampler"),
        noise=reproducible_stream(0, "noise"),
    )
    torch.testing.assert_close(got, wanted, **EXACT)
    for parameter, gradient in p.frame.gradients(got).items():
        torch.testing.assert_close(-0.7 / 5.5 * gradient, change[parameter], **EXACT)


@pytest.mark.parametrize("steps", [1, 3])
def test_charged_once_before_any_batch_and_any_noise(steps):
    p, events = problem(), []
    p.step(
        NOISY,
        LocalTraining(steps=steps),
        sampler=Recorded(events, "sampler"),
        noise=Recorded(events, "noise"),
        charge=lambda: events.append("charge"),
    )
    assert events.count("charge") == 1
    assert events[0] == "charge"
    drawn = [int(e.split()[1]) for e in events if e.startswith("noise")]
    assert drawn.count(p.frame.kept) == steps
    assert sum(drawn) < 2 * steps * p.frame.kept  # a rejected sample is drawn again
    # own draws for each step
    assert [e for e in events if e.startswith("sampler")] == [f"sampler {steps * EXAMPLES}"]


@pytest.mark.parametrize("kind", ["clip-only", "none"])
def test_without_noise_the_ledger_is_charged_all_the_same(kind):
    charges: list[int] = []
    problem().step(Mechanism(kind=kind), LocalTraining(steps=2), charge=lambda: charges.append(1))
    assert charges == [1]


@pytest.mark.parametrize("steps", [1, 3])
def test_a_refused_charge_releases_nothing(steps):
    p, events = problem(), []
    before = snapshot(p.model)

    def refuse() -> None:
        raise PermissionError("budget spent")

    streams = {name: Recorded(events, name) for name in ("sampler", "noise")}
    with pytest.raises(PermissionError, match="budget spent"):
        p.step(NOISY, LocalTraining(steps=steps), **streams, charge=refuse)
    assert events == []
    assert_untouched(p.model, before)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_model_comes_back_unchanged(steps):
    p = problem()
    next(p.model.parameters()).grad = torch.ones_like(next(p.model.parameters()))
    before = snapshot(p.model)
    p.step(NOISY, LocalTraining(steps=steps, momentum=0.5))
    assert_untouched(p.model, before)


@pytest.mark.parametrize("fails_in", ["loss", "batch", "noise", "interrupt"])
def test_the_model_comes_back_unchanged_when_the_third_step_fails(fails_in):
    p, calls = problem(), []
    before, batch, loss_fn = snapshot(p.model), p.batch, p.loss_fn

    def count(place: str) -> None:
        calls.append(place)
        if calls.count(place) == 3 and place == fails_in.replace("interrupt", "loss"):
            raise KeyboardInterrupt if fails_in == "interrupt" else OSError(place)

    class Noise(SecretStream):
        def words(self, n: int, *, bits: int = 64) -> np.ndarray:
            if bits == CELL_CHOICE_BITS:
                count("noise")
            return super().words(n, bits=bits)

    p.batch = lambda positions: (count("batch"), batch(positions))[1]
    p.loss_fn = lambda outputs, targets: (count("loss"), loss_fn(outputs, targets))[1]
    with pytest.raises(KeyboardInterrupt if fails_in == "interrupt" else OSError):
        p.step(NOISY, LocalTraining(steps=4, learning_rate=1.0), noise=Noise(bytes(32)))
    assert len(calls) >= 7
    assert_untouched(p.model, before)


def test_an_empty_batch_yields_the_noise_and_nothing_but_the_noise():
    p = problem()
    nothing = torch.zeros(p.frame.kept, dtype=torch.float64)
    wanted = add_gaussian(nothing, NOISY.noise_std, reproducible_stream(0, "noise"))
    assert torch.equal(p.step(NOISY, EMPTY), wanted)
    assert torch.equal(p.step(CLIP_ONLY, EMPTY), torch.zeros(p.frame.kept, dtype=torch.float64))
    p.inputs, p.targets = p.inputs[:0], p.targets[:0]
    assert torch.equal(p.step(NOISY, LocalTraining()), wanted)  # a client that holds no example


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["lsg", *(pytest.param(n, marks=pytest.mark.slow) for n in ("rs", "rs on carriers"))]
)
def test_noise_lies_on_the_kept_coordinates_of_every_block_and_nowhere_else(name):
    """Standard deviation sigma C in each block; exactly zero where the mask freezes. The contract
    has other frames.
    """
    p = problem(*FRAMES[name])
    noise = (
        torch.stack([p.step(NOISY, EMPTY, noise=secret_stream()) for _ in range(3000)])
        / NOISY.noise_std
    )
    start = 0
    for block in p.frame.blocks:
        part = noise[:, start : start + block.kept]
        assert abs(float(part.square().mean()) - 1) < 7 * math.sqrt(2 / part.numel())
        start += block.kept
    assert float(noise.std()) == pytest.approx(1, rel=0.02)  # 9 standard errors: 100,000 numbers
    full = torch.cat([block.flatten() for block in p.frame.unflatten(noise.abs().sum(0))])
    frozen = torch.ones(p.frame.size, dtype=torch.bool).index_fill(0, p.frame.indices, False)
    assert frozen.any()
    assert (full[frozen] == 0).all()
    assert (full[~frozen] != 0).all()


@pytest.mark.slow
def test_noise_is_independent_across_steps_layers_and_clients():
    """Correlations between all coordinates of two clients and two steps, on secret streams.

    A correlation of 0.4 of any two is found, and of 0.05 between the same coordinates of two steps
    or clients; a false alarm has a probability below 1e-7.
    """
    p, draws = problem(), 400
    rows = []
    for _ in range(draws):
        tape: list[Tensor] = []

        def keep(
            total: Tensor, std: float, stream: SecretStream, tape: list[Tensor] = tape
        ) -> Tensor:
            noisy = add_gaussian(total, std, stream)
            tape.append((noisy - total) / std)
            return noisy

        with noise_by(keep):
            for _client in range(2):
                p.step(NOISY, replace(EMPTY, steps=2), noise=secret_stream())
        rows.append(torch.cat(tape))
    z = torch.stack(rows)
    assert z.shape[1] == 4 * p.frame.kept
    correlations = z.T @ z / draws
    assert float(correlations.fill_diagonal_(0).abs().max()) < 8 / math.sqrt(draws)
    same = torch.einsum("dak,dbk->ab", *[z.view(draws, 4, p.frame.kept)] * 2) / (
        draws * p.frame.kept
    )
    assert float(same.fill_diagonal_(0).abs().max()) < 8 / math.sqrt(draws * p.frame.kept)
