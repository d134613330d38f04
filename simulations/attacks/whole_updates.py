"""``fedlsg attack`` on whole updates: does an observation show that a client took part?

``fedlsg.flower`` records the updates:

    round-000001/client-000003.npz   SECRET: the clipped update before its noise, and the payload if
                                     it was readable
    round-000001/sum.npz             what a secure sum revealed of the round: the total of its
                                     clients, and their number

The attack is the matched filter. It knows the update of a client u, and all others of a sum. With
x the observation less these others, and noise of deviation s, the score is u.x / (|u| s). It is
normal with deviation 1, and its mean is |u| / s if the client took part, else 0. No attack on one
round is stronger, so that its rate bounds that of any; epsilon bounds attacks on all rounds.
"""

import math
import time
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

FALSE_ALARM_RATE = LOW_RATES[0]
"""Probability that a client that did not take part is called a participant."""
ARRAYS = ("update", "payload", "noise_std", "clients", "total")
"""Names of the arrays of a recorded update or sum."""


@dataclass(frozen=True, kw_only=True)
class ClientScore:
    """One client in one round.

    round: its number.
    client: its number.
    score: of the matched filter.
    reach: mean of the score of a client that took part, |u| / s.
    """

    round: int
    client: int
    score: float
    reach: float


def has_whole_updates(path: str) -> bool:
    """Whether a folder is a record of whole updates, which ``fedlsg.flower`` made."""
    return any(Path(path).expanduser().glob("round-*/client-*.npz"))


def read_scores(folder: Path) -> list[ClientScore]:
    """The score of every client of every round whose update is not zero.

    Raises ValueError for a damaged file, and for a sum of clients that are not all recorded.
    """
    scores = []
    for round_folder in sorted(folder.glob("round-*")):
        arrays = {
            path.stem: load_arrays(path, ARRAYS) for path in sorted(round_folder.glob("*.npz"))
        }
        total = arrays.pop("sum", None)
        if total is not None and int(total["clients"]) != len(arrays):
            raise ValueError(
                f"{round_folder}: the sum is of {int(total['clients'])} clients, and {len(arrays)} "
                "recorded their update: record a run of which no client drops out, with record= "
                "for all, in a new folder"
            )
        sum_of_updates = sum(array["update"] for array in arrays.values())
        for name, array in arrays.items():
            update = torch.from_numpy(array["update"])
            if not float(update.norm()):
                continue
            if total is None:
                observed = torch.from_numpy(array["payload"])
                noise_std = float(array["noise_std"])
            else:
                others = torch.from_numpy(sum_of_updates - array["update"])
                observed = torch.from_numpy(total["total"]) - others
                noise_std = float(total["noise_std"])
            score = ClientScore(
                round=int(round_folder.name.removeprefix("round-")),
                client=int(name.removeprefix("client-")),
                score=filter_payload(observed, update, noise_std),
                reach=float(update.norm()) / noise_std,
            )
            scores.append(score)
    if not scores:
        raise ValueError(
            f"{folder} holds no update that moves a weight: record a run of more rounds"
        )
    return scores


def attack_whole_updates(path: str, console: Console, *, out: str | None) -> None:
    """Attack a record of whole updates, print, and write attack.json and attack.html.

    out: the folder of the files; None: that of the record.

    Raises ValueError for a damaged record, see ``read_scores``.
    """
    source = Path(path).expanduser().resolve()
    folder = Path(out or source).expanduser().resolve()
    scores = read_scores(source)
    question = {"runs": [] if folder == source else [str(source)], "updates": "whole"}
    recognised, allowed = recognition_rates(scores)
    table = table_of(scores)
    words = verdict(recognised, allowed)
    badge = badge_of(recognised, allowed)
    stem = file_stem(folder, "attack", question)
    data = json_text(
        {
            KEY: question,
            "verdict": words,
            "false_alarms": FALSE_ALARM_RATE,
            "recognised": asdict(recognised),
            "closed_form": allowed,
            "updates": [asdict(score) for score in scores],
        }
    )
    page = Page(
        kind="fedlsg attack",
        title="What the updates give away",
        headline=words,
        badge=badge,
        lead=f"{source.name}; {time.strftime('%Y-%m-%d')}; {len(scores)} updates of whole clients",
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
"""The note on what the adversary knows."""


def recognition_rates(scores: list[ClientScore]) -> tuple[Rate, float]:
    """Share of clients that are recognised at 1 % false alarms, and its expected value.

    The first has an exact interval. The second is the mean of the closed form of each client.
    """
    threshold = float(ndtri(1 - FALSE_ALARM_RATE))
    hits = sum(score.score > threshold for score in scores)
    expected = np.mean([closed_form_tpr(FALSE_ALARM_RATE, 1 / score.reach) for score in scores])
    return clopper_pearson(hits, len(scores)), float(expected)


def table_of(scores: list[ClientScore]) -> Table:
    """A table with a row for each round."""
    rounds: dict[int, list[ClientScore]] = {}
    for score in scores:
        rounds.setdefault(score.round, []).append(score)
    rows = []
    for round, of_round in rounds.items():
        rate, allowed = recognition_rates(of_round)
        reach = sum(score.reach for score in of_round) / len(of_round)
        rows.append(
            Row(
                cells=(
                    str(round),
                    str(len(of_round)),
                    f"{reach:.2f}",
                    _percent(rate.value),
                    _percent(allowed),
                )
            )
        )
    return Table(
        columns=("round", "clients", "update over noise", "recognised", "closed form"),
        rows=tuple(rows),
        note="recognised: clients whose update passes the threshold of "
        f"{_percent(FALSE_ALARM_RATE)} false alarms; guessing reaches "
        f"{_percent(FALSE_ALARM_RATE)}. update over noise: mean norm of an update over the "
        "deviation of the noise.",
    )


def verdict(recognised: Rate, allowed: float) -> str:
    """The verdict in a sentence. allowed: the expected share of recognised clients."""
    share = _percent(recognised.value)
    interval = f"{_percent(recognised.low)} to {_percent(recognised.high)}"
    subject = "An adversary"
    if recognised.low <= FALSE_ALARM_RATE:
        subject = "Too few updates to distinguish it from guessing: an adversary"
    return (
        f"{subject} who knows a client's update recognises it in one round for {share} of clients "
        f"({interval}), at {_percent(FALSE_ALARM_RATE)} false alarms. The noise allows "
        f"{_percent(allowed)}."
    )


def badge_of(recognised: Rate, allowed: float) -> tuple[str, Badge]:
    """The verdict in a few words; green if twice the rate of guessing is not even expected."""
    if recognised.low > FALSE_ALARM_RATE:
        return "clients are recognised", "bad"
    if allowed < 2 * FALSE_ALARM_RATE:
        return "no attack succeeded", "good"
    return "undecided", "limited"


def _percent(share: float) -> str:
    """A share in percent; NaN, the share of nothing, is ``--``."""
    return "--" if math.isnan(share) else f"{100 * share:.3g} %"
