"""The audit in every trust mode and unit: correct code, and every mistake that the mode can have;
one table.

    python -m benchmarks.privacy.audit_modes --seeds 3 --canaries 200

Prints the section of docs/results/audit.md, a line for each audit. Seconds are those of recording
and judging.
"""

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.privacy.digits_client import report
from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.played.plants import PLANTS, planted, refuse_plant
from fedlsg.attacks.audit.played.sample_sizes import silent_rounds
from fedlsg.attacks.audit.played.unit_mode import record
from fedlsg.attacks.audit.verdict import Verdict, judge
from fedlsg.simulations.attacks.audit.audited import Audited, audited_settings

SHORT = {"method": "lsg", "epsilon": 8.0, "rounds": 8}
CLIENTS = SHORT | {"unit": "client", "batch_size": 20, "local_steps": 3, "clip_norm": 1.0}
MODES: dict[str, dict[str, Any]] = {
    "client, example": SHORT | {"clients": 10},
    "aggregate, example": SHORT | {"trust": "aggregate", "clients": 10, "min_survivors": 9},
    "secure, example": SHORT
    | {"trust": "secure", "clients": 10, "min_survivors": 9, "colluders": 1},
    "secure, client": CLIENTS
    | {"trust": "secure", "clients": 10, "min_survivors": 9, "colluders": 1},
    "server, client": CLIENTS | {"trust": "server", "clients": 100, "clients_per_round": 30},
}


def audit(audited: Audited, plant: str | None, canaries: int, seed: int) -> tuple[Verdict, float]:
    """The verdict, and the seconds that it took."""
    setting, began = audited.setting, time.monotonic()
    with planted(plant, clients=setting.stated.members):
        seen = record(setting, canaries, seed=seed)
    found = judge(seen.scores, seen.included, audited.claim, check_recording(seen, setting))
    return found, time.monotonic() - began


def fits(plant: str, audited: Audited) -> bool:
    """Whether the mode can have this mistake."""
    try:
        refuse_plant(plant, audited.setting)
    except ValueError:
        return False
    return True


def rows(mode: str, given: dict[str, Any], seeds: int, canaries: int) -> Iterator[str]:
    """A row for correct code and one for each plant."""
    audited = audited_settings(given)
    outputs = 2 * silent_rounds(audited.setting)
    clean = [audit(audited, None, canaries, seed) for seed in range(seeds)]
    accused = sum(verdict.falsified for verdict, _ in clean)
    yield f"| {mode} | none | {accused} of {seeds} accused | {outputs} | {clean[0][1]:.1f} |"
    for plant in PLANTS:
        if fits(plant, audited):
            verdict, seconds = audit(audited, plant, canaries, 0)
            names = dict.fromkeys(reason.split(",")[0] for reason in verdict.reasons)
            yield (
                f"| {mode} | {plant} | {', '.join(names) or '**missed**'} | {outputs} | "
                f"{seconds:.1f} |"
            )


def table(seeds: int, canaries: int) -> Iterator[str]:
    """Every mode."""
    yield "| trust, unit | plant | falsified by | silent outputs | seconds |\n|---|---|---|---|---|"
    for mode, given in MODES.items():
        yield from rows(mode, given, seeds, canaries)


if __name__ == "__main__":
    report(__doc__, table, seeds=3, canaries=200)
