"""attack.json and attack.html: verdict, table, pictures or texts, assumptions. Both hold private examples."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedlsg.attacks.observation import Observation, ThreatModel
from fedlsg.owner_only import make_parents
from simulations.attack.recorded.observations import Record
from simulations.attack.recorded.rows import Best, shown_name, sigma_of, split_name
from simulations.attack.recorded.target import FPR, Target
from simulations.report.page import (
    Badge,
    Drawing,
    Gallery,
    Page,
    Part,
    Row,
    RowKind,
    Section,
    Slides,
    Table,
    Text,
    TokenLines,
    data_section,
    download,
    facts_of,
    json_text,
    sections,
)
from simulations.report.render import render
from simulations.report.table import Column
from simulations.report.words import REPRODUCIBLE
from simulations.rundir.files.atomic import check_writable, write_atomically, writing_to

WARNING = (
    "This page shows training examples of the clients: the originals and what attacks recovered. It was made in a "
    "simulation, to judge a method. Do not publish it if the data are not public."
)
SECRET = "all numbers of the attacks, with the training examples that they recovered"
UNPAIRED = (
    "Each run drew batches of its own, so that two runs are attacked on different examples: compare their intervals. "
    "Attacks on one run are paired: they have the same examples and the same blind guess."
)
LEAK, NOTHING = "these updates leak", "Other attacks may do better"
"""How verdicts begin that say that an attack succeeded, and how those end that say that none did."""
LIMITS = "An attack that fails proves nothing: a stronger one may exist. Only epsilon bounds all, on what it covers."


OF_ATTACK = (
    Column("attack", lambda row: split_name(row.attack)[0]),
    Column("form", lambda row: split_name(row.attack)[1], left=True),
    Column("batch", lambda row: row.batch),
)
"""The first columns of a table of attacks, a row for each attack and batch size."""
SECONDS = Column("seconds", lambda row: row.seconds, ".1f", optional=1)


def style_of(row: Any) -> RowKind:
    """The naive forms are dim."""
    return "dim" if split_name(row.attack)[1] == "naive" else ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """What attacks found on one run: for the page, the terminal and attack.json (``numbers``).

    facts: what was attacked, by name. shown: recovered images or texts. refused: why an attack did not apply, by its
    name. granted: assumptions in addition to those of the threat model. limits: what a reader should know about the
    numbers. best: of the strongest attack that is not naive; None if there is none.
    """

    label: str
    verdict: str
    facts: Mapping[str, str]
    table: Table
    shown: Gallery | TokenLines
    numbers: Mapping[str, Any]
    refused: Mapping[str, str]
    granted: Mapping[str, str]
    limits: str
    best: Best | None


def output_folder(runs: Sequence[str], out: str | None) -> Path:
    """The folder of the files: ``out``, the only run, or ``attack/`` here. Raises ValueError for a file."""
    path = Path(out or (runs[0] if len(runs) == 1 else "attack")).expanduser().resolve()
    if path.is_file():
        raise ValueError(f"{path} is a file; give --out as a folder")
    check_writable(path)
    return path


def summaries(one: Any, summarise: Callable[[list[Any], int], Any]) -> list[Any]:
    """One row for each attack and batch size: the attack of the largest gain first, its naive form after it."""
    groups: dict[tuple[str, int], list[Any]] = {}
    for target, results in zip(one.targets, one.results, strict=True):
        for result in results:
            groups.setdefault((result.attack, len(target.truth.rows)), []).append(result)
    rows = [summarise(some, batch) for (_, batch), some in groups.items()]
    known, best = {row.attack for row in rows}, dict[str, float]()
    for row in rows:
        name, form = split_name(row.attack)
        gain = -math.inf if form == "naive" and name in known else row.mean_gain
        best[name] = max(best.get(name, -math.inf), gain)

    def place(row: Any) -> tuple[float, str, bool, int]:
        name, form = split_name(row.attack)
        return -best[name], name, form == "naive", row.batch

    return sorted(rows, key=place)


def attacks_in_order(rows: Sequence[Any]) -> list[str]:
    """The attacks of a table from its first row to its last, each once: the order of figures, too."""
    return list(dict.fromkeys(row.attack for row in rows))


def update_numbers(target: Target) -> dict[str, Any]:
    """Which update was attacked, for attack.json."""
    return {
        "round": target.seen.round,
        "clients": list(target.seen.clients),
        "rows": target.truth.rows.tolist(),
        "labels": target.truth.labels.tolist(),
    }


def write(
    folder: Path, runs: Sequence[Findings], threat: ThreatModel, *, lead: str, curves: Drawing | None = None
) -> None:
    """attack.json and attack.html, each replaced whole."""
    assumed = granted(threat, runs)
    numbers = {
        "warning": WARNING,
        "threat_model": asdict(threat),
        "granted": assumed,
        "runs": [
            {
                "label": one.label,
                "verdict": one.verdict,
                "facts": dict(one.facts),
                **one.numbers,
                "not_applicable": dict(one.refused),
            }
            for one in runs
        ],
    }
    data = json_text(numbers)
    with writing_to(folder):
        make_parents(folder, private=True)  # reconstructions of training rows
        write_atomically(folder / "attack.json", data, private=True)
        write_atomically(folder / "attack.html", page(runs, assumed, lead, data, curves).encode(), private=True)


def page(
    runs: Sequence[Findings], assumed: Mapping[str, str], lead: str, data: bytes, curves: Drawing | None = None
) -> str:
    """attack.html: one file that requests nothing. ``data`` are the bytes of attack.json."""
    limits = " ".join(dict.fromkeys([LIMITS, *(one.limits for one in runs)]))
    assumptions = (facts_of(assumed), Text(words=limits, style="note"))
    alone = len(runs) == 1
    return render(
        Page(
            kind="fedlsg attack",
            title="What the updates give away",
            lead=lead,
            headline=_headline(runs),
            badge=outcome(runs),
            warnings=(WARNING,),
            sections=sections(
                ("Originals and what was recovered", _shown(runs)),
                ("In short", [] if alone else [in_short(runs)]),
                ("Over sparsity and noise", [] if curves is None else [curves]),
                *(_section(one, alone=alone) for one in runs),
                Section(title="What the adversary is granted", parts=assumptions, folded=True),
                data_section(download("attack.json", data, SECRET)),
            ),
        )
    )


def sentence(verdict: str) -> str:
    """A verdict with a capital and a full stop."""
    return f"{verdict[:1].upper()}{verdict[1:]}{'' if verdict.endswith('.') else '.'}"


def _headline(runs: Sequence[Findings]) -> str:
    """The verdict on the only run, or on the one of which most was recovered."""
    worst = max(runs, key=lambda one: (one.verdict.startswith(LEAK), -math.inf if one.best is None else one.best.gain))
    where = "" if len(runs) == 1 else f" Of {len(runs)} runs this is the worst: {worst.label}."
    return sentence(worst.verdict) + where


def outcome(runs: Sequence[Findings]) -> tuple[str, Badge]:
    """In a few words, whether an attack succeeded: the worst of all runs."""
    leaking = sum(one.verdict.startswith(LEAK) for one in runs)
    if leaking:
        of = "" if len(runs) == 1 else f" in {leaking} of {len(runs)} runs"
        return f"the attack succeeded{of}", "bad"
    if all(one.verdict.endswith(NOTHING) for one in runs):
        return "no attack succeeded", "good"
    return "undecided", "limited"


def _shown(runs: Sequence[Findings]) -> list[Part]:
    """Images or texts; of several runs one at a time, ordered by noise."""
    if len(runs) == 1:
        return [runs[0].shown]
    ordered = sorted(runs, key=lambda one: -1.0 if one.best is None else one.best.sigma)
    slides = tuple((one.label, (Text(words=sentence(one.verdict), style="verdict"), one.shown)) for one in ordered)
    return [Slides(name="Run, by noise:", slides=slides)]


def in_short(runs: Sequence[Findings]) -> Table:
    """The strongest attack of each of several runs, and the verdict's first words."""
    rows = []
    for one in runs:
        best, (first, _, last) = one.best, one.verdict.partition(": ")
        words = (last if first.startswith("the strongest") else first).replace(LEAK, "leaks")
        if best is None:
            rows.append(Row(cells=(one.label, "--", "--", "--", words)))
            continue
        reach = "--" if best.low is None or best.high is None else f"{best.low:+z.1f} to {best.high:+z.1f}"
        rows.append(Row(cells=(one.label, shown_name(best.attack), f"{best.gain:+z.1f}", reach, words)))
    unit = next((one.best.unit for one in runs if one.best is not None), "")
    return Table(
        columns=("run", "strongest", "gain", "95 % interval", "verdict"), rows=tuple(rows), left=(0, 1, 4),
        note=f"gain: of the strongest attack that is not naive over the blind guess, in {unit}. {UNPAIRED}",
    )  # fmt: skip


def _section(one: Findings, *, alone: bool) -> Section:
    notes = (Text(words=words, style="note") for words in refusals(one))
    verdict = () if alone else (Text(words=sentence(one.verdict), style="verdict"),)
    parts = (*verdict, one.table, facts_of(one.facts), *notes)
    return Section(title=f"Numbers: {one.label}", parts=parts, folded=not alone)


def refusals(one: Findings) -> list[str]:
    """Which attacks did not apply, and why."""
    return [f"{name} does not apply: {why}" for name, why in one.refused.items()]


def granted(threat: ThreatModel, runs: Sequence[Findings]) -> dict[str, str]:
    """What the adversary sees and knows, in words."""
    common = {
        "sees": "every client's payload as it was sent" if threat.view == "client" else "the sum of all payloads",
        "knows": "architecture, weights of the round, carriers, mask, clip norm, sigma, Poisson rate, local optimizer",
        "labels": "of the batch, without an order"
        if threat.labels == "known"
        else "unknown: the attack searches for them",
        "number of examples": "of the batch"
        if threat.examples == "known"
        else "unknown: the expected batch size is used",
    }
    for one in runs:
        common.update(one.granted)
    return common


def privacy_facts(record: Record, observation: Observation, membership: float | None) -> dict[str, str]:
    """The run, its model, sigma, epsilon and the membership bound, by name."""
    s, steps = record.base.settings, observation.local.steps
    facts = {
        "run": record.run.path.name,
        "trains": f"{s.model} on {s.workload}, {steps} local step{'' if steps == 1 else 's'}",
    }
    if observation.mechanism.private:
        of = "per payload" if len(observation.clients) == 1 else f"of the sum of {len(observation.clients)} payloads"
        facts["sigma"] = f"{sigma_of(observation):.3g} {of}"
        facts["epsilon"] = f"{epsilon_of(record)} at delta {s.delta:g}, of the whole run"
    else:
        facts["epsilon"] = f"none: mechanism {observation.mechanism.kind!r}"
    if s.reproducible:
        facts["privacy"] = REPRODUCIBLE
    if membership is not None:
        facts["one batch"] = (
            f"an attacker recognises {100 * membership:.1f} % of examples that are known to be either in this batch or "
            f"nowhere, at {100 * FPR:g} % false alarms (closed form). Epsilon counts that nobody knows who is in which "
            "batch"
        )
    return facts


def epsilon_of(record: Record) -> str:
    """Epsilon as the summary of the run reports it; of a record without a summary, by its ledger."""
    try:
        value = json.loads(record.run.summary.read_text())["epsilon_max"]
        return value if isinstance(value, str) else f"{value:.3f}"
    except FileNotFoundError:
        charges, delta = record.run.charges, record.base.settings.delta
        spent = [charges.of(client).epsilon(delta) for client in charges.clients()]
        return f"{max(one if isinstance(one, float) else one.upper for one in spent):.3f}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown (the run has no summary that can be read)"
