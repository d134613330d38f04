"""An audit in which the server chooses the weights: canaries that a neuron of their own isolates,
on digits.

    python -m benchmarks.privacy.audit_malicious --out docs/results/audit_malicious.md

The model is 64-128-10 with tanh. A client holds 200 training images and, each with probability 1/2,
100 canaries: images of two tones, labelled 0. It takes one step on all of them by the library's own
``client_step`` at the noise of the claim, for each of many seeds. The auditor knows all but the
coins and the noise: it subtracts the rest of the images, half of every canary, and scores each
canary along its clipped gradient. Bounds are those of ``fedlsg audit``.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.privacy.craft import isolating
from benchmarks.privacy.digits_client import network, payload, report
from fedlsg import strategies
from fedlsg.accounting import calibrate_noise_multiplier
from fedlsg.attacks.audit.played.plants import planted
from fedlsg.attacks.audit.training_mode import canary_scores, examine
from fedlsg.attacks.audit.verdict import Claim, Verdict, judge
from fedlsg.carriers import prepare_model
from fedlsg.method import Method, Schedule
from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.simulations.workloads import load
from fedlsg.state import PublicState

HIDDEN, IMAGES, CANARIES, CLIP, DELTA = 128, 200, 100, 0.1, 1e-5
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd": ("dpsgd", {}),
    "rs, p .5": ("rs", {"sparsity": 0.5, "cooling": False}),
    "rgp-random, r 8": ("rgp-random", {"rank": 8}),
    "lsg, r 8, p .3": ("lsg", {"rank": 8, "sparsity": 0.3}),
}


def data(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """(images, their labels, canaries)."""
    train, generator = load("digits").train, public_generator(seed, "audited images")
    x, y = train.batch(torch.randperm(len(train), generator=generator)[:IMAGES])
    assert isinstance(x, Tensor)
    x = x.double()
    tones = torch.rand((CANARIES, *x.shape[1:]), generator=generator) < 0.5
    return x, y, torch.where(tones, x.min(), x.max())


def audited(method: Method, *, crafted: bool, seed: int) -> tuple[Tensor, Tensor]:
    """(scores, coins) of the canaries of one client."""
    x, y, canaries = data(seed)
    targets = torch.zeros(CANARIES, dtype=y.dtype)
    model = network(seed, HIDDEN)
    if crafted:
        model.load_state_dict(isolating(model, canaries, x), strict=False)
    prepare_model(model, method.carrier, classifier="classifier", seed=seed)
    public = PublicState.start(
        model, method, Schedule(rounds=2), seed=seed, classifier="classifier"
    )
    included = reproducible_stream(seed, "coins").bernoulli(CANARIES, 0.5)
    inputs, labels = torch.cat([x, canaries[included]]), torch.cat([y, targets[included]])
    seen = payload(
        method,
        model,
        public.frame(1, updates=0),
        (inputs, labels),
        seed=seed,
        expected_batch=float(IMAGES),
    )
    examined = examine(seen, (canaries, targets), (x, y), included)
    return canary_scores([examined], seen.noise_std, 1.0), included


def verdict(name: str, *, crafted: bool, plant: str | None, epsilon: float, seeds: int) -> Verdict:
    """The verdict from all canaries of all seeds."""
    recipe, choices = METHODS[name]
    sigma = calibrate_noise_multiplier(epsilon=epsilon, sample_rate=1.0, steps=1, delta=DELTA)
    method = strategies.recipe(recipe, clip_norm=CLIP, noise_multiplier=sigma, **choices)
    with planted(plant):
        found = [audited(method, crafted=crafted, seed=seed) for seed in range(seeds)]
    scores, included = (np.concatenate([pair[i].numpy() for pair in found]) for i in (0, 1))
    claim = Claim(epsilon=epsilon, delta=DELTA, sample_rate=1.0, noise_multiplier=sigma, steps=1)
    return judge(scores, included, claim)


def table(seeds: int) -> Iterator[str]:
    """One line for each method and claim."""
    yield (
        "| method | claim | weights | one-run bound | f-DP bound | estimate (95 %) | noise halved: "
        "f-DP bound |"
    )
    yield "|---|---|---|---|---|---|---|"
    for name in METHODS:
        for epsilon in (1.0, 4.0, 8.0):
            for crafted in (False, True):
                true = verdict(name, crafted=crafted, plant=None, epsilon=epsilon, seeds=seeds)
                wrong = verdict(
                    name, crafted=crafted, plant="halved-noise", epsilon=epsilon, seeds=seeds
                )
                guess = true.estimate.epsilon
                yield (
                    f"| `{name}` | {epsilon:g} | {'crafted' if crafted else 'random'} | "
                    f"{true.one_run.epsilon:.2f} | "
                    f"{true.f_dp.epsilon:.2f}{', falsified' if true.falsified else ''} | "
                    f"{guess.value:.2f} ({guess.low:.2f} to {guess.high:.2f}) | "
                    f"{wrong.f_dp.epsilon:.2f}{', falsified' if wrong.falsified else ''} |"
                )


if __name__ == "__main__":
    report(__doc__, table, words=f", {CANARIES} canaries each")
