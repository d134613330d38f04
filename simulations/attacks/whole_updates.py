"""``fedlsg attack`` on whole updates that ``fedlsg.flower`` recorded: is this client's update in
what was seen?

    round-000001/client-000003.npz   SECRET: the clipped update before its noise, and the payload if
                                     it was readable
    round-000001/sum.npz             what a secure sum revealed of the round: the total of its
                                     clients, and their number

The attack is the matched filter: it knows a client's update, and all the others of a sum. Nobody is
stronger on one payload, so its rate bounds that of any attack on one round; epsilon bounds those on
all rounds together.
"""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from scipy.special import ndtri

from fedlsg.attacks.membership.matched_filter import closed_form_tpr, filter_payload
from fedlsg.attacks.roc import LOW_RATES, Rate, clopper_pearson
from fedlsg.simulations.attacks.question import KEY, file_stem
from fedlsg.simulations.report.pages.page import (
    Badge,
    Page,
    Row,
    Table,
    Text,
    data_section,
    download,
    json_text,
    sections,
)
from fedlsg.simulations.report.pages.template import render
from fedlsg.simulations.report.terminals.terminal import (
    print_line,
    print_table,
    print_written,
    write_private,
)
from fedlsg.simulations.storage.atomic_files import load_arrays

FPR = LOW_RATES[0]
WHOLE = ("update", "payload", "noise_std", "clients", "total")
"""Arrays of a recorded update or sum."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One client in one round. score: of the matched filter, normal with deviation 1 and mean
    ``reach`` (0: absent).
    """

    round: int
    client: int
    score: float
    reach: float


def has_whole_updates(path: str) -> bool:
    """Whether a folder is a record of whole updates, which ``fedlsg.flower`` made."""
    return any(Path(path).expanduser().glob("round-*/client-*.npz"))


def read(folder: Path) -> list[Seen]:
    """Every client of every round. Raises ValueError for a damaged file, or a sum of clients that
    are not all here.
    """
    updates = []
    for place in sorted(folder.glob("round-*")):
        arrays = {path.stem: load_arrays(path, WHOLE) for path in sorted(place.glob("*.npz"))}
        whole = arrays.pop("sum", None)
        if whole is not None and int(whole["clients"]) != len(arrays):
            raise ValueError(
                f"{place}: the sum is of {int(whole['clients'])} clients, and {len(arrays)} "
                "recorded their update: record a run of which no client drops out, with record= "
                "for all, in a new folder"
            )
        everybody = sum(array["update"] for array in arrays.values())
        for name, array in arrays.items():
            update = torch.from_numpy(array["update"])
            noise = float((array if whole is None else whole)["noise_std"])
            rest = 0.0 if whole is None else torch.from_numpy(everybody - array["update"])
            seen = torch.from_numpy(array["payload"] if whole is None else whole["total"]) - rest
            if not float(update.norm()):
                continue
            client = int(name.removeprefix("client-"))
            updates.append(
                Seen(
                    round=int(place.name.removeprefix("round-")),
                    client=client,
                    score=filter_payload(seen, update, noise),
                    reach=float(update.norm()) / noise,
                )
            )
    if not updates:
        raise ValueError(
            f"{folder} holds no update that moves a weight: record a run of more rounds"
        )
    return updates


def attack_whole_updates(path: str, console: Console, *, out: str | None) -> None:
    """Print, and write attack.json and attack.html. Raises ValueError as ``read``."""
    source = Path(path).expanduser().resolve()
    folder, seen = Path(out or source).expanduser().resolve(), read(source)
    question = {"runs": [] if folder == source else [str(source)], "updates": "whole"}
    measurements, allowed = measured(seen)
    table = table_of(seen)
    words = verdict(measurements, allowed)
    badge = outcome(measurements, allowed)
    stem = file_stem(folder, "attack", question)
    data = json_text(
        {
            KEY: question,
            "verdict": words,
            "false_alarms": FPR,
            "recognised": asdict(measurements),
            "closed_form": allowed,
            "updates": [asdict(update) for update in seen],
        }
    )
    page = Page(
        kind="fedlsg attack",
        title="What the updates give away",
        headline=words,
        badge=badge,
        lead=f"{source.name}; {time.strftime('%Y-%m-%d')}; {len(seen)} updates of whole clients",
        sections=sections(
            ("Recognised, by round", [table]),
            ("What the adversary is granted", [Text(words=GRANTED, style="note")]),
            data_section(download(f"{stem}.json", data, "all numbers of this page")),
        ),
    )
    files = {f"{stem}.html": render(page).encode(), f"{stem}.json": data}
    write_private(folder, files)
    print_table(table, console)
    print_line(words, console, "bold")
    print_written(folder, files, console)


GRANTED = (
    "It knows the update that it looks for, without noise; in a secure sum all the others, too. It "
    "does not know the noise. The rate holds for one round: epsilon bounds what all rounds "
    "together give away."
)


def measured(seen: list[Seen]) -> tuple[Rate, float]:
    """The share that passes the threshold of 1 % false alarms, with its exact interval; and the
    closed form's.
    """
    threshold = float(ndtri(1 - FPR))
    hits = sum(update.score > threshold for update in seen)
    return clopper_pearson(hits, len(seen)), float(
        np.mean([closed_form_tpr(FPR, 1 / update.reach) for update in seen])
    )


def table_of(seen: list[Seen]) -> Table:
    """A row for each round."""
    rounds: Mapping[int, list[Seen]] = {update.round: [] for update in seen}
    for update in seen:
        rounds[update.round].append(update)
    rows = []
    for round, updates in rounds.items():
        rate, allowed = measured(updates)
        reach = sum(update.reach for update in updates) / len(updates)
        rows.append(
            Row(
                cells=(
                    str(round),
                    str(len(updates)),
                    f"{reach:.2f}",
                    _percent(rate.value),
                    _percent(allowed),
                )
            )
        )
    return Table(
        columns=("round", "clients", "update over noise", "recognised", "closed form"),
        rows=tuple(rows),
        note=f"recognised: clients whose update passes the threshold of {_percent(FPR)} false "
        f"alarms; guessing reaches {_percent(FPR)}. update over noise: mean norm of an update "
        "over the deviation of the noise.",
    )


def verdict(found: Rate, allowed: float) -> str:
    """In a sentence."""
    rate = f"{_percent(found.value)} of clients ({_percent(found.low)} to {_percent(found.high)})"
    known = "an adversary who knows a client's update recognises it in one round for"
    words = (
        f"Too few updates to distinguish it from guessing: {known}"
        if found.low <= FPR
        else f"A{known[1:]}"
    )
    return f"{words} {rate}, at {_percent(FPR)} false alarms. The noise allows {_percent(allowed)}."


def outcome(found: Rate, allowed: float) -> tuple[str, Badge]:
    """In a few words, whether clients were recognised."""
    if found.low > FPR:
        return "clients are recognised", "bad"
    return ("no attack succeeded", "good") if allowed < 2 * FPR else ("undecided", "limited")


def _percent(share: float) -> str:
    return "--" if math.isnan(share) else f"{100 * share:.3g} %"
