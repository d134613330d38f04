"""Sections of pages of runs: what epsilon means, and what the runs ran on."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlsg.config.units import unit_in
from fedlsg.simulations.report.pages.page import Code, Section, Text, facts_of
from fedlsg.simulations.report.words import duration
from fedlsg.simulations.storage.results import Result

PRIVACY = (
    "The epsilon of a run covers that run only. It costs more privacy to choose the best of "
    "several runs, to choose hyperparameters by their results, or to publish several runs on the "
    "same data. No epsilon here covers that.",
)
SHUFFLED = (
    "With sampling=shuffle, adjacency is zero-out: one example is replaced by a record without a "
    "gradient, and the number of examples stays. Each example is in one batch of an epoch, an "
    "epoch that is begun counts as one release, and no amplification by shuffling is claimed. "
    "Replacing an example by another one is twice as much: count with half of the noise multiplier."
)
TRUST = {
    "client": "trust=client: each payload is private on its own. Epsilon is the same against "
    "everybody who reads it: outside, server and all other clients together.",
    "secure": "trust=secure: the sum of the payloads is private, against an honest-but-curious "
    "server together with the run's colluders, one at least: every client gets the next "
    "weights and knows its own noise. Epsilon is against those who know most; it is "
    "smaller against one client, and smaller still against the server alone or a reader "
    "outside. A secure sum hides single payloads; this is computational.",
    "server": "trust=server: the weights of all rounds are private, and no payload is. A trusted "
    "server receives updates without noise, draws the clients in secret and adds the "
    "noise. It is for simulation: a deployed client refuses it. Who took part, and how "
    "many, is a secret of the server: tables, summary and pages leave out bytes, counts "
    "and times. Do not publish run.log, checkpoint/ and updates-truth/, or when a round "
    "began and ended.",
    "aggregate": "trust=aggregate: the sum of the payloads is private, and a single payload is "
    "not. An ideal secure aggregation is assumed and not provided, so epsilon "
    "protects nobody in a simulation. It is against one client of the sum, which "
    "knows its own noise.",
}
PUBLIC_TEST = (
    "Accuracy, loss and metrics are measured on the test split, which counts as public: no epsilon "
    "covers its rows."
)
HELD_OUT = (
    "Accuracy is measured on held-out training rows (setting holdout). It is computed from private "
    "examples without noise, and no epsilon covers it. Use it to choose settings, and do not "
    "publish it as a private result."
)
PUBLIC_ROWS = (
    "The clients held public rows (setting public_rows: {}), and the training split of the "
    "workload was not opened. Accuracy and epsilon are about these rows."
)
UNKNOWN = "not on record"


def epsilon_section(results: Sequence[Result]) -> Section:
    """What epsilon means, and whom it protects against unless every run has trust=client.

    The last line only if no run measured its accuracy on private rows.
    """
    whom = trust_words(str(run.settings.get("trust", "client")) for run in results) or [
        TRUST["client"]
    ]
    units = dict.fromkeys(unit_in(run.settings) for run in results) or [unit_in({})]
    what = [unit.meaning for unit in sorted(units, key=lambda unit: unit.level)]
    shuffled = (
        [SHUFFLED] if any(run.settings.get("sampling") == "shuffle" for run in results) else []
    )
    texts = [
        *what,
        *shuffled,
        *PRIVACY,
        *whom,
        *([] if any(run.held_out for run in results) else [PUBLIC_TEST]),
    ]
    return Section(title="What epsilon means here", parts=tuple(Text(words=text) for text in texts))


def trust_words(used: Iterable[str]) -> list[str]:
    """Whom epsilon protects against, for each value of ``trust``; [] if all are client."""
    values = set(used)
    return [words for trust, words in TRUST.items() if trust in values and values != {"client"}]


def row_warnings(results: Sequence[Result]) -> list[str]:
    """Sentences about rows: private rows that were evaluated, public rows that were trained on."""
    public = [str(rows) for run in results if (rows := run.settings.get("public_rows")) is not None]
    names = dict.fromkeys(rows if "/" not in rows else f"data:{Path(rows).name}" for rows in public)
    held_out = [HELD_OUT] if any(run.held_out for run in results) else []
    return [*held_out, *([PUBLIC_ROWS.format(", ".join(names))] if names else [])]


def made_section(
    done: Sequence[Result], *code: Code, data: Mapping[str, str] | None = None
) -> Section:
    """What the finished runs ran on, and the commands or files that repeat them.

    data: facts about the data, which come first.
    """
    return Section(
        title="How it was made",
        parts=(facts_of({**(data or {}), **facts(done)}), *(part for part in code if part.text)),
    )


def facts(done: Sequence[Result]) -> dict[str, str]:
    """Hardware, versions and other facts by name; several values if the runs differ."""

    def of(name: str, inside: str = "") -> str:
        summaries = (run.summary.get(inside, {}) if inside else run.summary for run in done)
        return _join_different(facts[name] for facts in summaries if facts.get(name) is not None)

    if not done:
        return {"runs": "none finished"}
    versions = {name: of(name, "versions") for name in done[-1].summary.get("versions", {})}
    return {
        "workload": f"{of('workload')}, model {of('model')}",
        "federation": f"{of('clients')} clients{_selected(done)}, {of('rounds')} rounds",
        **_evaluated(done),
        "hardware": f"{of('processor', 'hardware')}, {of('cores', 'hardware')} cores, device "
        f"{of('device')}",
        "threads": f"{_join_different(run.settings.get('threads', 1) for run in done)} in each "
        "client step",
        "engine": of("engine"),
        "isolation": of("isolation"),
        **_time(done),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    }


def _selected(done: Sequence[Result]) -> str:
    """How many clients each round selects, in words; empty if every run selects all."""
    clients = [run.summary.get("clients") for run in done]
    selected = [run.settings.get("clients_per_round") for run in done]
    of_runs = [few or all_clients for few, all_clients in zip(selected, clients, strict=True)]
    if of_runs == clients:
        return ""
    return f", {_join_different(of_runs)} selected in each round"


def _evaluated(done: Sequence[Result]) -> dict[str, str]:
    """The rows that runs with classes were evaluated on, by what they are."""
    found: dict[str, dict[str, None]] = {}
    for run in done:
        if (c := run.chance) is not None:
            words = (
                f"{c.test_examples:.0f} examples, {c.num_classes} classes, the largest class has "
                f"{100 * c.majority_share:.1f} %; guessing reaches {100 * c.level:.1f} %"
            )
            found.setdefault(_rows(run), {})[words] = None
    return {rows: "; ".join(words) for rows, words in found.items()}


def _rows(run: Result) -> str:
    """What a run was evaluated on."""
    if run.settings.get("holdout") is None:
        return "test split"
    return "held-out training rows" if run.held_out else "held-out public rows"


def _time(done: Sequence[Result]) -> dict[str, str]:
    """Seconds of the runs whose times may be seen."""
    known = [float(run.summary["wall_seconds"]) for run in done if "wall_seconds" in run.summary]
    which = (
        "all finished runs" if len(known) == len(done) else "the finished runs without trust=server"
    )
    return {"run time": f"{duration(sum(known))}, {which}"} if known else {}


def _join_different(values: Any) -> str:
    """The different values with commas; UNKNOWN without any."""
    return ", ".join(dict.fromkeys(map(str, values))) or UNKNOWN
