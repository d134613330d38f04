"""The checker of settings: facts about a run, against the rules that all settings declare.

A rule (``fedlsg.config.rules``) is checked as soon as its facts are known: before data are loaded,
after gaps are filled, or after the method is built.
"""

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from types import MappingProxyType

import torch

from fedlsg import strategies
from fedlsg.config.mechanisms import DP, KINDS, is_silent
from fedlsg.config.partitions import SCHEMES
from fedlsg.config.rules import Facts, Rule, check_names, check_rules
from fedlsg.config.units import unit_named
from fedlsg.method import Method
from fedlsg.payload import all_codecs, check_fits, find_codec, keeps_memory
from fedlsg.secure_sum import plan_graph
from fedlsg.simulations.settings.any_run import Resolved, Settings
from fedlsg.simulations.settings.automatic import device_of
from fedlsg.simulations.settings.participation import availability_of, spread_of
from fedlsg.simulations.settings.resolve import fill_codecs, uplink_codec
from fedlsg.simulations.settings.settings import (
    AUTO,
    RUN,
    all_settings,
    codec_settings,
    from_values,
)
from fedlsg.simulations.workloads import LoadedWorkload

FACTS: Mapping[str, str] = MappingProxyType(
    {
        "augmentation": "images that can be changed at random",
        "away": "availability below 1 ({availability})",
        "chooses": "positions that clients choose ({method!r})",
        "chosen_method": "method=auto",
        "classes": "a workload with classes",
        "deployed": "a deployment",
        "down_grid_from_noise": "a downlink codec whose grid comes from the noise",
        "embeds": "embeddings ({method!r})",
        "exact": "{exact_codecs} (got {codec})",
        "factors": "factors ({method!r})",
        "goes_down": "a codec that updates may have",
        "grid_from_noise": "a codec whose grid comes from the noise ({codec})",
        "known_noise": "a codec whose noise has a known deviation (got {codec})",
        "memory": "a memory of what was not sent ({method!r}, {codec})",
        "noise": "a mechanism that adds noise",
        "private": "privacy",
        "prunes_by_data": "pruning by data ({method!r})",
        "whole": "unit=client",
        "of_examples": "unit=example",
        "persons": "a person as the unit (unit={unit})",
        "trace": "availability as a trace ({availability})",
    }
)
"""Words for facts other than settings, in messages. Rules may name only these, settings and
``codec_lists``; ``facts_of`` gives their values in a run."""

SHARE = 0.5
"""An example of a client's share of the noise, below 1, as methods have it in sums."""
OWN_NOISE = (
    "every client of a sum gets the next weights and knows its own noise, so with colluders=0 "
    "epsilon would be too small against each of them: leave colluders out, or give 1 or more (a "
    "run that began with colluders=0 cannot be continued: start a new one)"
)


def all_rules() -> list[Rule]:
    """The rules of all settings, in the order of config.toml, then those of codecs' settings.

    Raises ValueError for a rule on an unknown fact.
    """
    settings = all_settings()
    of_codecs = [
        Rule(
            of=name,
            needs=f"codec={codec.name} or downlink_codec={codec.name}",
            why=f"it is one of {codec.name} alone",
        )
        for codec in all_codecs().values()
        for name in codec.settings
    ]
    rules = [*(rule for setting in settings.values() for rule in setting.rules), *of_codecs]
    check_names(rules, {**settings, **FACTS, **codec_lists()})
    return rules


def facts_of(
    s: Settings,
    *,
    method: Method | None = None,
    workload: LoadedWorkload | None = None,
    deployed: bool = False,
) -> Facts:
    """The known facts about a run, by name; a gap that a workload may still fill is left out."""
    known = {f.name: getattr(s, f.name) for f in fields(s) if f.name != "parameters"}
    known |= s.parameters
    known["chosen_method"] = s.method == AUTO or "method" in (s.auto or "").split()
    known |= {"deployed": deployed, **unit_facts(s.unit)}
    if isinstance(s, Resolved):
        availability = availability_of(s)
        known |= {"trace": isinstance(availability, str), "away": availability != 1.0}
    else:
        known = {name: value for name, value in known.items() if value is not None}
    if workload is not None:
        known |= {
            "classes": workload.num_classes is not None,
            "augmentation": workload.augment is not None,
        }
    return {**known, **codec_facts(s), **({} if method is None else method_facts(s, method))}


def unit_facts(name: str) -> Facts:
    """Facts about the unit: whether it is a client, or an example, or a person instead."""
    unit = unit_named(name)
    return {"whole": unit.whole, "of_examples": not unit.whole, "persons": unit.persons}


def codec_facts(s: Settings) -> Facts:
    """Facts about the codecs of a run."""
    up, down = find_codec(s.codec), find_codec(s.downlink_codec or s.codec)
    return {
        "exact": up.exact,
        "grid_from_noise": up.grid_from_noise,
        "known_noise": up.known_noise,
        "goes_down": down.goes_down,
        "down_grid_from_noise": down.grid_from_noise,
        **codec_lists(),
    }


def codec_lists() -> Facts:
    """Names of codecs for messages."""
    codecs = all_codecs().values()
    return {
        "exact_codecs": "codec=" + " or ".join(codec.name for codec in codecs if codec.exact),
        "down_codecs": ", ".join(codec.name for codec in codecs if codec.goes_down),
        "down_floats": ", ".join(
            codec.name for codec in codecs if codec.goes_down and not codec.grid_from_noise
        ),
    }


def method_facts(s: Settings, method: Method) -> Facts:
    """Facts about a method."""
    return {
        "method": method.name,
        "mechanism": method.mechanism.kind,
        "clip": method.mechanism.clip,
        "noise": method.mechanism.adds_noise,
        "private": method.mechanism.private,
        "chooses": method.compression.chooses,
        "embeds": method.carrier.form.embeds,
        "factors": not method.carrier.adds_up,
        "memory": keeps_memory(method, uplink_codec(s)),
        "prunes_by_data": method.prune.reads_data,
    }


def check_given(s: Settings, *, deployed: bool = False) -> None:
    """Raise ValueError for settings that are incompatible for any data; nothing is loaded yet.

    The method does not exist yet, so the three facts of its mechanism follow from the kind. An
    unknown kind is refused when the method is built.
    """
    default = DP.name if s.method == AUTO else strategies.default_mechanism(s.method)
    kind = s.parameters.get("mechanism") or default
    known = {**facts_of(s, deployed=deployed), "mechanism": kind, "noise": not is_silent(kind)}
    check_rules(all_rules(), known | {"private": kind in KINDS and KINDS[kind].private}, FACTS)


def check(s: Resolved, workload: LoadedWorkload) -> None:
    """Raise ValueError for settings out of range, incompatible, or impossible on this machine."""
    for name, declared in RUN.items():
        declared.check(getattr(s, name))
    spread_of(s)
    check_rules(all_rules(), facts_of(s, workload=workload), FACTS)
    if (
        device_of(s.device) == "cuda"
        and s.precision == "bfloat16"
        and not torch.cuda.is_bf16_supported()
    ):
        raise ValueError(
            "precision='bfloat16' was requested, but this CUDA device has no bfloat16; "
            "use precision='float32'"
        )
    if s.partition in SCHEMES and SCHEMES[s.partition].reads_classes:
        workload.classes(f"partition={s.partition}")
    if not 1 <= s.clients_per_round <= s.clients:
        raise ValueError(
            f"expected 1 <= clients_per_round={s.clients_per_round} <= clients={s.clients}: no "
            f"more clients than there are take part in a round; give {s.clients} or fewer"
        )
    if not 1 <= s.min_survivors <= s.clients_per_round:
        raise ValueError(
            f"expected 1 <= min_survivors={s.min_survivors} <= "
            f"clients_per_round={s.clients_per_round}"
        )
    if s.trust == "secure":
        check_sums(s)


def check_method(s: Resolved, method: Method, *, deployed: bool = False) -> None:
    """Raise ValueError for settings or a codec that are incompatible with the method."""
    check_rules(all_rules(), facts_of(s, method=method, deployed=deployed), FACTS)
    check_fits(uplink_codec(s), method)


def idle(s: Resolved, method: Method, given: Collection[str]) -> dict[str, str]:
    """The given settings that have no effect, each with the reason.

    ``s``: all settings, with the method's own defaults. ``given``: names of those that a user gave.
    """
    known = facts_of(s, method=method)
    rules = [
        rule for rule in all_rules() if rule.idle and rule.name in given and rule.broken(known)
    ]
    # of several reasons for a setting the first one counts
    return {rule.name: rule.message(known, FACTS) for rule in reversed(rules)}


def without_effect(values: Mapping[str, object]) -> set[str]:
    """Names of a run's recorded settings that have no effect; empty for an unknown method."""
    settings = from_values(values)
    codecs = codec_settings()
    of_method = {name: value for name, value in settings.parameters.items() if name not in codecs}
    try:
        method = strategies.recipe(settings.method, **of_method)
    except ValueError:
        return set()
    known = {**dict.fromkeys(all_settings()), **facts_of(settings, method=method)}
    return {rule.name for rule in all_rules() if rule.idle and rule.broken(known)}


def check_sums(s: Resolved) -> None:
    """Raise ValueError, naming the settings, if no secure sum is possible with them.

    With n clients, at least m survivors and t colluders: t >= 1, m >= t + 1, 2 m > n + t.
    """
    n, m, t = s.clients_per_round, s.min_survivors, s.colluders or 0
    setting = f"trust=secure with clients_per_round={n}, min_survivors={m}, colluders={t}"
    if t < 1:
        raise ValueError(f"{setting}: {OWN_NOISE}")
    if m - t < 1:
        raise ValueError(
            f"{setting}: expected min_survivors >= colluders + 1 = {t + 1}, so that every sum has "
            f"an honest client, got {m}: {_raise_or(t + 1, n, 'lower colluders')}"
        )
    if 2 * m <= n + t:
        raise ValueError(
            f"{setting}: expected min_survivors > (clients_per_round + colluders) / 2 = "
            f"{(n + t) / 2:g}, got {m}: otherwise the server could ask for the sums of two "
            "separate sets of clients: "
            f"{_raise_or((n + t) // 2 + 1, n, 'lower colluders or clients_per_round')}"
        )
    plan_graph(n, min_survivors=m, colluders=t)


def _raise_or(least: int, most: int, else_do: str) -> str:
    """The advice for too few survivors if ``most`` clients are selected."""
    return f"give -c min_survivors={least} or more, at most {most}" if least <= most else else_do


def refuse_other_units(s: Settings, what: str) -> None:
    """Raise ValueError for a unit other than one example; ``what`` works on single examples."""
    if not unit_named(s.unit).single:
        raise ValueError(
            f"{what} works on single examples: it needs unit=example, got unit={s.unit}"
        )


def refuse_groups(s: Settings, what: str) -> None:
    """Raise ValueError for a unit of several examples; ``what`` is made for other units."""
    if unit_named(s.unit).examples > 1:
        raise ValueError(
            f"{what} is for one example or one client: it needs unit=example or client, got "
            f"unit={s.unit}"
        )


def refuse_shuffled(s: Settings, what: str) -> None:
    """Raise ValueError for shuffled batches; ``what`` is made for Poisson batches."""
    if s.sampling == "shuffle":
        raise ValueError(
            f"{what} takes examples out of a client's data, which would move all others to other "
            "batches: it needs sampling=poisson, got sampling=shuffle"
        )


def refusal(given: Mapping[str, object]) -> str | None:
    """Why these typed settings are incompatible with their method; None if they are not.

    Data are not known here. A comparison leaves such a method out instead of failing. Other errors
    of the settings (a rank of 0) are reported by the run itself.
    """
    try:
        settings = fill_codecs(from_values(given))
        parameters = {
            name: value
            for name, value in settings.parameters.items()
            if name not in codec_settings()
        }
        method = strategies.recipe(settings.method, **parameters)
    except ValueError:
        return None
    # a comparison gives these only to methods with noise: they alone must not refuse a method
    settings = replace(
        settings, epsilon=None, client_epsilons=None, client_deltas=None, noise_multiplier=None
    )
    try:
        if settings.trust in ("secure", "aggregate"):
            method = strategies.recipe(settings.method, **parameters | {"noise_share": SHARE})
        check_rules(all_rules(), facts_of(settings, method=method), FACTS)
        check_fits(uplink_codec(settings), method)
    except ValueError as error:
        return str(error)
    return None


def left_out(refused: Mapping[str, str]) -> list[str]:
    """A line for each reason, with the methods that are left out for it.

    ``refused``: reasons by the name of a method.
    """
    # reasons that differ by the method's name alone share a line, with the first method's reason
    groups: dict[str, list[str]] = {}
    for name, reason in refused.items():
        groups.setdefault(reason.replace(repr(name), "METHOD"), []).append(name)
    return [f"left out: {', '.join(names)}: {refused[names[0]]}" for names in groups.values()]


def all_refused(refused: Mapping[str, str]) -> ValueError:
    """The error if no method is left."""
    return ValueError("; ".join(left_out(refused)).replace("left out: ", "no method is left: ", 1))
