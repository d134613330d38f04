"""A server that chooses the weights: crafted weights on digits, against every kind of coordinates.

    python -m benchmarks.privacy.attack_malicious --out docs/results/attack_malicious.md

The model is 64-128-10 with tanh. A client takes eight test images, by the library's own
``client_step``. The server's prior and the places of its bins are from the other half of the test
split. An image counts as recovered where its PSNR is above 20 dB and 3 dB above that of the blind
guess, the mean public image. Guesses are matched to images; images without a guess have the blind
one.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.privacy.craft import fishing, imprint, traps
from benchmarks.privacy.digits_client import network, payload, report
from benchmarks.privacy.read import read
from fedlsg import strategies
from fedlsg.accounting import calibrate_noise_multiplier
from fedlsg.attacks.inversion.prior import Prior, prior_from
from fedlsg.attacks.metrics import best_matching, mean_interval, psnr, squared_errors
from fedlsg.attacks.observation import DoesNotApply
from fedlsg.carriers import prepare_model
from fedlsg.method import Method, Schedule
from fedlsg.randomness import public_generator
from fedlsg.simulations.workloads import load
from fedlsg.state import PublicState

BATCH, HIDDEN, RANK, CLIP = 8, 128, 8, 0.1
RECOVERED, ABOVE_BLIND, MOST = 20.0, 3.0, 60.0
RATE, STEPS, DELTA = 0.05, 100, 1e-5
"""Of the noise multipliers for an epsilon."""
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "dpsgd": ("dpsgd", {}),
    "rs, p .5": ("rs", {"sparsity": 0.5, "cooling": False}),
    "rs, p .9": ("rs", {"sparsity": 0.9, "cooling": False}),
    "dp-ssgd, drop .5": ("dp-ssgd", {"prune": "none", "drop": "random", "drop_rate": 0.5}),
    "rgp-random, r 8": ("rgp-random", {"rank": RANK}),
    "lsg, r 8": ("lsg", {"rank": RANK, "sparsity": 0.0}),
    "lsg, r 8, p .3": ("lsg", {"rank": RANK, "sparsity": 0.3}),
    "bitfit": ("bitfit", {}),
    "ffa-lora, r 8": ("ffa-lora", {"rank": RANK}),
}
KINDS = ("imprint", "imprint, aimed", "traps", "fishing")


def images() -> tuple[Tensor, Tensor, Tensor]:
    """Halves of digits' test split: public images (n, 1, 8, 8), private images and their labels."""
    test = load("digits").test
    rows = torch.randperm(len(test), generator=public_generator(0, "malicious")).tensor_split(2)
    (public, _), (private, labels) = (test.batch(part) for part in rows)
    return public.double(), private.double(), labels


def crafted(kind: str, method: Method, prior: Prior, target: int, *, seed: int) -> nn.Module:
    """The model with the server's weights, as the method trains it."""
    model = network(seed, HIDDEN)
    if kind == "traps":
        weights = traps(model, prior, batch=BATCH, generator=public_generator(seed, "traps"))
    elif kind == "fishing":
        weights = fishing(model, target=target)
    else:
        weights = imprint(model, prior, steer=kind.endswith("aimed"))
    model.load_state_dict(weights, strict=False)
    return prepare_model(model, method.carrier, classifier="classifier", seed=seed)


def one(name: str, kind: str, mechanism: dict[str, Any], seed: int) -> tuple[int, float, float]:
    """(images recovered, mean PSNR of the guesses, mean PSNR of the blind guess) of one batch."""
    public, private, labels = images()
    recipe, choices = METHODS[name]
    method = strategies.recipe(recipe, **mechanism, **choices)
    rows = torch.randperm(len(labels), generator=public_generator(seed, "batch"))[:BATCH]
    x, y = private[rows], labels[rows]
    prior = prior_from(public, low=float(public.min()), high=float(public.max()))
    model = crafted(kind, method, prior, int(y[0]), seed=seed)
    public = PublicState.start(
        model, method, Schedule(rounds=2), seed=seed, classifier="classifier"
    )
    seen = payload(method, model, public.frame(1, updates=0), (x, y), seed=seed)
    blind = psnr(prior.expected(BATCH), x, data_range=prior.span)
    own = blind.clone()
    try:
        guess = read(seen, prior, kind.removesuffix(", aimed"), target=int(y[0]))
        order, truths = best_matching(squared_errors(guess.inputs, x))
        own[truths] = psnr(guess.inputs[order], x[truths], data_range=prior.span).clamp(max=MOST)
    except DoesNotApply as error:
        if "above the noise" not in str(error):
            raise
    found = (own > RECOVERED) & (own > blind + ABOVE_BLIND)
    return int(found.sum()), float(own.mean()), float(blind.mean())


def table(seeds: int) -> Iterator[str]:
    """One line for each method and kind of weights, a column for each mechanism."""
    sigmas = [
        calibrate_noise_multiplier(epsilon=eps, sample_rate=RATE, steps=STEPS, delta=DELTA)
        for eps in (8.0, 1.0)
    ]
    mechanisms: dict[str, dict[str, Any]] = {
        "no clip": {"mechanism": "none"},
        "clip": {"mechanism": "clip-only", "clip_norm": CLIP},
        "sigma 0.01": {"clip_norm": CLIP, "noise_multiplier": 0.01},
        f"epsilon 8 (sigma {sigmas[0]:.2f})": {"clip_norm": CLIP, "noise_multiplier": sigmas[0]},
        f"epsilon 1 (sigma {sigmas[1]:.2f})": {"clip_norm": CLIP, "noise_multiplier": sigmas[1]},
    }
    yield f"| method | weights | {' | '.join(mechanisms)} |"
    yield "|---|---|" + "---|" * len(mechanisms)
    for name in METHODS:
        for kind in KINDS:
            cells = []
            for mechanism in mechanisms.values():
                try:
                    found = [one(name, kind, mechanism, seed) for seed in range(seeds)]
                except DoesNotApply as error:
                    cells.append(f"cannot be read: {error}")
                    break
                count, own, blind = (
                    torch.tensor(column, dtype=torch.float64) for column in zip(*found, strict=True)
                )
                cells.append(f"{count.mean():.1f}; {mean_interval(own - blind)}")
            yield f"| `{name}` | {kind} | {' | '.join(cells)} |"


if __name__ == "__main__":
    report(__doc__, table)
