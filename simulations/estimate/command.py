"""The command ``fedlsg plan``, without the parsing of its options."""

import json
import math
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from fedlsg.units import unit_in
from simulations.callbacks.named import named
from simulations.estimate.facts import facts_of
from simulations.plan.start import from_root
from simulations.report.terminal import facts_shown, print_note, print_whole
from simulations.report.words import duration, epsilon_words
from simulations.server.ready import ready_plan
from simulations.settings.published import resolve
from simulations.settings.settings import from_mapping, names_given

NOTE = (
    "Bytes are payload: arrays of a message, as in bytes.csv. They are exact for values of fixed width (float32, "
    "bfloat16), and about right where sizes depend on values. Time is without evaluation, on this machine."
)


def plan_command(given: dict[str, Any], console: Console, *, phones: int, dropout: float, as_json: bool) -> None:
    """``fedlsg plan``: it refuses what ``run`` refuses, in the same words. Nothing is charged, and no run begins."""
    settings = from_mapping(from_root(resolve(given)))
    named(settings.callbacks)
    with console.status("loading data, calibrating noise") as status:
        plan = ready_plan(settings, progress=status.update, given=names_given(given))
        status.update("two rounds on public rows")
        facts = facts_of(plan, phones=phones, dropout=dropout)
    if as_json:
        endless = {name: "inf" if value == math.inf else value for name, value in facts.items()}
        return print_whole(json.dumps(endless, indent=2, allow_nan=False), console)
    console.print(facts_shown(_words(facts)))
    print_note(NOTE, console)


def _words(facts: Mapping[str, Any]) -> dict[str, str]:
    """A line for each fact."""
    values, sizes, phones, step = facts["values"], facts["bytes"], facts["phones"], facts["step"]
    memory = facts["memory_bytes"]
    epsilon = (
        f"epsilon {epsilon_words(facts['epsilon_max'], 3)} at delta {facts['delta']:g}, for {unit_in(facts).protects}"
    )
    first = "" if sizes["down_first"] == sizes["down"] else f"; in its first {_bytes(sizes['down_first'])}"
    noise = f"sigma {facts['noise_multiplier']:.4g}{_rho(facts['rho'])}"
    found = {
        "workload": f"{facts['workload']}, model {facts['model']}",
        "method": f"{facts['method']}, unit {facts['unit']}, trust {facts['trust']}",
        "federation": f"{facts['clients_per_round']} of {facts['clients']} clients a round, {facts['rounds']} rounds",
        "values": f"{values['sent']:,} of {values['dense']:,} a client and round",
        "up": f"{_bytes(sizes['up'])} a client and round",
        "down": f"{_bytes(sizes['down'])} a client and round{first}",
        "whole run": f"{_size(facts['uplink_bytes'])} up, {_size(facts['downlink_bytes'])} down",
        f"{phones['phones']:,} phones": (
            f"{phones['dropout']:.0%} leave: {_size(phones['uplink_bytes_a_round'])} up and "
            f"{_size(phones['downlink_bytes_a_round'])} down a round, {_size(phones['uplink_bytes'])} and "
            f"{_size(phones['downlink_bytes'])} in all"
            + ("" if phones["rho"] is None else f"; rho {phones['rho']:.3g}")
        ),
        "privacy": epsilon if facts["private"] else "NOT PRIVATE: no epsilon is claimed",
        "noise": noise if facts["noise_multiplier"] else "none",
        "one step": f"{step['seconds']:.3g} s at a batch of {step['batch']:.4g} (of {step['measured_rows']} rows)",
        "time": f"about {duration(facts['seconds'])} with {facts['workers']} at work on {facts['device']}",
        "memory": "" if memory is None else f"{_size(memory)} at the peak of a step, data included",
    }
    return {name: words for name, words in found.items() if words}


def _rho(found: float | None) -> str:
    return "" if not found else f", rho {found:.3g}"


def _bytes(sizes: Mapping[str, float]) -> str:
    return f"{sizes['payload']:,.0f} bytes ({sizes['values']:,.0f} of values; {sizes['wire']:,.0f} on the wire)"


def _size(number: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if number >= unit:
            return f"{number / unit:.4g} {name}"
    return f"{number:.0f} bytes"
