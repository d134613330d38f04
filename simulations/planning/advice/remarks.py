"""What a plan says of itself: its noise and batches, its threat model, and what is likely to go
wrong with it.

rho is how large the noise of a step is next to the clip norm. Advice follows from public numbers
alone, and says the one setting to change: it reads the plan, and inputs of the public test split.
It never reads a training row, so it costs no privacy.
"""

import math
import time
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch

from fedlsg.accounting import max_steps
from fedlsg.accounting.certified import certified_or_inf, rough
from fedlsg.carriers import Lora, embeddings_of
from fedlsg.config.units import unit_named
from fedlsg.gradients.calls import kind_of
from fedlsg.gradients.calls.registry import ways_of
from fedlsg.gradients.calls.torch_func import measure
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.gradients.isolation.trial import word_on
from fedlsg.privacy import rho
from fedlsg.randomness import own_draws
from fedlsg.secure_sum.discrete import plan_release
from fedlsg.simulations.planning.advice.hints import SWAMPED, less_noise, noise_words
from fedlsg.simulations.planning.base.isolation_level import tried_rows
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.faults.model_faults import count_blocks, probes
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.settings.any_run import Resolved
from fedlsg.simulations.workloads import to_device
from fedlsg.state import ClientTerms, PublicState, different_terms, each, mean_frame
from fedlsg.training.auto import FEWEST_UPDATES
from fedlsg.user_code.library import own_code
from fedlsg.user_code.objects import restored

if TYPE_CHECKING:
    from fedlsg.attacks.audit.played.stated import Stated

CLAIM = (
    "shuffled batches: each example is in one batch of an epoch, and an epoch counts as one "
    "release. No amplification by shuffling is claimed. Adjacency is zero-out: one example is "
    "replaced by a record without a gradient"
)
RHO_IS = "length of the noise in a step's mean gradient, in clip norms"
MEASURED = "What the noise costs a run is measured by fedlsg inspect RUN --noiseless."
RHO_MEANING = (
    "rho far below 1: noise hides little of a step, so look for accuracy in a method that sends "
    "more values, the model or public features. About 1 or more: send fewer values, or give larger "
    f"batches or trust=secure. {MEASURED}"
)
"""What rho means, for the many runs of a comparison."""
SHORT_RHO = 0.5
"""Below this rho the noise of a step is short next to the clip norm."""


def rho_words(rho: float, *, fewer: bool, secure: bool, images: bool = False) -> str:
    """What a rho means, in words.

    fewer: the method sends fewer values than the model has.
    secure: clients share the noise of a sum already.
    images: the inputs are images.
    """
    if rho < SHORT_RHO:
        methods = "a method that sends more values, " if fewer else ""
        how = "--features patches, " if images else ""
        return (
            f"noise hides little of a step, so look for accuracy in {methods}the model or public "
            f"features ({how}fedlsg docs features). {MEASURED}"
        )
    shared = "" if secure else " or trust=secure"
    return (
        f"noise hides much of a step: send fewer values, or give larger batches{shared}. {MEASURED}"
    )


def rho_of(plan: Plan, public: PublicState) -> float | None:
    """``fedlsg.privacy.rho`` of the mean round, pruned as ``public`` is; None without a clip."""
    frame = mean_frame(public)
    values = frame.wire.kept if frame.personal else frame.kept
    return _rho(plan, values=values, blocks=len(frame.blocks))


def pull(plan: Plan) -> float | None:
    """The most that data move a weight over the run, in deviations of the noise.

    In each of T updates, a Poisson batch of B expected examples has gradients of the clip norm C in
    one direction. The batch size has the mean square B^2 + B. A weight moves by at most
    C sqrt(B^2 + B) / B in an update, and by noise of the deviation rho C. Over T independent
    updates the ratio is sqrt(T (1 + 1 / B)) / rho, with rho that of one value.

    None without noise, at client level, and for a clip of each block, whose number is not known
    here. It reads no training row.
    """
    if plan.unit.whole or plan.method.mechanism.clip == "per-block":
        return None
    rho_of_one = _rho(plan, values=1, blocks=1)
    if not rho_of_one:
        return None
    steps = plan.schedule.rounds * plan.settings.local_steps
    return math.sqrt(steps * (1 + 1 / plan.divisor)) / rho_of_one


def _rho(plan: Plan, *, values: float, blocks: int) -> float | None:
    """rho of a round in which each client sends so many values."""
    return rho(
        plan.method.mechanism,
        each(plan.terms, lambda terms: terms.noise_multiplier * terms.weight),
        clients_per_round=1 if plan.unit.at_server else plan.settings.clients_per_round,
        values=values,
        blocks=blocks,
        expected_batch=plan.divisor,
    )


def sum_bits(plan: Plan, public: PublicState) -> int | None:
    """Bits of each integer that a client sends into a secure sum, in the mean round; else None."""
    if plan.sums is None:
        return None
    frame = mean_frame(public)
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    return plan_release(plan.sums, mechanism, values=frame.kept, blocks=len(frame.blocks)).grid.bits


def sum_line(plan: Plan, public: PublicState) -> str | None:
    """The grid of the secure sums, whose noise counts, and the cost of that, in words.

    None if clients share no noise.
    """
    how = plan.method.mechanism
    if not how.colluders:
        return None
    m, t, of = how.min_survivors, how.colluders, plan.settings.clients_per_round
    if plan.sums is None:
        said = (
            f"sum of at least {m} of {of} clients, assumed to be secure, one of which may read it"
        )
    else:
        said = (
            f"secure sum of at least {m} of {of} clients, {t} of which may collude with the "
            f"server: {sum_bits(plan, public)} bits a value"
        )
    return (
        f"{said}, noise planned for {m - t} honest client{'' if m - t == 1 else 's'}\nevery client "
        f"knows its own noise: protection against {t} of them makes the noise of a sum "
        f"{math.sqrt(m / (m - t)):.3g} times as large"
    )


def rho_line(plan: Plan, public: PublicState) -> str | None:
    """rho, the numbers that it follows from, and what it means; None without rho."""
    length = rho_of(plan, public) if plan.method.mechanism.adds_noise else None
    if length is None:
        return None
    before = " before pruning" if plan.method.prune.reads_data else ""
    k = plan.settings.clients_per_round
    batch = f", expected batch {plan.divisor:,.0f}" if not plan.unit.whole else ""
    kept = mean_frame(public).kept
    trained = sum(p.numel() for p in public.model.parameters() if p.requires_grad)
    meaning = rho_words(
        length,
        fewer=kept < trained,
        secure=plan.settings.trust != "client",
        images=plan.workload.has_images,
    )
    return (
        f"rho = {length:.3g}: {RHO_IS} ({kept:,} values{before}, {k} "
        f"{'client' if k == 1 else 'clients'}{batch})\n{meaning}"
    )


def batches_line(s: Resolved, sizes: Sequence[int], rate: float) -> str:
    """How batches are drawn, in words: the Poisson rate, or batch size and epoch of a client."""
    if s.sampling != "shuffle" or s.batch_size is None:
        return f"q = {rate:.4g}"
    return (
        f"shuffled batches of {s.batch_size}, 1 epoch = {-(-fmean(sizes) // s.batch_size):.0f} "
        "steps"
    )


def stated_of(
    base: Base, *, epsilon: float, delta: float, sample_rate: float, steps: int
) -> "Stated":
    """The threat model as the settings state it, with a claim, for code that checks a plan."""
    from fedlsg.attacks.audit.played.stated import Stated  # a bundle for Flower has no attacks

    s = base.settings
    return Stated(
        trust=s.trust,
        unit=s.unit,
        clients=s.clients_per_round,
        min_survivors=s.min_survivors,
        colluders=s.colluders or 0,
        epsilon=epsilon,
        delta=delta,
        sample_rate=sample_rate,
        steps=steps,
    )


def schedule_of(base: Base, terms: ClientTerms) -> tuple[float, int]:
    """The probability that a unit is in a release, and the most releases that it may be in."""
    s, rounds = base.settings, base.schedule.rounds
    if s.trust == "server":
        return s.clients_per_round / s.clients, rounds
    rounds = base.clients.participation.most_selections(rounds)
    if unit_named(s.unit).whole:
        return 1.0, rounds
    batches = rounds * s.local_steps
    if s.batch_size is None:
        return base.local.sample_rate, batches
    if s.sampling == "shuffle":
        return 1.0, math.ceil(batches / math.ceil(terms.num_examples / s.batch_size))
    return min(1.0, s.batch_size / terms.num_examples), batches


def isolation_line(plan: Plan, public: PublicState) -> str | None:
    """The isolation level of passes with own code, and its cost; None for library code alone."""
    own = own_code(public.model) or own_code(plan.workload.loss)
    if own is None:
        return None
    level, loss = plan.local.isolation, plan.workload.loss
    most = min(round(plan.local.expected_batch), plan.local.microbatch_size)
    with own_draws(plan.device), restored(loss):
        slow = word_on(public.model, loss, *tried_rows(plan), level, most)
    return f"isolation {level}: own code, {own}{slow and '; '}{slow}"


FEW_UPDATES = 10
"""Fewer updates of the weights than this are few."""
ROWS = 256
"""The most rows of the test split whose inputs are measured."""
USUAL_RMS = (0.1, 10.0)
"""Between these root mean squares of the inputs the rule was measured to lose under a point."""
EMPTY = 0.5
"""Empty batches are reported if at least this share of a client's batches is empty."""


def advice(plan: Plan) -> list[str]:
    """Sentences that each say what to change; empty if nothing is known to be wrong."""
    lines = (_budget(plan), _updates(plan), _batches(plan), _swamped(plan), inputs_line(plan))
    return [line for line in lines if line]


def _budget(plan: Plan) -> str | None:
    """Advice about a given noise that spends the budget before the last round."""
    s = plan.settings
    if s.epsilon is None or plan.clients.own_budgets:
        return None
    if not plan.method.mechanism.private or s.reproducible:
        return None
    blocks = count_blocks(plan)
    costliest = max(
        (events_of(plan, one, blocks) for one in different_terms(plan.terms)),
        key=lambda e: rough(e, s.delta),
    )
    if certified_or_inf(costliest, s.delta) <= s.epsilon:
        return None
    first, *others = costliest
    steps = max_steps(
        epsilon=s.epsilon,
        delta=s.delta,
        sample_rate=first.sample_rate,
        noise_multiplier=first.noise_multiplier,
        besides=tuple(others),
        log_ratio=first.log_ratio / first.steps,
    )
    return (
        f"at noise_multiplier={s.noise_multiplier:g} the budget epsilon={s.epsilon:g} of a client "
        f"lasts {steps * s.rounds // first.steps} of {s.rounds} rounds, and then it stops: leave "
        "noise_multiplier out to have noise for all of them"
    )


def _updates(plan: Plan) -> str | None:
    """Advice about few updates with noise."""
    rounds = plan.schedule.rounds
    if rounds >= FEW_UPDATES or not plan.method.mechanism.adds_noise:
        return None
    return (
        f"{rounds} updates of the weights are few: give rounds={FEWEST_UPDATES} or more, at a "
        "smaller sample_rate"
    )


def _batches(plan: Plan) -> str | None:
    """Advice about empty batches; a client's batch is empty with the probability (1 - q)^N."""
    empty = max(
        math.exp(size * math.log1p(-rate)) if rate < 1 else 0.0
        for size, rate in plan.clients.rate_of_size.items()
    )
    if empty < EMPTY or plan.unit.whole or plan.settings.sampling != "poisson":
        return None
    return (
        f"the smallest client has an empty batch in {empty:.0%} of its steps, and adds the whole "
        "noise in each: give a larger sample_rate, or fewer clients"
    )


def _swamped(plan: Plan) -> str | None:
    """Advice about noise that hides the data.

    A run on noise alone guesses. The KL divergence of a run on data from it is at most pull^2 / 2,
    so its accuracy differs by at most pull / 2 (Pinsker): 50 pull points.
    """
    ratio = pull(plan)
    if ratio is None or ratio >= SWAMPED:
        return None
    ways = less_noise(clients=len(plan.clients.sizes), trust=plan.settings.trust)
    bound = f"; expect at most {50 * ratio:.0f} points more than guessing" if ratio < 1 else ""
    return f"{noise_words(ratio, None)}{bound}: give {ways}"


@torch.no_grad()
def inputs_line(plan: Plan) -> str | None:
    """Advice about inputs whose size does not suit the steps of the rule: they suit about 1.

    It measures rows of the public test split alone. Tokens have no size.
    """
    if (
        "learning_rate" not in (plan.settings.auto or "").split()
        or plan.workload.features is not None
    ):
        return None
    inputs, _ = plan.workload.test.batch(torch.arange(min(ROWS, len(plan.workload.test))))
    parts: Mapping[str, Any] = inputs if isinstance(inputs, dict) else {"inputs": inputs}
    for name, part in parts.items():
        size = float(part.double().square().mean().sqrt()) if part.is_floating_point() else 1.0
        if not USUAL_RMS[0] <= size <= USUAL_RMS[1]:
            return (
                f"{name} of the public test rows have a root mean square of {size:.3g}, and the "
                "rule suits sizes near 1: give normalise=public"
            )
    return None


def embeddings_line(plan: Plan) -> str | None:
    """One sentence about embeddings that LoRA freezes; None if it freezes none."""
    carrier = plan.method.carrier
    if not isinstance(carrier, Lora) or carrier.embeddings:
        return None
    tables = {id(p): p.numel() for p in embeddings_of(plan.initial.model())}
    if not tables:
        return None
    asked = "; train_embeddings=true trains them" if carrier.train == "all" else ""
    return f"embeddings are frozen under LoRA: {sum(tables.values()):,} values{asked}"


def torch_func_line(plan: Plan) -> str | None:
    """One sentence about layers whose gradients torch.func computes, and their share of a pass.

    None without such layers.
    """
    model = plan.initial.model()
    slow = []
    for path in ways_of(model).calls:
        kind = kind_of(model.get_submodule(path))
        if kind is not None and kind.by_torch_func:
            slow.append(path)
    if not slow or not plan.method.mechanism.clips:
        return None
    inputs, targets = plan.workload.test.batch(probes(plan.workload.test))
    given = to_device(inputs, plan.device), targets.to(plan.device)
    frame = plan.initial.public().frame(1, updates=0)
    for _ in range(2):  # the first pass prepares kernels
        start = time.perf_counter()
        with measure() as spent:
            per_example_gradients(model, plan.workload.loss, *given, frame)
        share = sum(spent) / (time.perf_counter() - start)
    rows = f"{len(targets)} public rows (fedlsg docs layers)"
    return (
        f"torch.func computes the gradients of {', '.join(slow)}: {share:.0%} of a pass over {rows}"
    )
