"""A small mechanism to audit: one client's frame on digits, a few rounds."""

from dataclasses import replace

import torch

import strategies
from fedlsg.accounting.bounds import epsilon as epsilon_of
from fedlsg.attacks.audit.checks import unit_checks
from fedlsg.attacks.audit.plants import planted
from fedlsg.attacks.audit.unit_mode import Recording, Setting, record
from fedlsg.attacks.audit.verdict import Claim, Verdict, judge
from fedlsg.gradients.supported import trainable
from fedlsg.method import Schedule, make_frame
from fedlsg.training.client import LocalTraining
from tests.fedlsg.support.observed import mlp

DELTA = 1e-5


def setting(name: str = "lsg", *, rounds: int = 8, sample_rate: float = 0.5, steps: int = 1, **mechanism) -> Setting:
    """The recipe at sigma = 1 in a frame of round 2."""
    model = mlp().float()
    own = strategies.own_settings(name)
    method = strategies.recipe(name, **({"rank": 4} if "rank" in own else {}), **{"noise_multiplier": 1.0, **mechanism})
    weights = {key: p.detach() for key, p in trainable(model).items()}
    frame = make_frame(
        method, weights, {key: W * 0.9 for key, W in weights.items()},
        carried=() if method.carrier.kind == "dense" else ("hidden.weight",),
        round=2, updates=1, schedule=Schedule(rounds=2, sample_rate=0.5), seed=0, classifier="classifier",
    )  # fmt: skip
    local = LocalTraining(sample_rate=sample_rate, steps=steps, momentum=0.5 if steps > 1 else 0.0, expected_batch=50.0)
    return Setting(model=model, frame=frame, mechanism=method.mechanism, local=local, rounds=rounds)


def claim_of(made: Setting) -> Claim:
    """What a ledger would say of it."""
    sigma = made.mechanism.effective_noise_multiplier(len(made.frame.blocks))
    q, steps = made.local.sample_rate, made.rounds * made.local.steps
    bound = epsilon_of(sample_rate=q, noise_multiplier=sigma, steps=steps, delta=DELTA, accountants=("pld",))
    return Claim(epsilon=bound.upper, delta=DELTA, sample_rate=q, noise_multiplier=sigma, steps=steps)


def audit(made: Setting, *, plant: str | None = None, canaries: int = 400, seed: int | None = 0) -> Verdict:
    """Record under the plant, judge without it."""
    with planted(plant):
        seen = record(made, canaries, seed=seed)
    return verdict(made, seen)


def verdict(made: Setting, seen: Recording) -> Verdict:
    """The judgement of what was recorded."""
    return judge(seen.scores, seen.included, claim_of(made), unit_checks(seen, made))


def aggregated(made: Setting, survivors: int) -> Setting:
    """The same where only the sum over ``survivors`` clients is private."""
    return replace(made, mechanism=replace(made.mechanism, noise_share=survivors**-0.5))


def same(first: Recording, second: Recording) -> bool:
    """Whether two recordings are equal to the bit."""
    return bool((first.scores == second.scores).all() and (first.included == second.included).all()) and all(
        torch.equal(torch.from_numpy(a), torch.from_numpy(b))
        for a, b in zip(first.silent.values(), second.silent.values(), strict=True)
    )
