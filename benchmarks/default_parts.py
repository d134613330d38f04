"""Where the rule was not made: other methods, local steps, client level, sums, networks, partitions.

A part has cells, bases (settings that a user has chosen for reasons of his own) and arms: the rule by itself, and the
rule with one number changed. If an arm beats the rule over the cells, that number is the one to change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean
from typing import Any, Literal

from benchmarks.default_runs import Cell, Scores, Values, as_cell
from benchmarks.default_tasks import TASKS
from fedlsg.training.auto import auto_server

UPDATES = 20


@dataclass(frozen=True, kw_only=True)
class Part:
    """Every arm on every base in every cell."""

    cells: tuple[Cell, ...]
    bases: Mapping[str, Values]
    arms: Mapping[str, Values]


def rule(
    *,
    factor: float = 1.0,
    rates: Literal["equal", "fan-in"] = "fan-in",
    rounds: int = UPDATES,
    rate: float | None = 1.0,
) -> dict[str, Any]:
    """The rule written out for ``rounds`` updates, its learning rate times ``factor``."""
    server = dict(auto_server(rounds, dense=True))
    server |= {"learning_rate": float(f"{factor * server['learning_rate']:.4g}"), "layer_rates": rates}
    return {**server, "rounds": rounds, **({} if rate is None else {"sample_rate": rate})}


def _cells(tasks: str, *texts: str) -> tuple[Cell, ...]:
    return tuple(as_cell(task, text) for text in texts for task in tasks.split())


def _factors(*factors: float, **chosen: Any) -> dict[str, Values]:
    return {f"{factor:g} x": rule(factor=factor, **chosen) for factor in factors}


def _each(name: str, setting: str, values: tuple[float, ...], **chosen: Any) -> dict[str, Values]:
    return {f"{name} {value:g}": {**rule(**chosen), setting: value} for value in values}


HEAD_RATE = rule(rates="equal")["learning_rate"]
LOW_RANK: Mapping[str, Values] = {
    "lsg 4, p .3": {"method": "lsg", "rank": 4, "sparsity": 0.3},
    "lsg 8, p 0": {"method": "lsg", "rank": 8, "sparsity": 0.0},
    "rgp-random 8": {"method": "rgp-random", "rank": 8},
}
CLIENT: Values = {"unit": "client", "trust": "server", "clients_per_round": 30, "batch_size": 10}
FEW: Values = {"partition": "dirichlet", "alpha": 0.3, "clients_per_round": 10}

PARTS: Mapping[str, Part] = {
    "regression": Part(
        cells=_cells("friedman diabetes friedman2", "5:8", "5:1", "1:1"),
        bases={"dpsgd": {}},
        arms={
            **_factors(0.5, 1.0),
            **{f"{factor:g} x, 40 rounds": rule(factor=factor, rounds=40, rate=0.5) for factor in (0.5, 1.0)},
        },
    ),
    "rounds": Part(
        cells=_cells(" ".join(TASKS), "5:8"),
        bases={"dpsgd": {"method": "dpsgd"}},
        arms={"rule": {}, "40 rounds": rule(rounds=40, rate=0.5), "80 rounds": rule(rounds=80, rate=0.25)},
    ),
    "networks": Part(
        cells=_cells("digits_cnn gratings sequences", "5:8", "1:1"),
        bases={"dpsgd": {}},
        arms={"equal, 1 x": rule(rates="equal"), **_factors(0.5, 1.0, 2.0)},
    ),
    "low-rank": Part(
        cells=_cells("digits teacher wide", "5:8", "5:1"),
        bases=LOW_RANK,
        arms={"fan-in, 1 x": rule(), **{f"equal, {name}": x for name, x in _factors(0.5, 1, 2, rates="equal").items()}},
    ),
    "local-steps": Part(
        cells=_cells("digits teacher friedman", "5:8", "5:1"),
        bases={"5 local steps": {"local_steps": 5}},
        arms={
            "rule": {},
            **_each("local", "local_learning_rate", (0.005, 0.2, 1.0), rate=0.2),
            **_factors(0.5, 2.0, rate=0.2),
            "1 local step": {"local_steps": 1},
        },
    ),
    "client": Part(
        cells=_cells("digits teacher", "100:8"),
        bases={"1 step": CLIENT, "3 steps": {**CLIENT, "local_steps": 3}},
        arms={"rule": {}, **_factors(0.5, 1.0, 2.0, rounds=30, rate=None)},
    ),
    "secure": Part(
        cells=_cells("digits teacher wine", "10:8", "10:1"),
        bases={"trust=secure": {"trust": "secure"}},
        arms={"rule": {}, **_factors(0.5, 2.0)},
    ),
    "partition": Part(
        cells=_cells("digits teacher", "50:8"),
        bases={"dirichlet .3, 10 of 50": FEW},
        arms={"rule": {}, **_factors(0.5, 2.0, rounds=100), "25 rounds": rule(rounds=25)},
    ),
    "pretrained": Part(
        cells=_cells("features teacher_near digits_upper sequences_other", "5:8", "1:1"),
        bases={"dpsgd": {}},
        arms={
            "rule": {},
            **{
                f"body {factor:g} x": {**rule(factor=factor, rates="equal"), "classifier_learning_rate": HEAD_RATE}
                for factor in (0.03, 0.1, 0.3)
            },
            "all 0.1 x": rule(factor=0.1),
            "head alone": {"method": "linear-probe"},
        },
    ),
    "lora": Part(
        cells=_cells("features teacher_near", "5:8", "1:1"),
        bases={name: {"method": name, "rank": 4} for name in ("ffa-lora", "lora")},
        arms={"rule": {}, **_factors(0.1, 0.3, 1.0, 3.0, rates="equal")},
    ),
}


def measure(scores: Scores, part: Part, seeds: range) -> list[str]:
    """A table for each base: a row a cell, a column an arm; then means, and mean losses to the best arm of the cell."""
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    for name, base in part.bases.items():
        say(f"| {name} | {' | '.join(part.arms)} |\n|{'---|' * (1 + len(part.arms))}")
        rows = []
        for cell in part.cells:
            rows.append([scores.mean(cell, seeds, {**base, **arm}) for arm in part.arms.values()])
            say(_line(f"{cell.task}, K = {cell.clients}, epsilon {cell.epsilon:g}", rows[-1]))
        losses = [[max(row) - value for value in row] for row in rows]
        say(_line("mean", [mean(column) for column in zip(*rows, strict=True)]))
        say(_line("mean loss to the best", [mean(column) for column in zip(*losses, strict=True)]) + "\n")
    return lines


def _line(name: str, values: list[float]) -> str:
    return f"| {name} | {' | '.join(f'{value:.1f}' for value in values)} |"
