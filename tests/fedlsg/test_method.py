"""The front door: a client's step against the naive dense loop, a server's against Eq. 3, and the order of events."""

import copy
import math
import os
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.after import After, make_optimizer
from fedlsg.carriers import Carrier
from fedlsg.masks import Mask
from fedlsg.method import LocalTraining, Method, Schedule, aggregate, make_frame, norm_bound, server_step
from fedlsg.payload import Expected, pack, unpack
from fedlsg.privatize import Mechanism
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream
from tests.fedlsg.step_oracle import CLIP_ONLY, EXAMPLES, NONE, cnn, dense_gradients, eq3, mlp, naive_step, problem
from tests.fedlsg.step_oracle import project_and_keep

LOW_RANK = Carrier(kind="low-rank", rank=2)
DENSE = Carrier()
FRAMES = {
    "lsg": (Mask(kind="units", sparsity=0.4), LOW_RANK),
    "rgp": (Mask(), LOW_RANK),
    "rgp-random": (Mask(), Carrier(kind="random", rank=3)),
    "rs on carriers": (Mask(kind="uniform", sparsity=0.6), LOW_RANK),
    "rs": (Mask(kind="uniform", sparsity=0.8), DENSE),
    "dpsgd": (Mask(), DENSE),
}
EXACT = {"rtol": 1e-9, "atol": 1e-11}
EMPTY = LocalTraining(sample_rate=1e-12)
NOISY = Mechanism(noise_multiplier=1.5, clip_norm=0.3)


class Recorded(SecretStream):
    """A stream that writes down what is asked of it."""

    def __init__(self, events: list[str], name: str) -> None:
        super().__init__(bytes(32))
        self.events, self.name = events, name

    def normal(self, count: int) -> Tensor:
        self.events.append(f"{self.name} {count}")
        return super().normal(count)

    def bernoulli(self, count: int, probability: float) -> Tensor:
        self.events.append(f"{self.name} {count}")
        return super().bernoulli(count, probability)


def snapshot(model: nn.Module) -> dict[str, tuple[Tensor, bool, object]]:
    """All that a step could leave behind in the model."""
    return {name: (p.detach().clone(), p.requires_grad, p.grad) for name, p in model.named_parameters()}


def assert_untouched(model: nn.Module, before: dict[str, tuple[Tensor, bool, object]]) -> None:
    for name, parameter in model.named_parameters():
        value, requires_grad, grad = before[name]
        assert torch.equal(parameter, value)
        assert parameter.requires_grad == requires_grad
        assert parameter.grad is grad
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("name", FRAMES)
def test_the_problem_has_examples_on_both_sides_of_the_clip(make, name):
    p = problem(*FRAMES[name], make=make)
    norms = [float(project_and_keep(dense_gradients(p, p.model, i), p.frame).norm()) for i in range(EXAMPLES)]
    assert min(norms) < CLIP_ONLY.clip_norm / 1.5
    assert max(norms) > CLIP_ONLY.clip_norm * 1.5


@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize(
    "mechanism", [CLIP_ONLY, NONE, replace(CLIP_ONLY, clip="per-block")], ids=["joint", "none", "block"]
)
def test_a_noiseless_step_equals_the_naive_dense_loop(make, name, mechanism):
    p = problem(*FRAMES[name], make=make)
    local = LocalTraining(sample_rate=0.7)
    wanted, _ = naive_step(p, mechanism, local, sampler=reproducible_stream(0, "sampler"), noise=secret_stream())
    torch.testing.assert_close(p.step(mechanism, local), wanted, **EXACT)


def test_the_step_of_one_linear_layer_by_hand():
    """Loss y. f(x) with gradient x: two examples (3, 4) and (0, .5), C = 1: (.6, .8) + (0, .5)."""
    p = problem(Mask(), DENSE)
    p.model = nn.Linear(2, 1, bias=False, dtype=torch.float64)
    weights = dict(p.model.named_parameters())
    p.frame = make_frame(
        Method(name="dpsgd"), weights, weights, carried=(), round=1, updates=0, schedule=Schedule(rounds=1), seed=0
    )
    p.inputs, p.targets = torch.tensor([[3.0, 4.0], [0.0, 0.5]]).double(), torch.ones(2)
    p.loss_fn = lambda outputs, targets: outputs.squeeze(1) * targets
    torch.testing.assert_close(p.step(Mechanism(kind="clip-only")), torch.tensor([0.6, 1.3]).double())
    assert p.step(NONE).tolist() == [3.0, 4.5]


@pytest.mark.parametrize("mechanism", [CLIP_ONLY, NONE, NOISY], ids=["clip-only", "none", "dp"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("name", ["lsg", "rgp", "rs"])
def test_local_steps_equal_the_naive_loop(mechanism, momentum, name):
    """K = 4 steps that move the local weights; and the result carries their whole change: -lr Eq3 / expected batch."""
    p = problem(*FRAMES[name])
    local = LocalTraining(steps=4, sample_rate=0.5, learning_rate=0.7, momentum=momentum, expected_batch=5.5)
    got = p.step(mechanism, local)
    wanted, change = naive_step(
        p, mechanism, local, sampler=reproducible_stream(0, "sampler"), noise=reproducible_stream(0, "noise")
    )
    torch.testing.assert_close(got, wanted, **EXACT)
    for parameter, gradient in p.frame.gradients(got).items():
        torch.testing.assert_close(-0.7 / 5.5 * gradient, change[parameter], **EXACT)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_the_result_is_the_local_change_that_really_happened(momentum):
    """Read off the model itself, as the batch of step K + 1 finds it."""
    p = problem()
    local = LocalTraining(steps=3, sample_rate=0.6, learning_rate=0.7, momentum=momentum, expected_batch=5.5)
    before, seen, batch = dict(snapshot(p.model)), [], p.batch

    def spy(positions: Tensor) -> tuple[Tensor, Tensor]:
        seen.append({name: w.detach().clone() for name, w in p.model.named_parameters()})
        return batch(positions)

    got = p.step(NOISY, local)
    p.batch = spy
    p.step(NOISY, replace(local, steps=4))
    for name, gradient in p.frame.gradients(got).items():
        torch.testing.assert_close(seen[3][name], before[name][0] - 0.7 / 5.5 * gradient, **EXACT)
        assert not torch.equal(seen[1][name], seen[2][name])


@given(size=st.integers(1, 12), rate=st.floats(0.1, 1), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_micro_batches_do_not_change_the_result(size, rate, seed):
    p = problem()
    whole = p.step(CLIP_ONLY, LocalTraining(sample_rate=rate), seed)
    cut = p.step(CLIP_ONLY, LocalTraining(sample_rate=rate, microbatch_size=size), seed)
    torch.testing.assert_close(cut, whole, **EXACT)


def test_float32_agrees_with_float64():
    wanted = problem().step(NOISY)
    p = problem()
    p.model, p.inputs = p.model.float(), p.inputs.float()
    carriers = [
        replace(c, L=None if c.L is None else c.L.float(), R=None if c.R is None else c.R.float())
        for c in p.frame.coordinates
    ]
    p.frame = replace(p.frame, coordinates=tuple(carriers))
    got = p.step(NOISY)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3])
def test_charged_once_before_any_noise(steps):
    p, events = problem(), []
    p.step(
        NOISY,
        LocalTraining(steps=steps),
        sampler=Recorded(events, "sampler"),
        noise=Recorded(events, "noise"),
        charge=lambda: events.append("charge"),
    )
    assert events.count("charge") == 1
    assert events.index("charge") < events.index(f"noise {p.frame.kept}")
    assert [e for e in events if e.startswith("noise")] == [f"noise {p.frame.kept}"] * steps
    assert [e for e in events if e.startswith("sampler")] == [f"sampler {EXAMPLES}"] * steps


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

    with pytest.raises(PermissionError, match="budget spent"):
        p.step(NOISY, LocalTraining(steps=steps), noise=Recorded(events, "noise"), charge=refuse)
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
        def normal(self, n: int) -> Tensor:
            count("noise")
            return super().normal(n)

    p.batch = lambda positions: (count("batch"), batch(positions))[1]
    p.loss_fn = lambda outputs, targets: (count("loss"), loss_fn(outputs, targets))[1]
    with pytest.raises(KeyboardInterrupt if fails_in == "interrupt" else OSError):
        p.step(NOISY, LocalTraining(steps=4, learning_rate=1.0), noise=Noise(bytes(32)))
    assert len(calls) >= 7
    assert_untouched(p.model, before)


def test_an_empty_batch_yields_the_noise_and_nothing_but_the_noise():
    p = problem()
    wanted = NOISY.noise_std * reproducible_stream(0, "noise").normal(p.frame.kept)
    assert torch.equal(p.step(NOISY, EMPTY), wanted)
    assert torch.equal(p.step(CLIP_ONLY, EMPTY), torch.zeros(p.frame.kept, dtype=torch.float64))
    p.inputs, p.targets = p.inputs[:0], p.targets[:0]
    assert torch.equal(p.step(NOISY, LocalTraining()), wanted)  # a client that holds no example


def test_noise_is_added_to_the_clipped_sum():
    p = problem()
    noise = NOISY.noise_std * reproducible_stream(3, "noise").normal(p.frame.kept)
    torch.testing.assert_close(p.step(NOISY, seed=3), p.step(CLIP_ONLY, seed=3) + noise, **EXACT)


@pytest.mark.parametrize("name", ["lsg", "rs", "rs on carriers"])
def test_noise_lies_on_the_kept_coordinates_of_every_block_and_nowhere_else(name):
    """Standard deviation sigma C in each block; exactly zero where the mask freezes."""
    p = problem(*FRAMES[name])
    noise = torch.stack([p.step(NOISY, EMPTY, noise=secret_stream()) for _ in range(3000)]) / NOISY.noise_std
    start = 0
    for block in p.frame.blocks:
        part = noise[:, start : start + block.kept]
        assert abs(float(part.square().mean()) - 1) < 7 * math.sqrt(2 / part.numel())
        start += block.kept
    assert float(noise.std()) == pytest.approx(1, rel=0.02)  # 9 standard errors: 100,000 numbers
    full = torch.cat([block.flatten() for block in p.frame.unflatten(noise[0])])
    frozen = torch.ones(p.frame.size, dtype=torch.bool).index_fill(0, p.frame.indices, False)
    assert frozen.any()
    assert (full[frozen] == 0).all()
    assert (full[~frozen] != 0).all()


def test_noise_is_independent_across_steps_layers_and_clients():
    """Correlations between all coordinates of two clients and two steps, on secret streams, below 7 sigma."""
    p, draws = problem(), 1500
    tape: list[Tensor] = []

    class Tape(SecretStream):
        def normal(self, count: int) -> Tensor:
            tape.append(super().normal(count))
            return tape[-1]

    rows = []
    for _ in range(draws):
        for _client in range(2):
            p.step(NOISY, replace(EMPTY, steps=2), noise=Tape(os.urandom(32)))
        rows.append(torch.cat(tape))
        tape.clear()
    z = torch.stack(rows)
    assert z.shape[1] == 4 * p.frame.kept
    correlations = z.T @ z / draws
    assert float(correlations.fill_diagonal_(0).abs().max()) < 7.5 / math.sqrt(draws)


def test_two_runs_never_share_their_noise():
    p = problem()
    assert not set(p.step(NOISY, EMPTY, noise=secret_stream()).tolist()) & set(
        p.step(NOISY, EMPTY, noise=secret_stream()).tolist()
    )
    assert torch.equal(p.step(NOISY, EMPTY, seed=1), p.step(NOISY, EMPTY, seed=1))


def test_an_unmasked_payload_is_lifted_to_the_orthogonal_projection():
    """p = 0, one client, one step, through pack and unpack: P dW = dW - (I - L L^T) dW (I - R^T R)."""
    p = problem(*FRAMES["rgp"])
    values = p.step(NONE)
    message = pack(values, p.frame.indices, size=p.frame.size, round=1, digest=p.frame.digest)
    expected = Expected(
        round=1,
        codec="float32",
        index_mode="derived",
        size=p.frame.size,
        indices=p.frame.indices,
        digest=p.frame.digest,
    )
    got = p.frame.gradients(unpack(message, expected).double())
    each = [dense_gradients(p, p.model, i) for i in range(EXAMPLES)]
    for c in p.frame.coordinates:
        dW = sum(gradients[c.name] for gradients in each)
        if c.L is not None:
            out, into = torch.eye(len(c.L)) - c.L @ c.L.T, torch.eye(c.R.shape[1]) - c.R.T @ c.R
            dW = dW - out.double() @ dW @ into.double()
            assert float((dW - got[c.name]).norm()) < 1e-6
        torch.testing.assert_close(got[c.name], dW, rtol=1e-5, atol=1e-6)


def test_the_reconstruction_equals_eq_3_entry_by_entry():
    for mask, carrier in FRAMES.values():
        p = problem(mask, carrier, make=cnn)
        values = torch.randn(p.frame.kept, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        for name, gradient in eq3(values, p.frame).items():
            torch.testing.assert_close(p.frame.gradients(values)[name], gradient, **EXACT)


@pytest.mark.parametrize("name", ["lsg", "rs"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_server_steps_equal_eq_3_by_hand(name, momentum):
    """Three updates: W <- W - lr v, v <- mu v + Eq3(total / divisor), with a falling learning rate."""
    p = problem(*FRAMES[name])
    after = After(learning_rate=0.5, momentum=momentum, schedule="linear")
    optimizer, scheduler = make_optimizer(p.model.parameters(), after, updates=3)
    wanted = {name: w.detach().clone() for name, w in p.model.named_parameters()}
    velocity = {name: torch.zeros_like(w) for name, w in wanted.items()}
    for update in range(3):
        total = torch.randn(p.frame.kept, dtype=torch.float64, generator=torch.Generator().manual_seed(update))
        server_step(p.model, optimizer, scheduler, total, frame=p.frame, divisor=40.0, after=after)
        for parameter, gradient in eq3(total / 40.0, p.frame).items():
            velocity[parameter] = momentum * velocity[parameter] + gradient
            wanted[parameter] -= 0.5 * (1 - update / 3) * velocity[parameter]
    for parameter, value in p.model.named_parameters():
        torch.testing.assert_close(value.detach(), wanted[parameter], **EXACT)
        assert parameter in wanted
        assert value.grad is None


def test_the_averaged_estimator_is_used_where_it_is_asked_for():
    p = problem(*FRAMES["rgp"])
    total = torch.randn(p.frame.kept, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = {}
    for estimator in ("eq3", "averaged"):
        model, after = copy.deepcopy(p.model), After(estimator=estimator, learning_rate=1.0)
        optimizer, scheduler = make_optimizer(model.parameters(), after, updates=1)
        server_step(model, optimizer, scheduler, total, frame=p.frame, divisor=1.0, after=after)
        moved[estimator] = (p.model[0].weight - model[0].weight).detach()
    c = p.frame.coordinates[0]
    dL, dR = p.frame.unflatten(total)[:2]
    core = (c.L.T @ dL + dR @ c.R.T) / 2
    by_hand = dL @ c.R + c.L @ dR - c.L @ (c.L.T @ dL + dR @ c.R.T - core) @ c.R
    torch.testing.assert_close(moved["averaged"], by_hand, **EXACT)
    assert float((moved["eq3"] - moved["averaged"]).norm()) > 0.1


def test_frozen_parameters_are_neither_sent_nor_moved():
    p = problem(make=lambda: nn.Sequential(nn.Linear(9, 9).requires_grad_(False), *mlp()))
    model = p.model
    weights = {name: w for name, w in model.named_parameters() if w.requires_grad}
    p.frame = make_frame(
        Method(name="dpsgd"), weights, weights, carried=(), round=1, updates=0, schedule=Schedule(rounds=1), seed=0
    )
    before = snapshot(model)
    optimizer, scheduler = make_optimizer(weights.values(), After(), updates=1)
    server_step(model, optimizer, scheduler, p.step(NOISY), frame=p.frame, divisor=5.0, after=After())
    moved = {name for name, w in model.named_parameters() if not torch.equal(w, before[name][0])}
    assert moved == set(weights)


@pytest.mark.parametrize("divisor", [0.0, -1.0, math.nan, math.inf])
def test_wrong_divisors_are_refused(divisor):
    p = problem()
    before = snapshot(p.model)
    optimizer, scheduler = make_optimizer(p.model.parameters(), After(), updates=1)
    with pytest.raises(ValueError, match="divisor"):
        server_step(p.model, optimizer, scheduler, p.step(), frame=p.frame, divisor=divisor, after=After())
    assert_untouched(p.model, before)


def test_a_total_of_another_length_is_refused():
    p = problem()
    optimizer, scheduler = make_optimizer(p.model.parameters(), After(), updates=1)
    with pytest.raises(ValueError, match=f"expected {p.frame.kept} kept values"):
        server_step(p.model, optimizer, scheduler, p.step()[1:], frame=p.frame, divisor=1.0, after=After())


@given(rows=st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=6))
def test_aggregate_sums_in_float64_in_the_order_given(rows):
    updates = [torch.tensor(row, dtype=torch.float32) for row in rows]
    total = aggregate(updates)
    assert total.dtype == torch.float64
    for i in range(3):
        wanted = 0.0
        for row in rows:
            wanted += row[i]
        assert total[i].item() == wanted


def test_aggregate_keeps_what_float32_would_lose():
    assert aggregate([torch.tensor([2.0**24]), torch.tensor([1.0]), torch.tensor([1.0])]).item() == 2**24 + 2


@given(
    sigma=st.floats(0.1, 20),
    C=st.floats(0.01, 10),
    steps=st.integers(1, 3),
    momentum=st.floats(0, 0.95),
    clip=st.sampled_from(["joint", "per-block"]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25)
def test_an_honest_payload_stays_within_the_norm_bound(sigma, C, steps, momentum, clip, seed):
    p = problem()
    mechanism = Mechanism(noise_multiplier=sigma, clip_norm=C, clip=clip)
    local = LocalTraining(steps=steps, momentum=momentum, learning_rate=0.01, expected_batch=EXAMPLES)
    bound = norm_bound(mechanism, p.frame, num_examples=EXAMPLES, local=local)
    assert float(p.step(mechanism, local, seed).norm()) < bound


def test_norm_bound_by_hand():
    """Ten examples of C = 2 and noise 6 on k values: 1.01 (20 + 6 (sqrt k + 10)), twice over for momentum .5."""
    p = problem()
    mechanism = Mechanism(noise_multiplier=3, clip_norm=2)
    bound = norm_bound(mechanism, p.frame, num_examples=10, local=LocalTraining(momentum=0.5))
    assert bound == pytest.approx(1.01 * 2 * (20 + 6 * (math.sqrt(p.frame.kept) + 10)))
    assert norm_bound(NONE, p.frame, num_examples=10, local=LocalTraining()) == math.inf


@pytest.mark.parametrize("name", FRAMES)
def test_equal_inputs_give_equal_frames(name):
    assert problem(*FRAMES[name]).frame.digest == problem(*FRAMES[name]).frame.digest


@given(rounds=st.integers(1, 40), steps=st.integers(1, 5), rate=st.floats(0.01, 1))
def test_epochs_count_local_steps_times_the_rate(rounds, steps, rate):
    schedule = Schedule(rounds=rounds, local_steps=steps, sample_rate=rate)
    epochs = [schedule.epoch(round) for round in range(1, rounds + 1)]
    assert epochs == [math.floor(done * steps * rate + 1e-9) for done in range(rounds)]
    assert epochs[0] == 0
    assert schedule.epochs == epochs[-1] + 1


def test_epochs_golden():
    """q = .1 and K = 2: an epoch every five rounds, and 0.1 * 10 is one epoch although it is stored as a bit more."""
    schedule = Schedule(rounds=11, local_steps=2, sample_rate=0.1)
    assert [schedule.epoch(round) for round in range(1, 12)] == [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 2]
    assert Schedule(rounds=4, sample_rate=0.1 + 0.2).epoch(11) == 3


def test_uniform_masks_change_with_the_epoch_not_with_the_round():
    p = problem()
    weights = dict(p.model.named_parameters())
    schedule = Schedule(rounds=8, sample_rate=0.5)
    method = Method(name="rs", mask=Mask(kind="uniform", sparsity=0.5))

    def digest(round: int) -> bytes:
        return make_frame(
            method, weights, weights, carried=(), round=round, updates=round, schedule=schedule, seed=0
        ).digest

    assert digest(1) == digest(2) != digest(3) == digest(4)


def test_a_unit_mask_needs_carriers():
    with pytest.raises(ValueError, match="units.*low-rank carriers"):
        Method(name="lsg", mask=Mask(kind="units", sparsity=0.3))


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ({"steps": 0}, "steps=0 >= 1"),
        ({"microbatch_size": 0}, "microbatch_size=0 >= 1"),
        *[({"momentum": v}, "momentum=") for v in (-0.1, 1, math.nan)],
        *[({"learning_rate": v}, "learning_rate=") for v in (0, -1, math.nan)],
        *[({"expected_batch": v}, "expected_batch=") for v in (0, -1, math.nan)],
        *[({"sample_rate": v}, "sample_rate=") for v in (0, 1.1, math.nan)],
    ],
)
def test_wrong_local_settings_are_refused(setting, part):
    with pytest.raises(ValueError, match=part):
        LocalTraining(**setting)


@pytest.mark.parametrize("setting", [{"rounds": 0}, {"rounds": 1, "local_steps": 0}, {"rounds": 1, "sample_rate": 0.0}])
def test_wrong_schedules_are_refused(setting):
    with pytest.raises(ValueError, match="expected"):
        Schedule(**setting)


def test_a_clients_own_rate_changes_nothing_else():
    local = LocalTraining(steps=3, momentum=0.5, expected_batch=7)
    assert local.at_rate(0.25) == replace(local, sample_rate=0.25)
