"""The words for facts of a run, in the terminal and on every page; and its result in one sentence.

The sentence says only what the run supports: it says if the run has no privacy, is in test mode, or
is at the level of guessing.
"""

import math
import re
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from fedlsg.config.units import unit_in
from fedlsg.simulations.storage.messages.links import LINKS
from fedlsg.simulations.storage.results import Result, Summary
from fedlsg.simulations.workloads.base.split import beats_chance

NOT_PRIVATE = "NOT PRIVATE"
REPRODUCIBLE = f"{NOT_PRIVATE}: the noise is reproducible"
AT_SERVER = (
    "of the weights of all rounds: the server is trusted, it sees updates without noise and adds "
    "the noise; who, and how many, took part is its secret"
)
NO_EPSILON = f"{NOT_PRIVATE}: no finite epsilon is claimed"
SHARED = ("secure", "aggregate")
"""Kinds of trust in which clients share the noise of a sum."""
TEST_MODE = "in test mode: the noise is reproducible, so nothing is private"
WITHOUT = "with no privacy"
SAME = 0.05
"""Ratios of bytes that are nearer to 1 than this are called equal."""
EXACT_LOSS = 1e6
"""A larger loss is written with an exponent."""


def outcome(summary: Summary) -> dict[str, str]:
    """Facts of a finished run by their names: what it reached, and what it cost."""
    rho, source, empty = (summary.get(name) for name in ("rho", "probe_source", "empty_rounds"))
    seconds = summary.get("transfer_seconds", {})
    links = (
        f"{value:.3g} s on {LINKS[name].short}" for name, value in seconds.items() if name in LINKS
    )
    facts = {
        "features": features_line(summary),
        "carriers": f"probed with public inputs: {source}" if source else "",
        **tested(summary),
        "clients": by_client_line(summary),
        "privacy": privacy_line(summary),
        "readers": readers_line(summary),
        "noise": f"rho {rho:.3g} (length of the noise in a step's mean gradient, in clip norms)"
        if rho
        else "",
        **_sent(summary),
        "transfer": ", ".join(links),
        "empty rounds": f"{empty} of {summary['rounds']} brought no update" if empty else "",
        "time": f"{duration(summary['wall_seconds'])} on {summary['device']}"
        if "wall_seconds" in summary
        else "",
        **simulated_facts(summary),
    }
    return {name: words for name, words in facts.items() if words}


def _sent(summary: Summary) -> dict[str, str]:
    """Bytes up and down, compared with dense updates; empty if the server keeps them secret."""
    if "uplink_bytes" not in summary:
        return {}
    dense = float(summary["uplink_bytes_dense"])
    return {
        "uplink": f"{human_bytes(summary['uplink_bytes'])} of payload, "
        f"{against_dense(dense, summary['uplink_bytes'])} "
        f"({human_bytes(dense)}){wire_words(summary, 'uplink')}",
        "downlink": f"{human_bytes(summary['downlink_bytes'])} of "
        f"payload{wire_words(summary, 'downlink')}",
    }


def tested(summary: Summary) -> dict[str, str]:
    """The fact about the test split: accuracy if there are classes, loss, and metrics."""
    loss = float(summary["loss"])
    words = f"loss {loss:.3f}" if abs(loss) < EXACT_LOSS else f"loss {loss:.3g}"
    for name, value in summary.get("metrics", {}).items():
        words += f", {name} {float(value):.4g}"
    if summary["accuracy"] is None:
        return {"test": words}
    return {"test accuracy": f"{percent(summary['accuracy'])}, {words}"}


def counted(number: int, what: str) -> str:
    """A number of things: "1 method", "2 methods"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def printable(text: object) -> str:
    """Text of somebody else for a terminal, with control characters as their codes.

    So are characters that change the direction of text.
    """
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def client_words(row: Mapping[str, Any]) -> str:
    """A client of ``by_client`` in a sentence: its name, or its number.

    A name without a letter is quoted, because it could be a number.
    """
    name = row.get("name")
    if name is None:
        return f"client {row['client']}"
    shown = printable(name)
    return shown if any(map(str.isalpha, shown)) else f"client {shown!r}"


def named(text: str, names: Sequence[str] | None) -> str:
    """A message for the owner of the clients, with names in place of their numbers.

    Numbers are in "client 3", "clients 0 and 1" and "client 0 2: why; 1: why". Those without a name
    stay.
    """
    if not names:
        return text

    def to_names(match: re.Match[str]) -> str:
        numbers = list(map(int, re.findall(r"\d+", match.group())))
        if max(numbers) >= len(names):
            return match.group()
        words = [client_words({"client": client, "name": names[client]}) for client in numbers]
        return " and ".join(words) if " and " in match.group() else ", ".join(words)

    return NUMBERED.sub(to_names, text)


NUMBERED = re.compile(
    r"(?:\bclients? |(?<=; ))\d+(?: \d+)*(?=: )"
    r"|\bclients \d+(?:(?: and |, )\d+)*(?!\d|\.\d)"
    r"|\bclient \d+(?!\d|\.\d)"
)
"""Numbers of clients in messages."""


def by_client_line(summary: Summary) -> str:
    """The spread of the accuracy over clients, on public test rows like theirs, in words.

    Empty if it was not measured.
    """
    said = summary.get("accuracy_by_client")
    if not said:
        return ""
    spread = [percent(said[name]) for name in ("mean", "percentile_10", "worst")]
    worst = [f" ({client_words(row)})" for row in summary.get("by_client", ())[:1]]
    return (
        "accuracy on parts of the test split like theirs: mean {}, 10th percentile {}, worst {}"
    ).format(*spread) + "".join(worst)


def features_line(summary: Summary) -> str:
    """The public features that the model reads; empty for a model of the inputs themselves."""
    said = summary.get("features")
    if not said:
        return ""
    kind = f"{said['name']} on {said['axes']:,} axes" if "axes" in said else said["name"]
    return f"{kind} (public, frozen), {said['values']:,} values an example"


def wire_words(summary: Summary, direction: str) -> str:
    """The bytes of the messages with their framing, compared with dense updates in that framing.

    The comparison is left out if payloads are about as large. Empty for runs that did not count.
    """
    count = summary.get(f"{direction}_bytes_wire")
    if count is None:
        return ""
    words = f"; {human_bytes(count)} on the wire"
    sent, dense = (summary.get(f"{direction}_bytes{form}") for form in ("", "_dense"))
    if not sent or dense is None or abs(dense / sent - 1) < SAME:
        return words
    return f"{words}, {against_dense(dense + count - sent, count)} there"


def against_dense(dense: float, sent: float) -> str:
    """How the sent bytes compare with dense updates."""
    if not sent:
        return "dense updates would be larger"
    words = (
        "as large as dense updates",
        "{} smaller than dense updates",
        "{} larger than dense updates",
    )
    return _compared(dense / sent, *words)


def fewer_bytes(saved: float | None) -> str:
    """The bytes of clients compared with dense updates, after "with"; empty if none were sent."""
    if saved is None or not saved > 0:
        return ""
    words = ("as many uplink bytes as", "{} fewer uplink bytes than", "{} more uplink bytes than")
    return f"with {_compared(saved, *words)} dense updates"


def _compared(ratio: float, equal: str, less: str, more: str) -> str:
    """One of the texts; ratios nearer to 1 than ``SAME`` are called equal."""
    if abs(ratio - 1) < SAME:
        return equal
    return less.format(f"{ratio:.1f}x") if ratio > 1 else more.format(f"{1 / ratio:.1f}x")


def epsilon_words(value: float, digits: int = 3) -> str:
    """An epsilon for people, rounded up: it is never less than what was spent."""
    if not math.isfinite(value):
        return f"{value}"
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING))


def privacy_line(summary: Summary) -> str:
    """Epsilon, delta, of whom and under which trust; NOT PRIVATE if nothing is claimed."""
    epsilon = float(summary["epsilon_max"])
    if not summary["private"]:
        return REPRODUCIBLE if summary["reproducible"] else NO_EPSILON
    unit, its = unit_in(summary), "its " if has_own_noise(summary) else ""
    if unit.whole:
        of = f"{unit.level}: of {unit.protects}"
    else:
        median = epsilon_words(float(summary["epsilon_median"]))
        of = (
            f"each of {summary['clients']} clients at most"
            if median == epsilon_words(epsilon) and not its
            else f"largest of {summary['clients']} clients{of_whom(summary)}, median {median}"
        )
        of += unit.level and f", {unit.level}"
    line = (
        f"epsilon {epsilon_words(epsilon)} at delta {summary['delta']:g} ({of}; {its}sigma "
        f"{summary['noise_multiplier']:.4g})"
    )
    if summary.get("adjacency") == "zero-out":
        line += (
            "; of an example whose gradient becomes 0 (zero-out), shuffled batches, no "
            "amplification"
        )
    if summary["trust"] == "server":
        line += f"; {AT_SERVER}"
    if summary["trust"] == "aggregate":
        line += "; only the sum is private: an ideal secure aggregation is assumed and not provided"
    if summary["trust"] == "secure":
        line += f"; {secure_words(summary['secure_sum'])}"
    return line


def has_own_noise(summary: Summary) -> bool:
    """Whether clients have noise of their own, for epsilons or deltas of their own."""
    return any("weight" in row for row in summary.get("by_client") or ())


def of_whom(summary: Summary) -> str:
    """The client with the largest epsilon, in words; empty without names, or if all spent alike."""
    worst = summary.get("accountant", {}).get("client")
    rows = [
        row for row in summary.get("by_client", ()) if row["client"] == worst and row.get("name")
    ]
    if not rows or summary["epsilon_median"] == summary["epsilon_max"]:
        return ""
    return f", that of {client_words(rows[0])}"


def secure_words(sums: Mapping[str, int]) -> str:
    """What a secure sum protects, and against whom, in words."""
    t = sums["colluders"]
    others = (
        f", also with {t} colluding client{'' if t == 1 else 's'}"
        if t
        else ", if no client colludes with it"
    )
    return (
        f"of the sum of at least {sums['min_survivors']} of {sums['clients']} clients: an "
        f"honest-but-curious server sees no single payload{others} (secure aggregation, "
        f"computational; noise planned for {sums['contributors']} honest "
        f"client{'' if sums['contributors'] == 1 else 's'})"
    )


def strongest(summary: Summary) -> str:
    """The reader of ``epsilon_max``, after "at epsilon 3"; empty if it holds for every reader."""
    t = _participants(summary)
    if not t:
        return ""
    return " against one participant" if t == 1 else f" against {t} participants"


def readers_line(summary: Summary) -> str:
    """Epsilon of a sum against each reader; empty if one holds for all, or none is claimed."""
    found, t = summary.get("epsilon_by_reader", {}), _participants(summary)
    if not t or not found or not summary["private"]:
        return ""
    said = {name: epsilon_words(float(value)) for name, value in found.items()}
    one = "" if t == 1 else f"; {said['participant']} against one of them"
    who = "one participant" if t == 1 else f"{t} participants"
    return (
        f"epsilon {said['participants']} against {who}, also together with the server{one}; "
        f"{said['outside']} against the outside or the server alone"
    )


def _participants(summary: Summary) -> int:
    """t, the number of clients of a sum that epsilon counts as its readers.

    It is 0 if one epsilon holds for all readers, or if epsilons of readers are not known.
    """
    found = summary.get("epsilon_by_reader", {})
    if summary.get("trust") not in SHARED or not found or found["outside"] == found["participant"]:
        return 0
    sums = summary.get("secure_sum") or {}
    return max(int(sums.get("colluders", 1)), 1)


def simulated_facts(summary: Summary) -> dict[str, str]:
    """Facts of a run with a simulated clock: its time, and the selected clients; else empty."""
    said = summary.get("simulated")
    if said is None:
        return {}
    return {
        "simulated time": f"{duration(said['seconds'])} on the simulated clock",
        "selected clients": f"{said['asked']:,} in all rounds: {said['answered']:,} used, "
        f"{said['late']:,} late (trained and charged, not used), "
        f"{said['dropped']:,} dropped out (not charged), {said['rejected']:,} "
        "rejected",
    }


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "--" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """Seconds in words, or minutes from 120 seconds on."""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def human_bytes(count: float) -> str:
    """Bytes with a decimal unit (1 kB = 1,000 B)."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


def run_headline(result: Result) -> str:
    """The result of a run in one or two sentences."""
    if not result.done:
        return _unfinished(result)
    bytes_said = fewer_bytes(result.saved)
    sentence = (
        f"{reached(result)} {at_epsilon(result.summary)}{f', {bytes_said}' if bytes_said else ''}."
    )
    return sentence + "".join(f" {more}" for more in _limits(result))


def _unfinished(result: Result) -> str:
    """How far a run is, and its accuracy so far."""
    planned = result.settings.get("rounds", "?")
    state = {"failed": "Failed", "running": "Running"}.get(result.status, "Not finished")
    words = f"{state}: {len(result.rows)} of {planned} rounds."
    return words if result.accuracy is None else f"{words} {reached(result)} so far."


def reached(result: Result) -> str:
    """The accuracy and its rows, or the loss without an accuracy, in words."""
    if result.accuracy is None:
        return f"Test loss {float(result.summary['loss']):.3g}"
    rows = "accuracy on held-out training rows" if result.held_out else "test accuracy"
    return f"{100 * result.accuracy:.1f} % {rows}"


def at_epsilon(summary: Summary) -> str:
    """Such as ``at epsilon 8.000 (delta 1e-05)``, with what it is of; or that there is none."""
    if not summary["private"]:
        return TEST_MODE if summary.get("reproducible") else WITHOUT
    of = {
        "secure": f"{strongest(summary)} for secure sums of the clients' payloads",
        "aggregate": f"{strongest(summary)} for the sum of all payloads, if an ideal secure "
        "aggregation is assumed",
        "server": " for the weights, at a trusted server",
    }
    trust = of.get(str(summary.get("trust", "client")), "")
    if level := unit_in(summary).level:
        trust = f" at {level}{trust}"
    return (
        f"at epsilon {epsilon_words(float(summary['epsilon_max']))}{trust} (delta "
        f"{summary['delta']:g})"
    )


def _limits(result: Result) -> list[str]:
    """Sentences about what limits the result."""
    said = []
    planned, ran = result.settings.get("rounds"), result.summary.get("rounds")
    if result.reason and planned != ran:
        said.append(f"Stopped early, after {ran} of {planned} rounds.")
    if (
        result.accuracy is not None
        and result.chance is not None
        and not beats_chance([result.accuracy], result.chance)
    ):
        said.append(
            f"This is not better than guessing ({100 * result.chance.level:.1f} %) by three "
            "standard errors."
        )
    if result.held_out:
        said.append(
            "No epsilon covers this accuracy: it was computed from private rows without noise."
        )
    if result.settings.get("public_rows") is not None:
        said.append("The clients held public rows.")
    return said
