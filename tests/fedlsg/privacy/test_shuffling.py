"""Poisson batches and shuffled ones: rate, independence, each example once an epoch, and epsilon of
what is drawn.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fedlsg.accounting import compose
from fedlsg.method import LocalTraining, Method, Schedule, client_step, make_frame
from fedlsg.privacy import Entry, Ledger, Mechanism, ShuffledBatches
from fedlsg.privacy.sampling import batches_of_epoch, check_sample_rate, epochs_begun, poisson_batch
from fedlsg.privacy.totals import Totals
from fedlsg.randomness import SecretStream, reproducible_stream, secret_stream

DELTA = 1e-5


def order(epoch: int) -> SecretStream:
    return reproducible_stream(7, "order", epoch)


def drawn(n: int, b: int, count: int, *, first: int = 0) -> list[Tensor]:
    batches = ShuffledBatches(num_examples=n, batch_size=b, first=first, order=order)
    return [batches.next_batch() for _ in range(count)]


def takes_part_once(n: int, b: int, batches: Sequence[Tensor]) -> bool:
    """Whether every example is in exactly one batch of each whole epoch."""
    of_epoch = -(-n // b)
    epochs = [batches[i : i + of_epoch] for i in range(0, len(batches) - of_epoch + 1, of_epoch)]
    return all(torch.cat(list(epoch)).sort().values.tolist() == list(range(n)) for epoch in epochs)


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 40), b=st.integers(1, 50))
def test_every_example_is_in_one_batch_of_an_epoch(n, b):
    of_epoch = batches_of_epoch(n, b)
    batches = drawn(n, b, 3 * of_epoch)
    assert takes_part_once(n, b, batches)
    assert [len(x) for x in batches[: of_epoch - 1]] == [b] * (of_epoch - 1)
    assert len(batches[of_epoch - 1]) == n - (of_epoch - 1) * b
    assert not torch.equal(torch.cat(batches[:of_epoch]), torch.arange(n)) or n <= 8 or b >= n


def test_the_check_finds_an_example_that_is_in_two_batches():
    planted = drawn(20, 6, 4)
    planted[2] = torch.cat([planted[2][1:], planted[0][:1]])
    assert not takes_part_once(20, 6, planted)


def test_a_round_may_begin_anywhere_in_an_epoch():
    """Rounds of three steps, each drawn anew from the key, as after a crash: the same batches as in
    one go.
    """
    whole = drawn(20, 6, 12)
    rounds = [batch for first in range(0, 12, 3) for batch in drawn(20, 6, 3, first=first)]
    assert all(torch.equal(a, b) for a, b in zip(whole, rounds, strict=True))
    again = ShuffledBatches(
        num_examples=20, batch_size=6, first=2, order=lambda epoch: reproducible_stream(8, epoch)
    )
    # another key: planted
    assert not takes_part_once(20, 6, [*whole[:2], again.next_batch(), again.next_batch()])


def entry(**changes: object) -> Entry:
    made = {
        "client": 3,
        "round": 1,
        "attempt": 0,
        "steps": 2,
        "sample_rate": 1.0,
        "noise_multiplier": 4.0,
        "clip_norm": 1.0,
        "num_examples": 50,
        "mechanism": "dp",
        "batches": 5,
    }
    return Entry(**made | changes)  # type: ignore[arg-type]


def rounds(count: int, steps: int = 2, **changes: object) -> list[Entry]:
    return [entry(round=r + 1, steps=steps, first_batch=steps * r, **changes) for r in range(count)]


def golden(sigma: float, epochs: int) -> float:
    """Epsilon of epochs Gaussian releases, without subsampling, by Google's accountant."""
    accountant = PLDAccountant()
    accountant.compose(dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(sigma), epochs))
    return float(accountant.get_epsilon(DELTA))


def closed_form(sigma: float, epochs: int, epsilon: float) -> float:
    """delta of mu-GDP with mu = sqrt(E) / sigma (Balle and Wang 2018, Thm. 8)."""
    mu = math.sqrt(epochs) / sigma

    def phi(x: float) -> float:
        return 0.5 * math.erfc(-x / math.sqrt(2))

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("sigma", "count", "epochs"), [(4.0, 20, 8), (4.0, 21, 9), (1.5, 3, 2), (9.6, 120, 48)]
)
def test_epsilon_is_that_of_one_gaussian_release_an_epoch(sigma, count, epochs):
    spent = Totals().extended(rounds(count, noise_multiplier=sigma)).events()
    found = compose(spent, delta=DELTA)
    assert golden(sigma, epochs) * (1 - 1e-3) <= found.upper <= golden(sigma, epochs) * 1.01
    assert closed_form(sigma, epochs, found.upper) <= DELTA * (1 + 1e-6)
    amplified = compose([replace(e, sample_rate=0.2, steps=2 * count) for e in spent], delta=DELTA)
    assert amplified.upper < 0.9 * found.upper  # planted: the Poisson bound would claim less
    assert closed_form(sigma, epochs, amplified.upper) > DELTA


def test_batches_that_are_taken_twice_are_counted_twice():
    once, again = entry(), entry(attempt=1)
    assert Totals().extended([once, again]).events()[0].steps == 2
    assert Totals().extended([once]).with_next(again).events()[0].steps == 2
    assert Totals().extended([once, entry(attempt=1, first_batch=2)]).events()[0].steps == 1


def test_other_sizes_of_the_data_begin_anew():
    """With other rows the places in the order are others: an example may be in the same epoch
    again.
    """
    grown = entry(round=2, first_batch=0, num_examples=51)
    assert Totals().extended([entry(), grown]).events()[0].steps == 2


def test_a_ledger_gives_each_attempt_the_next_batches(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", client=3)
    taken = []
    for round, attempt in ((1, 0), (1, 1), (2, 0), (3, 0)):
        made = ledger.next_batch(entry(round=round, attempt=attempt))
        taken.append(made.first_batch)
        ledger.charge(made)
    assert taken == [0, 2, 4, 6]
    assert ledger.events()[0].steps == epochs_begun(8, 5) == 2
    assert ledger.next_batch(entry(round=2, attempt=1), repeat=True).first_batch == 4
    poisson = entry(round=9, batches=0, sample_rate=0.5)
    assert ledger.next_batch(poisson) == poisson


def test_a_budget_allows_the_epochs_that_it_pays_for(tmp_path):
    ledger = Ledger(tmp_path / "l.jsonl", client=3)
    budget = compose(Totals().extended(rounds(5)).events(), delta=DELTA).upper * 1.0001
    allowed = 0
    while not ledger.would_exceed(
        made := ledger.next_batch(entry(round=allowed + 1)), budget, DELTA
    ):
        ledger.charge(made)
        allowed += 1
    assert allowed == 5  # 10 batches: two epochs of 5


@pytest.mark.parametrize(
    "wrong",
    [{"sample_rate": 0.2}, {"log_ratio": 0.1}, {"batches": 51}, {"batches": 0, "first_batch": 3}],
)
def test_an_entry_that_claims_more_is_refused(wrong):
    with pytest.raises(ValueError, match="batch"):
        entry(**wrong)


def step(local: LocalTraining, sampler: object, n: int, seen: list[Tensor] | None = None) -> Tensor:
    model = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    weights = dict(model.named_parameters())
    method = Method(name="sum", mechanism=Mechanism(kind="clip-only", clip_norm=1e6))
    frame = make_frame(
        method, weights, {}, carried=(), round=1, updates=0, schedule=Schedule(rounds=1), seed=0
    )

    def batch(positions: Tensor) -> tuple[Tensor, Tensor]:
        if seen is not None:
            seen.append(positions)
        return torch.nn.functional.one_hot(positions % 3, 3).float(), torch.ones(len(positions), 1)

    return client_step(
        model,
        batch,
        lambda out, y: -(out * y).sum(1),
        frame=frame,
        mechanism=method.mechanism,
        local=local,
        num_examples=n,
        sampler=sampler,
        noise=reproducible_stream(1),
        charge=lambda: None,
    )


def test_a_client_that_takes_an_epoch_adds_every_example_once():
    seen: list[Tensor] = []
    sampler = ShuffledBatches(num_examples=20, batch_size=6, first=0, order=order)
    local = LocalTraining(steps=4, learning_rate=1e-9, expected_batch=6.0, shuffled=6)
    total = step(local, sampler, 20, seen)
    assert takes_part_once(20, 6, seen)
    # undivided: the last, smaller batch counts as others
    assert torch.allclose(total, -torch.tensor([7.0, 7.0, 6.0]))


def test_what_is_drawn_is_what_is_charged():
    poisson = LocalTraining(sample_rate=0.3, expected_batch=6.0)
    shuffled = LocalTraining(expected_batch=6.0, shuffled=6)
    sampler = ShuffledBatches(num_examples=20, batch_size=6, first=0, order=order)
    for local, stream, n in (
        (poisson, sampler, 20),
        (shuffled, reproducible_stream(0), 20),
        (shuffled, sampler, 21),
    ):
        with pytest.raises(ValueError, match="batches"):
            step(local, stream, n)


def test_a_divisor_that_depends_on_the_data_is_refused():
    with pytest.raises(ValueError, match="divisor"):
        LocalTraining(expected_batch=5.0, shuffled=6)


N, Q, DRAWS = 40, 0.3, 4000


def fixed_size_batch(num_examples: int, sample_rate: float, sampler: SecretStream) -> Tensor:
    """The usual mistake: a shuffled batch of constant size q N, which the accountant does not
    describe.
    """
    order = torch.from_numpy(sampler.words(num_examples).argsort())
    return order[: round(num_examples * sample_rate)].sort().values


def whole_batches_only(num_examples: int, sample_rate: float, sampler: SecretStream) -> Tensor:
    """Another one: all examples or none, at the right rate."""
    return torch.arange(num_examples if sampler.bernoulli(1, sample_rate) else 0)


def memberships(sample, seed: int) -> Tensor:
    """(DRAWS, N) who was in which batch."""
    sampler = reproducible_stream(seed, "memberships")
    rows = torch.zeros(DRAWS, N)
    for row in rows:
        row[sample(N, Q, sampler)] = 1
    return rows


def looks_poisson(sample, seed: int = 0) -> bool:
    """Every example at rate q; batch sizes with the binomial mean and variance N q (1 - q)."""
    rows = memberships(sample, seed)
    sizes = rows.sum(1)
    variance = N * Q * (1 - Q)
    rates_fit = (rows.mean(0) - Q).abs().max() < 5 * math.sqrt(Q * (1 - Q) / DRAWS)
    mean_fits = abs(float(sizes.mean()) - N * Q) < 5 * math.sqrt(variance / DRAWS)
    variance_fits = abs(float(sizes.var()) / variance - 1) < 5 * math.sqrt(2 / DRAWS)
    return bool(rates_fit and mean_fits and variance_fits)


def test_batches_are_poisson():
    assert looks_poisson(poisson_batch)


@pytest.mark.parametrize(
    "mistake", [fixed_size_batch, whole_batches_only, lambda n, q, s: poisson_batch(n, q * 1.1, s)]
)
def test_other_samplers_are_caught(mistake):
    assert not looks_poisson(mistake)


def test_examples_join_independently_of_each_other_and_of_the_last_batch():
    rows = memberships(poisson_batch, seed=1)
    centred = (rows - Q) / math.sqrt(Q * (1 - Q))
    same_batch = centred.T @ centred / DRAWS - torch.eye(N)
    next_batch = centred[1:].T @ centred[:-1] / DRAWS
    assert float(same_batch.fill_diagonal_(0).abs().max()) < 6 / math.sqrt(DRAWS)
    assert float(next_batch.abs().max()) < 6 / math.sqrt(DRAWS)


def test_secret_rate():
    n, q = 200_000, 0.1
    size = len(poisson_batch(n, q, secret_stream()))
    assert abs(size - n * q) < 7 * math.sqrt(n * q * (1 - q))


@given(n=st.integers(0, 60), seed=st.integers(0, 10**6))
def test_rate_one_takes_everybody(n, seed):
    assert poisson_batch(n, 1.0, reproducible_stream(seed)).tolist() == list(range(n))


def test_empty_batches_happen_at_their_rate():
    sampler, n, q, draws = reproducible_stream(2), 5, 0.2, 4000
    empty = sum(len(poisson_batch(n, q, sampler)) == 0 for _ in range(draws)) / draws
    probability = (1 - q) ** n
    assert abs(empty - probability) < 5 * math.sqrt(probability * (1 - probability) / draws)


@pytest.mark.parametrize("q", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_rates_outside_zero_to_one_are_refused(q):
    with pytest.raises(ValueError, match="sample_rate"):
        check_sample_rate(q)
    with pytest.raises(ValueError, match="sample_rate"):
        poisson_batch(10, q, secret_stream())
