"""Planted mistakes that only a game of the audit finds: their true epsilon, and who finds them.

    python -m benchmarks.privacy.audit_plants [PLANT ...]

Prints a section of docs/results/audit.md, with the named plants alone or with all.
"before" has the checks without games.
"""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import nn

from benchmarks.privacy.audit_modes import CLIENTS, MODES, SHORT
from benchmarks.privacy.digits_client import network
from fedlsg.accounting.certified import epsilon
from fedlsg.attacks.audit.checks.all_checks import check_recording
from fedlsg.attacks.audit.played.games import games_of
from fedlsg.attacks.audit.played.plants import planted
from fedlsg.attacks.audit.played.setting import AuditSetting
from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.attacks.audit.played.unit_mode import record
from fedlsg.frame import Block, Coordinates, Frame
from fedlsg.simulations.attacks.audit.audited import audited_settings

True_ = Callable[[float, float, int], tuple[float, float, int]]
"""sigma, q and T of the claim -> those of what runs."""


def wider(factor: float) -> True_:
    """A unit moves an output by so many sensitivities."""
    return lambda sigma, q, steps: (sigma / factor, q, steps)


ROWS: tuple[tuple[str, str, str | None, True_ | None], ...] = (
    ("client", "clip-from-2c-on", "norms", wider(2)),
    ("client", "clip-by-mean-norm", "norms", None),
    ("client", "part-doubled", "parts", wider(2)),
    ("client", "rounded-before-noise", "few units", None),
    ("client", "batch-reused", "parts", lambda sigma, q, steps: (sigma / math.sqrt(steps), q, 1)),
    ("client", "batches-in-order", "parts", lambda sigma, q, steps: (sigma, 1.0, round(q * steps))),
    ("client", "one-draw-for-all", "parts", lambda sigma, q, steps: (sigma, 1.0, steps)),
    ("client", "doubled-rate", "parts", lambda sigma, q, steps: (sigma, min(1, 2 * q), steps)),
    ("client", "last-row-twice", "places of a batch", None),
    ("client", "noise-twice", None, None),
    ("client", "noise-clamped", None, None),
    ("client", "noise-permuted", None, None),
    ("client", "noise-in-16-bits", None, None),
    ("client", "nine-tenths-of-noise", None, wider(10 / 9)),
    ("client", "no-clip-in-passes", "small clients of a pass", None),
    ("client", "neighbour-in-pass", "small clients of a pass", wider(math.sqrt(2))),
    ("secure", "rotated-part-doubled", "parts of the grid", wider(2)),
    ("ghosts", "ghost-norms-halved", "ghost gradients, 1 position", wider(2)),
    ("ghosts", "ghosts-unclipped", "ghost gradients, 1 position", None),
    ("adaptive", "count-noise-left-out", None, None),
    ("adaptive", "count-doubled", None, None),
)
"""Setting, plant, the game that is there for it (None: noise or counts), and what then runs."""


def dense(made: AuditSetting) -> AuditSetting:
    """The same for a network of 256 units that is sent whole."""
    model: nn.Module = network(0, 256).float()
    shapes = [Coordinates(name=n, shape=tuple(p.shape)) for n, p in model.named_parameters()]
    blocks = tuple(Block(parameter=c.name, part="dense", shape=c.shape) for c in shapes)
    return replace(made, model=model, frame=Frame(coordinates=tuple(shapes), blocks=blocks))


def settings() -> dict[str, AuditSetting]:
    """The audited mechanisms, all at epsilon 8."""
    client = audited_settings(SHORT | {"clients": 10}).setting
    given = CLIENTS | {"trust": "server", "clients": 100, "clients_per_round": 30}
    return {
        "client": client,
        "secure": audited_settings(MODES["secure, example"]).setting,
        "ghosts": dense(client),
        "adaptive": audited_settings(given | {"clip_quantile": 0.5}).setting,
    }


def failed(made: AuditSetting, plant: str | None, games: tuple[str, ...]) -> str:
    """Names of the checks that fail."""
    chosen = [game for game in games_of(made, 0) if game.name in games]
    with planted(plant, clients=made.stated.members):
        seen = record(made, 10, seed=0, plans=chosen)
    if not games:  # as the audit was
        seen = replace(seen, count=None)
    names = (check.name for check in check_recording(seen, made) if not check.passed)
    return ", ".join(dict.fromkeys(name.split(",")[0] if not games else name for name in names))


def cost(stated: Stated, true: True_ | None) -> str:
    """The true epsilon, where what runs is a Gaussian mechanism, too."""
    if true is None:
        return "no bound known"
    sigma, q, steps = true(stated.noise_multiplier, stated.sample_rate, stated.steps)
    given = {"noise_multiplier": sigma, "sample_rate": q, "steps": steps, "delta": stated.delta}
    return f"{epsilon(**given, accountants=('pld',)).upper:.1f}"


def table(plants: Sequence[str]) -> Iterator[str]:
    """A row for each of these plants."""
    yield "| setting | plant | true epsilon | before | now | game | seconds |"
    yield "|---|---|---|---|---|---|---|"
    found = settings()
    for mode, plant, game, true in ROWS:
        if plants and plant not in plants:
            continue
        made = found[mode]
        before = failed(made, plant, ())
        began = time.process_time()
        now = failed(made, plant, (game or "norms",))
        yield (
            f"| {mode} | {plant} | {cost(made.stated, true)} | {before or '**missed**'} | "
            f"{now or '**missed**'} | {game or ''} | {time.process_time() - began:.1f} |"
        )


if __name__ == "__main__":
    for line in table(sys.argv[1:]):
        print(line, flush=True)
