"""The numbers at the top of a run's page: how accurate, how private and for whom, how many bytes,
how long.
"""

import math

from fedlsg.config.units import unit_in
from fedlsg.simulations.report.page import Badge, Tile, Tiles
from fedlsg.simulations.report.words import (
    NOT_PRIVATE,
    SHARED,
    against_dense,
    duration,
    epsilon_words,
    human_bytes,
    percent,
    readers_line,
    strongest,
)
from fedlsg.simulations.storage.results import Result, Summary

OUTSIDE = "private only for the outside"
WAYS = {"sent by clients": "uplink", "sent to clients": "downlink"}


def privacy_badge(result: Result) -> tuple[str, Badge]:
    """Private, not private, or private for some readers only: the server is trusted, or clients
    know each other's.
    """
    summary = result.summary
    if not result.done:
        return ("running" if result.status == "running" else "not finished", "limited")
    if not result.private:
        return (NOT_PRIVATE, "bad")
    if summary["trust"] == "server":
        return (f"{OUTSIDE}: the server is trusted", "limited")
    if summary["trust"] == "aggregate":
        return ("private only if the sum is secure, which is assumed", "limited")
    readers = summary.get("epsilon_by_reader", {})
    if any(not math.isfinite(float(value)) for value in readers.values()):
        return (OUTSIDE, "limited")
    return ("private", "good")


def run_tiles(result: Result, against: Result | None = None) -> Tiles | None:
    """None before anything is known. ``against``: a run without privacy, whose accuracy is named,
    too.
    """
    known = (
        [*_spent(result), *_sent(result.summary), *_took(result.summary)]
        if result.done
        else _so_far(result)
    )
    tiles = [*_tested(result, against), *known]
    return Tiles(tiles=tuple(tiles)) if tiles else None


def check_against(result: Result, against: Result) -> None:
    """Raise ValueError for a run that cannot say what privacy costs ``result``."""
    for name in ("workload", "model", "unit"):
        if result.settings.get(name) != against.settings.get(name):
            raise ValueError(
                f"--against {against.name} has {name}={against.settings.get(name)}, and the run "
                f"{name}={result.settings.get(name)}: give a run on the same data and model"
            )
    if not against.done or against.accuracy is None:
        raise ValueError(
            f"--against {against.name} has no accuracy: give a finished run of a workload with "
            "classes"
        )
    if against.private:
        raise ValueError(
            f"--against {against.name} is private: give a run without privacy, as fedlsg run "
            "--method dpsgd -c mechanism=none --out DENSE makes it"
        )


def _tested(result: Result, against: Result | None) -> list[Tile]:
    """Accuracy against guessing, and without privacy where that is known; the loss where there are
    no classes.
    """
    said = "on held-out training rows" if result.held_out else "on the test split"
    if result.accuracy is None:
        found = result.summary.get("loss")
        return (
            []
            if found is None
            else [Tile(name="test loss", value=f"{float(found):.3g}", note="smaller is better")]
        )
    chance = "" if result.chance is None else f"; guessing: {percent(result.chance.level)}"
    chance += (
        ""
        if against is None
        else f"; without privacy: {percent(float(against.accuracy or 0))} ({against.name})"
    )
    name = "accuracy" if result.held_out else "test accuracy"
    name += "" if result.done else " so far"
    return [Tile(name=name, value=percent(result.accuracy), note=f"{said}{chance}")]


def _spent(result: Result) -> list[Tile]:
    """Epsilon, delta, and who reads."""
    summary = result.summary
    if not result.private:
        why = (
            "the noise can be repeated"
            if summary.get("reproducible")
            else "no finite epsilon is claimed"
        )
        return [Tile(name="epsilon", value="none", note=why, style="bad")]
    style = privacy_badge(result)[1]
    return [
        Tile(
            name="epsilon",
            value=epsilon_words(float(summary["epsilon_max"])),
            style=style,
            note=f"at delta {summary['delta']:g}, for {unit_in(summary).protects}; "
            f"{_reader(summary)}",
        )
    ]


def _so_far(result: Result) -> list[Tile]:
    """Epsilon and bytes after the last round of an unfinished run, which claims no privacy yet."""
    if not result.rows:
        return []
    last, settings = result.rows[-1], result.settings
    spent = (
        f"largest client, at delta {settings.get('delta')}, trust={settings.get('trust', 'client')}"
    )
    claimed = math.isfinite(last.epsilon_max) and not settings.get("reproducible")
    tiles = (
        [Tile(name="epsilon so far", value=epsilon_words(last.epsilon_max), note=spent)]
        if claimed
        else []
    )
    for name, way in WAYS.items() if last.counted else ():
        value = sum(getattr(row, f"{way}_bytes") for row in result.rows)
        tiles.append(
            Tile(name=f"{name} so far", value=human_bytes(value), note=f"until round {last.round}")
        )
    return tiles


def _reader(summary: Summary) -> str:
    """Whom the epsilon protects against."""
    if summary["trust"] == "server":
        return "against readers of the weights, not against the server"
    if summary["trust"] not in SHARED or not strongest(summary):
        return "against everybody who reads it, server and clients too"
    return readers_line(summary).partition("; ")[0].partition(" ")[2].partition(" ")[2]


def _sent(summary: Summary) -> list[Tile]:
    """Bytes up and down; nothing of a run whose server keeps them to itself."""
    tiles = []
    for name, way in WAYS.items():
        sent, dense = summary.get(f"{way}_bytes"), summary.get(f"{way}_bytes_dense")
        if sent is not None and dense is not None:
            tiles.append(
                Tile(name=name, value=human_bytes(sent), note=against_dense(float(dense), sent))
            )
    return tiles


def _took(summary: Summary) -> list[Tile]:
    """The time, and the parts that took the most of it."""
    if "wall_seconds" not in summary:
        return []
    parts = sorted(summary.get("seconds", {}).items(), key=lambda part: -part[1])
    each = (f"{name} {duration(seconds)}" for name, seconds in parts if seconds >= 0.05)
    shown = ", ".join(part.replace(" ", "\u00a0") for part in each)
    return [
        Tile(
            name="time",
            value=duration(summary["wall_seconds"]),
            note=shown or f"on {summary['device']}",
        )
    ]
