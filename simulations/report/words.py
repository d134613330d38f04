"""One wording for each fact of a run, in the terminal and on every page."""

import math
from collections.abc import Mapping
from decimal import ROUND_CEILING, Decimal
from typing import Any

from simulations.rundir.links import LINKS
from simulations.rundir.own_noise import PROMISED

NOT_PRIVATE = "NOT PRIVATE"
REPRODUCIBLE = f"{NOT_PRIVATE}: the noise is reproducible"
CLIENT_LEVEL = "client level: of a client with all of its data"
AT_SERVER = (
    "of the weights of all rounds: the server is trusted, it sees updates without noise and adds the noise; who, and "
    "how many, took part is its secret"
)
NO_EPSILON = f"{NOT_PRIVATE}: no finite epsilon is claimed"
SHARED = ("secure", "aggregate")
OWN_NOISE = (
    "This run counted each client's own noise as protection against that client. The epsilon that it reported holds "
    "for readers outside of the sum only, and so do rounds.csv and the curve of epsilon. The epsilon here is against "
    "one of its clients, computed from its ledgers. It cannot be continued."
)


def outcome(summary: Mapping[str, Any]) -> dict[str, str]:
    """What a finished run reached and what it cost, from its summary.json."""
    facts = {
        "features": features_line(summary),
        "carriers": carriers_line(summary),
        **tested(summary),
        "clients": by_client_line(summary),
        "privacy": privacy_line(summary),
        "readers": readers_line(summary),
        "noise": noise_line(summary),
        **_sent(summary),
        "transfer": transfer_line(summary),
        "empty rounds": empty_line(summary),
        "time": f"{duration(summary['wall_seconds'])} on {summary['device']}" if "wall_seconds" in summary else "",
        "simulated time": simulated_line(summary),
        "selected clients": clients_line(summary),
    }
    return {name: words for name, words in facts.items() if words}


def _sent(summary: Mapping[str, Any]) -> dict[str, str]:
    """Bytes up and down, next to dense updates; nothing of a run whose server keeps them to itself."""
    if "uplink_bytes" not in summary:
        return {}
    dense = float(summary["uplink_bytes_dense"])
    return {
        "uplink": f"{human_bytes(summary['uplink_bytes'])} of payload, "
        f"{against_dense(dense, summary['uplink_bytes'])} ({human_bytes(dense)}){_wire(summary, 'uplink')}",
        "downlink": f"{human_bytes(summary['downlink_bytes'])} of payload{_wire(summary, 'downlink')}",
    }


def tested(summary: Mapping[str, Any]) -> dict[str, str]:
    """What was measured on the test split: accuracy if there are classes, loss, and the workload's own metrics."""
    loss = f"loss {float(summary['loss']):.3f}"
    own = "".join(f", {name} {float(value):.4g}" for name, value in summary.get("metrics", {}).items())
    if summary["accuracy"] is None:
        return {"test": loss + own}
    return {"test accuracy": f"{percent(summary['accuracy'])}, {loss}{own}"}


def by_client_line(summary: Mapping[str, Any]) -> str:
    """The spread of the accuracy over clients, on public test rows of their class mix; empty if it was not measured."""
    said = summary.get("accuracy_by_client")
    if not said:
        return ""
    spread = [percent(said[name]) for name in ("mean", "percentile_10", "worst")]
    return "accuracy on parts of the test split like theirs: mean {}, 10th percentile {}, worst {}".format(*spread)


def features_line(summary: Mapping[str, Any]) -> str:
    """The public features that the model reads; empty for a model of the inputs themselves."""
    said = summary.get("features")
    return "" if not said else f"{said['name']} (public, frozen), {said['values']:,} values an example"


def carriers_line(summary: Mapping[str, Any]) -> str:
    """The public inputs that carriers were probed with; empty for carriers of another kind."""
    source = summary.get("probe_source")
    return "" if not source else f"probed with public inputs: {source}"


def _wire(summary: Mapping[str, Any], direction: str) -> str:
    """What the messages took with their framing; nothing for runs that did not count it."""
    count = summary.get(f"{direction}_bytes_wire")
    return "" if count is None else f"; {human_bytes(count)} on the wire"


def against_dense(dense: float, sent: float) -> str:
    """How the sent bytes compare with dense updates."""
    if not sent:
        return "dense updates would be larger"
    ratio = dense / sent
    if 0.95 < ratio < 1.05:
        return "as large as dense updates"
    return f"{ratio:.1f}x smaller than dense updates" if ratio > 1 else f"{1 / ratio:.1f}x larger than dense updates"


def epsilon_words(value: float, digits: int = 3) -> str:
    """An epsilon for people, rounded up: less than was spent is never claimed, and never 0 unless nothing was."""
    if not math.isfinite(value):
        return f"{value}"
    return str(Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_CEILING))


def privacy_line(summary: Mapping[str, Any]) -> str:
    """Epsilon and what it rests on; NOT PRIVATE where nothing is claimed."""
    epsilon = float(summary["epsilon_max"])
    if not summary["private"]:
        why = REPRODUCIBLE if summary["reproducible"] else NO_EPSILON
        return why + (
            f"; the ledger alone would say epsilon {epsilon_words(epsilon)}" if epsilon < float("inf") else ""
        )
    of = (
        f"largest of {summary['clients']} clients, median {epsilon_words(float(summary['epsilon_median']))}"
        if summary.get("unit", "example") == "example"
        else CLIENT_LEVEL
    )
    line = (
        f"epsilon {epsilon_words(epsilon)} at delta {summary['delta']:g} ({of}; sigma "
        f"{summary['noise_multiplier']:.4g})"
    )
    if summary.get("adjacency") == "zero-out":
        line += "; of an example whose gradient becomes 0 (zero-out), shuffled batches, no amplification"
    if summary["trust"] == "server":
        line += f"; {AT_SERVER}"
    if summary["trust"] == "aggregate":
        line += "; only the sum is private: an ideal secure aggregation is assumed and not provided"
    if summary["trust"] == "secure":
        line += f"; {secure_words(summary['secure_sum'])}"
    return line


def secure_words(sums: Mapping[str, int]) -> str:
    """What a secure sum protects, against whom."""
    t = sums["colluders"]
    others = f", also with {t} colluding client{'' if t == 1 else 's'}" if t else ", if no client colludes with it"
    return (
        f"of the sum of at least {sums['min_survivors']} of {sums['clients']} clients: an honest-but-curious server "
        f"sees no single payload{others} (secure aggregation, computational; noise planned for "
        f"{sums['contributors']} honest client{'' if sums['contributors'] == 1 else 's'})"
    )


def strongest(summary: Mapping[str, Any]) -> str:
    """The reader of ``epsilon_max``, after "at epsilon 3"; empty where one number holds for every reader."""
    t = _participants(summary)
    if not t:
        return ""
    return " against one participant" if t == 1 else f" against {t} participants"


def readers_line(summary: Mapping[str, Any]) -> str:
    """Epsilon of a sum against each reader; empty where one number holds for all of them, or none is claimed."""
    found, t = summary.get("epsilon_by_reader", {}), _participants(summary)
    if not t or not found or not summary["private"]:
        return ""
    said = {name: epsilon_words(float(value)) for name, value in found.items()}
    if PROMISED in summary:
        return (
            f"epsilon {said['participant']} against one participant; {said['outside']}, which the run reported, holds "
            "against the outside and the server alone"
        )
    one = "" if t == 1 else f"; {said['participant']} against one of them"
    who = "one participant" if t == 1 else f"{t} participants"
    return (
        f"epsilon {said['participants']} against {who}, also together with the server{one}; {said['outside']} against "
        "the outside or the server alone"
    )


def _participants(summary: Mapping[str, Any]) -> int:
    """t: readers among the clients of a sum that epsilon counts; 0 where one number holds for all, or is unknown."""
    found = summary.get("epsilon_by_reader", {})
    if summary.get("trust") not in SHARED or not found or found["outside"] == found["participant"]:
        return 0
    sums = summary.get("secure_sum") or {}
    return max(int(sums.get("colluders", 1)), 1)


def noise_line(summary: Mapping[str, Any]) -> str:
    """rho in words; empty without noise, and for runs that did not record it."""
    rho = summary.get("rho")
    return f"rho {rho:.3g} (norm of a step's noise over the clip norm)" if rho else ""


def transfer_line(summary: Mapping[str, Any]) -> str:
    """Seconds that the messages would take on each named link; empty for runs that did not count them."""
    seconds: Mapping[str, float] = summary.get("transfer_seconds", {})
    return ", ".join(f"{value:.3g} s on {LINKS[name].short}" for name, value in seconds.items() if name in LINKS)


def empty_line(summary: Mapping[str, Any]) -> str:
    """How many rounds brought no update; empty if there were none, or none were counted."""
    count = summary.get("empty_rounds", 0)
    return f"{count} of {summary['rounds']} brought no update" if count else ""


def simulated_line(summary: Mapping[str, Any]) -> str:
    """What the simulated clock shows at the end; empty without one."""
    said = summary.get("simulated")
    return "" if said is None else f"{duration(said['seconds'])} on the simulated clock"


def clients_line(summary: Mapping[str, Any]) -> str:
    """What became of the selected clients of a run with a simulated clock; empty without one."""
    said = summary.get("simulated")
    if said is None:
        return ""
    return (
        f"{said['asked']:,} in all rounds: {said['answered']:,} used, {said['late']:,} late (trained and charged, not "
        f"used), {said['dropped']:,} dropped out (not charged), {said['rejected']:,} rejected"
    )


def percent(share: float | None) -> str:
    """A share as a percentage."""
    return "--" if share is None else f"{100 * share:.2f} %"


def duration(seconds: float) -> str:
    """Seconds, or minutes where they are many."""
    return f"{seconds:.1f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"


def human_bytes(count: float) -> str:
    """Bytes with a decimal unit (1 kB = 1,000 B)."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")
