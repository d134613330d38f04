"""``fedlsg plan``: the bytes, epsilon and time of a run before it begins.

The numbers are from the plan of the run, and from a short trial of its messages and of one step
(``message_trial``). Nothing is charged, and no run begins.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from fedlsg.accounting import Event, spread
from fedlsg.config.units import unit_in
from fedlsg.privacy import rho
from fedlsg.secure_sum.discrete import plan_release
from fedlsg.secure_sum.terms import plan_graph
from fedlsg.simulations.engines.choice import with_engine
from fedlsg.simulations.engines.cluster import processors
from fedlsg.simulations.planning.advice.alike_names import alike_line
from fedlsg.simulations.planning.advice.balance import dealt
from fedlsg.simulations.planning.advice.own_choices import choices
from fedlsg.simulations.planning.advice.remarks import isolation_line, rho_of, sum_bits
from fedlsg.simulations.planning.base.memory import memory_of
from fedlsg.simulations.planning.base.prepare import data_for_plan
from fedlsg.simulations.planning.base.start_weights import from_root
from fedlsg.simulations.planning.client_noise import events_of
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.terminals.progress import working
from fedlsg.simulations.report.terminals.terminal import facts_shown, print_note, print_whole
from fedlsg.simulations.report.words import duration, epsilon_words, human_bytes
from fedlsg.simulations.run.first_step import FirstStep, first_step, first_step_words
from fedlsg.simulations.run.message_trial import Trial, time_step, try_rounds
from fedlsg.simulations.server.named_callbacks import named
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings.settings import words_given
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.state import mean_frame
from fedlsg.user_code import shown

PHONES, DROPOUT = 1000, 0.2
"""The federation of phones by default: their number, and the share that leaves in each round."""
FLOWER_UP, FLOWER_DOWN = 17_000, 4_200
"""Bytes that Flower's deployment engine adds for a client and round, whatever the messages are:
docs/results/communication.md, "Bytes on a socket"."""
LEVELS = ("values", "payload", "wire")
"""Levels of bytes, see ``Sent``."""


@dataclass(frozen=True, kw_only=True)
class Message:
    """Bytes of one client in a round, by level.

    up: from the client.
    first: to the client in its first round.
    later: to the client in a round after one in which it took part.
    """

    up: Mapping[str, float]
    first: Mapping[str, float]
    later: Mapping[str, float]


def facts_of(plan: Plan, *, phones: int = PHONES, dropout: float = DROPOUT) -> dict[str, Any]:
    """All numbers of a plan, as ``--json`` prints them; common names are those of summary.json.

    Raises ValueError for phones or a dropout out of range, RuntimeError if the trial fails.
    """
    if phones < 1 or not 0 <= dropout < 1:
        raise ValueError(
            f"expected --phones={phones} >= 1 and 0 <= --phone-dropout={dropout:g} < 1"
        )
    s = plan.settings
    trial = try_rounds(plan)
    epsilon, noise_multiplier = worst(plan)
    first = first_step(plan)
    public = plan.initial.server().public
    frame = mean_frame(public)
    message = _message(plan, trial, frame.wire.kept)
    down, up = _totals(plan, trial, message)
    return {
        "workload": shown(s.workload),
        "model": s.model,
        "method": shown(s.method),
        "unit": s.unit,
        "trust": s.trust,
        "clients": len(plan.terms),
        **({"dealt": words} if (words := dealt(plan)) else {}),
        "clients_per_round": s.clients_per_round,
        "rounds": plan.schedule.rounds,
        "local_steps": plan.local.steps,
        "values": {
            "dense": plan.initial.dense_parameters,
            "sent": frame.wire.kept,
            "growth": plan.method.mask.growth,
        },
        "bytes": {
            "up": dict(message.up),
            "down_first": dict(message.first),
            "down": dict(message.later),
        },
        "uplink_bytes": up,
        "downlink_bytes": down,
        "deployment_bytes": {"up": FLOWER_UP, "down": FLOWER_DOWN},
        "phones": _phones(plan, message, frame.kept, len(frame.blocks), phones, dropout),
        "isolation": plan.local.isolation,
        "own": isolation_line(plan, public),
        "private": plan.method.mechanism.private and not s.reproducible,
        "noise_multiplier": noise_multiplier,
        "epsilon_max": epsilon,
        "delta": s.delta,
        "choices": [asdict(choice) for choice in choices(plan)],
        "rho": rho_of(plan, public),
        "first_step": None if first is None else _first_step_facts(first),
        **({} if plan.sums is None else {"bits": sum_bits(plan, public)}),
        **_cost(plan, trial),
    }


def _first_step_facts(first: FirstStep) -> dict[str, Any]:
    return {
        "signal": first.signal,
        "rows": first.rows,
        "of_run": first.of_run,
        "words": first_step_words(first),
    }


def _message(plan: Plan, trial: Trial, kept: int) -> Message:
    """The bytes of a client; bytes up are those of the mean round, which has ``kept`` values.

    The trial has the first round. If its frame has other values, bytes change in proportion.
    """
    last = max(number for number, _ in trial.rounds)
    up = dict(trial.per_client("up", 1))
    kept_first = kept
    if _changes(plan):
        kept_first = plan.initial.server().public.frame(1, updates=0).wire.kept
    additional = up["values"] * (kept / kept_first - 1)
    return Message(
        up={level: up[level] + additional for level in LEVELS},
        first=trial.per_client("down", 1),
        later=trial.per_client("down", last),
    )


def _changes(plan: Plan) -> bool:
    """Whether the mask's rate changes over rounds, and the first frame follows from the weights."""
    mask = plan.method.mask
    return bool(mask.cooling or mask.sparsity_from) and plan.method.carrier.source is None


def _totals(plan: Plan, trial: Trial, message: Message) -> tuple[int, int]:
    """Payload bytes down and up in the whole run, if nobody fails."""
    down = up = 0.0
    for clients, replies, missed in _rounds(plan):
        each = message.first["payload"] if missed is None else _down(plan, message, missed)
        down += clients * each
        up += replies * message.up["payload"]
    for number, _ in trial.rounds:
        if number == 0:  # the pruning round, of all clients
            down += len(plan.terms) * trial.per_client("down", 0)["payload"]
            up += len(plan.terms) * trial.per_client("up", 0)["payload"]
    return round(down), round(up)


def _rounds(plan: Plan) -> Iterator[tuple[float, float, int | None]]:
    """For clients of a round: their number, the number of replies, and the updates they missed.

    None is an unknown number of missed updates.
    """
    conditions, rounds = plan.clients.participation, plan.schedule.rounds
    if plan.unit.at_server:  # the draw is secret: the expected number
        expected = float(plan.settings.clients_per_round)
        for _ in range(rounds):
            yield expected, expected * (1 - conditions.dropout), None
        return
    version_of: dict[int, int] = {}  # the number of updates in each client's replica
    for round, selected in enumerate(conditions.schedule(rounds), 1):
        leaving = conditions.leaving(round)
        for client in selected:
            stays = client not in leaving
            yield 1, float(stays), round - 1 - version_of.get(client, 0)
            if stays:
                version_of[client] = round - 1


def _down(plan: Plan, message: Message, missed: int) -> float:
    """Payload bytes to a client that missed so many updates: these, or a smaller whole model."""
    if plan.settings.downlink == "full":
        return message.later["payload"]
    step = message.later["payload"] - message.first["payload"]
    whole = 4 * plan.initial.dense_parameters
    return message.first["payload"] + min(missed * step, whole)


def _phones(
    plan: Plan, message: Message, values: int, blocks: int, phones: int, dropout: float
) -> dict[str, Any]:
    """The numbers of a federation of phones, each like the mean client of the plan.

    All phones are asked in every round, and a share (``dropout``) leaves. In a secure sum, values
    get wider and the rest of a payload longer, see ``_secure_growth``.
    """
    stay = max(1, round(phones * (1 - dropout)))
    rounds = plan.schedule.rounds
    mechanism = plan.method.mechanism
    up, first, later = (part["payload"] for part in (message.up, message.first, message.later))
    if plan.sums is not None:
        wider, denser = _secure_growth(plan, values, blocks, phones, stay)
        up = message.up["values"] * wider + (up - message.up["values"]) * denser
        first, later = (
            part["values"] + (part["payload"] - part["values"]) * denser
            for part in (message.first, message.later)
        )
    ratio = None
    if mechanism.adds_noise and plan.settings.trust == "client":
        ratio = rho(
            mechanism,
            [terms.noise_multiplier * terms.weight for terms in plan.terms],
            clients_per_round=stay,
            values=values,
            blocks=blocks,
            expected_batch=plan.divisor / plan.settings.clients_per_round * stay,
        )
    return {
        "phones": phones,
        "dropout": dropout,
        "rho": ratio,
        "uplink_bytes_a_round": round(stay * up),
        "downlink_bytes_a_round": round(phones * later),
        "uplink_bytes": round(rounds * stay * up),
        "downlink_bytes": round(phones * (first + (rounds - 1) * later)),
    }


def _secure_growth(
    plan: Plan, values: int, blocks: int, phones: int, stay: int
) -> tuple[float, float]:
    """Growth from the plan's secure sum to one of so many phones: bits of a value, neighbours.

    A sum of K clients needs more than (K + t) / 2 survivors, where t may collude.
    """
    planned = plan.sums
    assert planned is not None
    t = planned.colluders
    of_phones = replace(
        planned,
        clients=phones,
        min_survivors=min(phones, max(stay, (phones + t) // 2 + 1)),
        expected_examples=planned.expected_examples / planned.clients * phones,
    )
    mechanism = plan.terms[0].mechanism(plan.method.mechanism)
    bits, degrees = list[int](), list[int]()
    for sums in (planned, of_phones):
        shared = replace(mechanism, noise_share=sums.contributors**-0.5)
        bits.append(plan_release(sums, shared, values=values, blocks=blocks).grid.bits)
        graph = plan_graph(sums.clients, min_survivors=sums.min_survivors, colluders=t)
        degrees.append(graph.degree)
    return bits[1] / bits[0], degrees[1] / degrees[0]


def worst(plan: Plan) -> tuple[float, float]:
    """The largest epsilon of a client that takes part in all its rounds, and its sigma."""
    if not plan.method.mechanism.private or plan.settings.reproducible:
        return math.inf, max(terms.noise_multiplier for terms in plan.terms)
    blocks = count_blocks(plan)
    multipliers: dict[tuple[Event, ...], float] = {}
    for terms, steps in set(zip(plan.terms, plan.clients.steps, strict=True)):
        first, *pruning = events_of(plan, terms, blocks)
        counted = plan.clients.accounted_steps(terms.num_examples, steps)
        training = [replace(first, steps=counted)] if steps else []
        multipliers[(*training, *pruning)] = terms.noise_multiplier
    population = sorted(multipliers, key=repr)
    spent = spread(population, delta=plan.settings.delta)
    return spent.largest, multipliers[population[spent.worst]]


def _cost(plan: Plan, trial: Trial) -> dict[str, Any]:
    """Time of a step and of the run on this machine, and memory: from one measured step."""
    seconds, rows, memory = time_step(plan)
    batch = plan.clients.largest_batch
    s = with_engine(plan)[0].settings
    step = seconds * max(batch, 1.0) / rows
    client = plan.local.steps * step + trial.seconds / trial.clients
    workers = min(s.workers or processors(), s.clients_per_round) if s.engine != "local" else 1
    whole = plan.schedule.rounds * s.clients_per_round * client
    return {
        "step": {
            "seconds": step,
            "batch": batch,
            "measured_rows": rows,
            "measured_seconds": seconds,
        },
        "seconds": whole / workers,
        "workers": workers,
        "memory_bytes": memory,
        "device": plan.device,
        "microbatch": {"examples": plan.local.microbatch_size, **asdict(memory_of(plan))},
    }


NOTE = (
    "Bytes are payload: arrays of a message, as in bytes.csv. They are exact for values of fixed "
    "width (float32, bfloat16), and about right where sizes depend on values. Time is without "
    "evaluation, on this machine."
)


def plan_command(
    given: dict[str, Any], console: Console, *, phones: int, dropout: float, as_json: bool
) -> None:
    """``fedlsg plan``. It refuses settings as ``fedlsg run`` does, with the same messages."""
    settings = from_root(resolve(given))
    callbacks = named(settings.callbacks)
    progress = Console(stderr=True) if as_json else console  # stdout has only the JSON
    with working(progress, "loading data, calibrating noise") as say:
        plan = ready_plan(
            settings,
            progress=say,
            given=words_given(given),
            loaded=data_for_plan(settings, say),
            callbacks=callbacks,
        )
        say("two rounds on public rows")
        facts = facts_of(plan, phones=phones, dropout=dropout)
    if as_json:
        finite = {name: "inf" if value == math.inf else value for name, value in facts.items()}
        return print_whole(json.dumps(finite, indent=2, allow_nan=False), console)
    console.print(facts_shown(_words(facts)))
    for line in (NOTE, *plan.for_owner, *plan.notes, alike_line(plan.clients.names)):
        if line:
            print_note(line, console)


def _words(facts: Mapping[str, Any]) -> dict[str, str]:
    """A line for each fact."""
    values, sizes, phones, step = facts["values"], facts["bytes"], facts["phones"], facts["step"]
    memory, microbatch = facts["memory_bytes"], facts["microbatch"]
    epsilon = (
        f"epsilon {epsilon_words(facts['epsilon_max'], 3)} at delta {facts['delta']:g}, for "
        f"{unit_in(facts).protects}"
    )
    first = (
        ""
        if sizes["down_first"] == sizes["down"]
        else f"; in its first {_bytes(sizes['down_first'])}"
    )
    whose = ""
    if facts["choices"]:
        whose = " for the client with the largest epsilon"
        least = epsilon_words(facts["choices"][0]["epsilon"], 3)
        epsilon = f"{epsilon}; each client has its own, {least} the smallest"
    noise = f"sigma {facts['noise_multiplier']:.4g}{whose}{_rho(facts['rho'])}"
    lines = {
        "workload": f"{facts['workload']}, model {facts['model']}",
        "method": f"{facts['method']}, unit {facts['unit']}, trust {facts['trust']}",
        "federation": f"{facts['clients_per_round']} of {facts['clients']} clients a round, "
        f"{facts['rounds']} rounds",
        "clients": facts.get("dealt", ""),
        "values": f"{values['sent']:,} of {values['dense']:,} a client and round"
        + (f", on average: {values['growth']}" if values["growth"] else ""),
        "up": f"{_bytes(sizes['up'])} a client and round",
        "down": f"{_bytes(sizes['down'])} a client and round{first}",
        "whole run": f"{human_bytes(facts['uplink_bytes'])} up, "
        f"{human_bytes(facts['downlink_bytes'])} down",
        "deployment": _deployment(facts),
        f"{phones['phones']:,} phones": (
            f"{phones['dropout']:.0%} leave: {human_bytes(phones['uplink_bytes_a_round'])} up and "
            f"{human_bytes(phones['downlink_bytes_a_round'])} down a round, "
            f"{human_bytes(phones['uplink_bytes'])} and {human_bytes(phones['downlink_bytes'])} in "
            "all" + ("" if phones["rho"] is None else f"; rho {phones['rho']:.3g}")
        ),
        "privacy": epsilon if facts["private"] else "NOT PRIVATE: no epsilon is claimed",
        "noise": noise if facts["noise_multiplier"] else "none",
        "accuracy": (facts["first_step"] or {}).get("words", ""),
        **{choice["name"]: _choice(choice) for choice in facts["choices"]},
        "isolation": facts["own"] or f"{facts['isolation']}: library code alone",
        "one step": f"{step['seconds']:.3g} s at a batch of {step['batch']:.4g} (of "
        f"{step['measured_rows']} rows)",
        "time": f"about {duration(facts['seconds'])} with {facts['workers']} at work on "
        f"{facts['device']}",
        "memory": ""
        if memory is None
        else f"{human_bytes(memory)} at the peak of a step, data included",
        "microbatch": f"{microbatch['examples']} examples; one takes about "
        f"{human_bytes(microbatch['activations'])} of activations and "
        f"{human_bytes(microbatch['gradients'])} of gradients, of "
        f"{human_bytes(microbatch['budget'])}",
    }
    return {name: words for name, words in lines.items() if words}


def _deployment(facts: Mapping[str, Any]) -> str:
    """The bytes that Flower itself adds in a deployment, in words."""
    added, payload = facts["deployment_bytes"], facts["bytes"]["up"]["payload"]
    words = (
        f"Flower adds about {human_bytes(added['up'])} up and {human_bytes(added['down'])} down a "
        "client and round"
    )
    if added["up"] <= payload:
        return words
    return f"{words}: MORE than the payload up, so a smaller payload saves little there"


BY_NOISE_WORDS = " (weighting=noise, for clients whose data are alike)"


def _choice(choice: Mapping[str, Any]) -> str:
    """The clients that chose one epsilon, in words."""
    epsilon, most = (epsilon_words(choice[name], 3) for name in ("epsilon", "most"))
    spent = f"epsilon {epsilon}" if epsilon == most else f"epsilon {epsilon} to {most}"
    delta, most_delta = choice["delta"], choice["most_delta"]
    at = f"delta {delta:g}" if delta == most_delta else f"delta {delta:g} to {most_delta:g}"
    words = (
        f"{choice['clients']} clients, {spent} at {at}, noise of the mean {choice['noise']:.3g} C, "
        f"largest client {choice['share']:.0%} of the weight"
    )
    return f"{words}{BY_NOISE_WORDS}" if str(choice["name"]).endswith("by noise") else words


def _rho(rho: float | None) -> str:
    return f", rho {rho:.3g}" if rho else ""


def _bytes(sizes: Mapping[str, float]) -> str:
    """Bytes of a message at three levels, in words."""
    return (
        f"{sizes['payload']:,.0f} bytes ({sizes['values']:,.0f} of values; {sizes['wire']:,.0f} on "
        "the wire)"
    )
