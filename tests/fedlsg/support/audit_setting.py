"""A small mechanism to audit: one frame on digits, a few rounds, in every trust mode and unit."""

from dataclasses import replace
from typing import Any

import torch

from fedlsg import strategies
from fedlsg.accounting.certified import epsilon as epsilon_of
from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.played.plants import planted
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.attacks.audit.played.unit_mode import Recording, record
from fedlsg.attacks.audit.verdict import Verdict, judge, stated_claim
from fedlsg.config.units import CLIENT
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.method import Schedule, make_frame
from fedlsg.secure_sum.discrete import SumTerms
from fedlsg.training.client_round import LocalTraining
from tests.fedlsg.support.observed import mlp

DELTA = 1e-5
OF_GAMES = (
    "last-row-twice",
    "rounded-before-noise",
    "clip-from-2c-on",
    "clip-by-mean-norm",
    "part-doubled",
    "rotated-part-doubled",
    "batch-reused",
    "batches-in-order",
    "one-draw-for-all",
    "no-clip-in-passes",
    "neighbour-in-pass",
    "ghost-norms-halved",
    "ghosts-unclipped",
    "count-noise-left-out",
    "count-doubled",
)
"""Plants that the checks without games may miss."""
MODES = ("client", "aggregate", "secure", "secure, clients", "server")


def setting(
    name: str = "lsg",
    *,
    rounds: int = 8,
    sample_rate: float = 0.5,
    steps: int = 1,
    hidden: int = 64,
    **mechanism: Any,
) -> AuditSetting:
    """The recipe at sigma = 1 in a frame of round 2; each payload is private alone."""
    model = mlp(hidden=hidden).float()
    own = strategies.own_settings(name)
    method = strategies.recipe(
        name, **({"rank": 4} if "rank" in own else {}), **{"noise_multiplier": 1.0, **mechanism}
    )
    weights = {key: p.detach() for key, p in trainable(model).items()}
    frame = make_frame(
        method,
        weights,
        {key: W * 0.9 for key, W in weights.items()},
        carried=() if method.carrier.kind == "dense" else ("hidden.weight",),
        round=2,
        updates=1,
        schedule=Schedule(rounds=2, sample_rate=0.5),
        seed=0,
        classifier="classifier",
    )
    local = LocalTraining(
        sample_rate=sample_rate,
        steps=steps,
        momentum=0.5 if steps > 1 else 0.0,
        expected_batch=50.0,
    )
    sigma = method.mechanism.effective_noise_multiplier(len(frame.blocks))
    stated = stated_at(sigma, sample_rate=sample_rate, steps=rounds * steps)
    return AuditSetting(
        model=model,
        frame=frame,
        mechanism=method.mechanism,
        local=local,
        rounds=rounds,
        stated=stated,
    )


def stated_at(sigma: float, *, sample_rate: float, steps: int, **threat: Any) -> Stated:
    """What a ledger would say of this noise."""
    given = {"sample_rate": sample_rate, "steps": steps, "delta": DELTA}
    bound = epsilon_of(noise_multiplier=sigma, accountants=("pld",), **given)
    return Stated(epsilon=bound.upper, **given, **threat)


def aggregated(made: AuditSetting, survivors: int, *, clients: int | None = None) -> AuditSetting:
    """The same where only the sum over ``survivors`` clients is private."""
    mechanism = replace(made.mechanism, noise_share=(survivors - 1) ** -0.5, colluders=1)
    stated = replace(
        made.stated, trust="aggregate", clients=clients or survivors, min_survivors=survivors
    )
    return replace(made, mechanism=mechanism, stated=stated)


def secure(
    made: AuditSetting, *, clients: int = 5, survivors: int = 4, colluders: int = 1
) -> AuditSetting:
    """The same in secure sums of at least ``survivors`` of ``clients``."""
    sums = SumTerms(
        clients=clients,
        min_survivors=survivors,
        colluders=colluders,
        expected_examples=50.0 * clients,
        releases=made.rounds,
        delta=DELTA,
    )
    counts = {"clients": clients, "min_survivors": survivors, "colluders": colluders}
    return replace(
        made,
        mechanism=replace(made.mechanism, noise_share=sums.contributors**-0.5),
        sums=sums,
        stated=replace(made.stated, trust="secure", **counts),
    )


def at_client_level(made: AuditSetting, trust: str) -> AuditSetting:
    """The same of whole clients: in secure sums, or drawn by a trusted server at the sample
    rate.
    """
    q = made.local.sample_rate if trust == "server" else 1.0
    sigma = made.mechanism.effective_noise_multiplier(len(made.frame.blocks))
    stated = stated_at(sigma, sample_rate=q, steps=made.rounds, trust="client", unit="client")
    unit = replace(CLIENT, sample_rate=q, at_server=trust == "server")
    made = replace(made, stated=stated, unit=unit)
    if trust == "server":
        return replace(made, stated=replace(stated, trust="server", clients=30))
    return secure(made, clients=6, survivors=5)


def in_mode(mode: str, made: AuditSetting) -> AuditSetting:
    """The setting in one of ``MODES``."""
    return {
        "client": lambda: made,
        "aggregate": lambda: aggregated(made, 4, clients=5),
        "secure": lambda: secure(made),
        "secure, clients": lambda: at_client_level(made, "secure"),
        "server": lambda: at_client_level(made, "server"),
    }[mode]()


def audit(
    made: AuditSetting, *, plant: str | None = None, canaries: int = 400, seed: int | None = 0
) -> Verdict:
    """Record under the plant, judge without it."""
    with planted(plant, clients=made.stated.members):
        seen = record(made, canaries, seed=seed, plans=())
    return verdict(made, seen)


def verdict(made: AuditSetting, seen: Recording) -> Verdict:
    """The judgement of what was recorded."""
    return judge(seen.scores, seen.included, stated_claim(made.stated), check_recording(seen, made))


def same(first: Recording, second: Recording) -> bool:
    """Whether two recordings are equal to the bit."""
    return bool(
        (first.scores == second.scores).all() and (first.included == second.included).all()
    ) and all(
        torch.equal(torch.from_numpy(a), torch.from_numpy(b))
        for a, b in zip(first.silent_outputs.values(), second.silent_outputs.values(), strict=True)
    )
