"""The numbers of a run's page as cards: privacy, accuracy, bytes and time; and its progress."""

import math
from collections.abc import Iterable

from fedlsg.config.directions import higher_is_better
from fedlsg.config.units import unit_in
from fedlsg.simulations.planning.advice.remarks import RHO_IS
from fedlsg.simulations.report.drawing.chart import PREDICT_THE_MEAN
from fedlsg.simulations.report.pages.page import Badge, Meter, Meters, Tile
from fedlsg.simulations.report.words import (
    NOT_PRIVATE,
    SHARED,
    against_dense,
    client_words,
    duration,
    epsilon_words,
    has_own_noise,
    human_bytes,
    of_whom,
    percent,
    readers_line,
    strongest,
    wire_words,
)
from fedlsg.simulations.storage.results import Result, Summary

OUTSIDE = "private only for the outside"
RECENT = 10
"""The time left follows from this many rounds, the last ones."""
WAYS = {"sent by clients": "uplink", "sent to clients": "downlink"}
"""Names of the cards of bytes, and of their numbers in the summary."""


def privacy_badge(result: Result) -> tuple[str, Badge]:
    """The badge of a run: private, not private, or private against some readers only."""
    summary = result.summary
    if not result.done:
        return ("running" if result.status == "running" else "not finished", "limited")
    if not result.private:
        return (NOT_PRIVATE, "bad")
    if summary["trust"] == "server":
        return (f"{OUTSIDE}: the server is trusted", "limited")
    if summary["trust"] == "aggregate":
        return ("private only if the sum is secure, which is assumed", "limited")
    if result.held_out:
        return (f"private, but the accuracies are {NOT_PRIVATE}", "limited")
    readers = summary.get("epsilon_by_reader", {})
    if any(not math.isfinite(float(value)) for value in readers.values()):
        return (OUTSIDE, "limited")
    return ("private", "good")


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


def quality_tiles(result: Result, against: Result | None = None) -> list[Tile]:
    """Cards of what was measured on the test split, compared with guessing or the mean.

    against: a run without privacy, whose accuracy has a card; None without.
    """
    rows = "on held-out training rows" if result.held_out else "on the test split"
    so_far = "" if result.done else " so far"
    tiles = list[Tile]()
    if result.accuracy is not None:
        note = rows
        if result.chance is not None:
            note += f"; guessing: {percent(result.chance.level)}"
        name = "accuracy" if result.held_out else "test accuracy"
        tiles.append(Tile(name=f"{name}{so_far}", value=percent(result.accuracy), note=note))
        if against is not None:
            without, note = percent(against.accuracy), f"the run {against.name}"
            tiles.append(Tile(name="without privacy", value=without, note=note))
    mean = result.summary.get("predict_the_mean", {})
    loss = result.summary.get("loss", _last(row.loss for row in result.rows))
    if loss is not None:
        note = _with_mean("smaller is better", mean.get("loss"))
        tiles.append(Tile(name=f"test loss{so_far}", value=f"{float(loss):.4g}", note=note))
    metrics = result.summary.get("metrics") or (result.rows[-1].metrics if result.rows else {})
    for name, value in metrics.items():
        if value is not None:
            note = _with_mean(direction(name), mean.get("metrics", {}).get(name))
            tiles.append(Tile(name=f"{name}{so_far}", value=f"{float(value):.4g}", note=note))
    if spread := result.summary.get("accuracy_by_client"):
        worst = [client_words(row) for row in result.summary.get("by_client", ())[:1]]
        note = "; ".join([*worst, f"mean of the clients: {percent(spread['mean'])}"])
        tiles.append(Tile(name="worst client", value=percent(spread["worst"]), note=note))
    return tiles


def _last(values: Iterable[float | None]) -> float | None:
    """The last number that is not None."""
    return next((value for value in reversed([*values]) if value is not None), None)


def _with_mean(words: str, mean: float | None) -> str:
    """A note, with what predicting the mean reaches."""
    # rounded, and 0.0 added, so that a tiny negative number is not shown as -0
    reached = "" if mean is None else f"{PREDICT_THE_MEAN}: {round(mean, 6) + 0.0:.4g}"
    return "; ".join(filter(None, (words, reached)))


def direction(name: str) -> str:
    """Which values of a metric are better, in words; empty if its name does not tell."""
    words = {None: "", True: "larger is better", False: "smaller is better"}
    return words[higher_is_better(name)]


def privacy_tiles(result: Result) -> list[Tile]:
    """Cards of epsilon, noise and budget; for an unfinished run, what is spent so far."""
    summary, settings = result.summary, result.settings
    if not result.done:
        return _spent_so_far(result)
    if not result.private:
        why = "no finite epsilon is claimed"
        if summary.get("reproducible"):
            why = "the noise can be repeated"
        return [Tile(name="epsilon", value="none", note=why, style="bad")]
    spent = epsilon_words(float(summary["epsilon_max"]))
    tiles = [
        Tile(
            name="epsilon",
            value=spent,
            style=privacy_badge(result)[1],
            note=f"at delta {summary['delta']:g}, for {unit_in(summary).protects}; "
            f"{_reader(summary)}",
        )
    ]
    median = epsilon_words(float(summary["epsilon_median"]))
    if median != spent:
        note = f"the largest of {summary['clients']} clients{of_whom(summary)} spent {spent}"
        tiles.append(Tile(name="epsilon of the median client", value=median, note=note))
    if summary.get("rho"):
        whose = " of the client with the largest epsilon" if has_own_noise(summary) else ""
        note = f"{RHO_IS}; sigma, the noise multiplier{whose}, is {summary['noise_multiplier']:.4g}"
        tiles.append(Tile(name="rho", value=f"{summary['rho']:.3g}", note=note))
    budget = settings.get("epsilon")
    if budget is not None:
        before = result.start.get("before", {}).get("rounds")
        rounds = f"{settings.get('rounds')} rounds"
        rounds += "" if before is None else f" after the {before} of the run before"
        note = f"of epsilon {budget:g}, which was planned for {rounds}"
        share = float(summary["epsilon_max"]) / budget
        tiles.append(
            Tile(name="privacy budget", value=f"{100 * min(share, 1):.0f} % spent", note=note)
        )
    return tiles


def _spent_so_far(result: Result) -> list[Tile]:
    """Epsilon after the last round of an unfinished run, which claims no privacy yet."""
    if not result.rows:
        return []
    last, settings = result.rows[-1], result.settings
    if not math.isfinite(last.epsilon_max) or settings.get("reproducible"):
        return []
    if budget_meter(result):
        return []
    delta, trust = settings.get("delta"), settings.get("trust", "client")
    note = f"largest client, at delta {delta}, trust={trust}"
    return [Tile(name="epsilon so far", value=epsilon_words(last.epsilon_max), note=note)]


def _reader(summary: Summary) -> str:
    """Whom the epsilon protects against, in words."""
    if summary["trust"] == "server":
        return "against readers of the weights, not against the server"
    if summary["trust"] not in SHARED or not strongest(summary):
        return "against everybody who reads the messages: server, other clients, outside"
    # "epsilon 1.234 against ...; ...": the first reader, without the number
    return readers_line(summary).partition("; ")[0].split(" ", 2)[2]


def cost_tiles(result: Result) -> list[Tile]:
    """Cards of the bytes up and down, and of the time with its largest parts.

    There are none of bytes if the server keeps them secret.
    """
    summary, rows, tiles = result.summary, result.rows, list[Tile]()
    shows_bytes = rows and all(row.shows_participation for row in rows)
    for name, way in WAYS.items() if shows_bytes else ():
        sent, dense = summary.get(f"{way}_bytes"), summary.get(f"{way}_bytes_dense")
        if sent is not None and dense is not None:
            note = against_dense(float(dense), sent) + wire_words(summary, way)
            tiles.append(Tile(name=name, value=human_bytes(sent), note=note))
        elif not result.done:
            count = sum(getattr(row, f"{way}_bytes") for row in rows)
            note = f"until round {rows[-1].round}"
            tiles.append(Tile(name=f"{name} so far", value=human_bytes(count), note=note))
    if "wall_seconds" in summary:
        parts = sorted(summary.get("seconds", {}).items(), key=lambda part: -part[1])
        each = (f"{name} {duration(seconds)}" for name, seconds in parts if seconds >= 0.05)
        shown = ", ".join(part.replace(" ", "\u00a0") for part in each)
        note = shown or f"on {summary['device']}"
        tiles.append(Tile(name="time", value=duration(summary["wall_seconds"]), note=note))
    return tiles


def progress_meter(result: Result) -> Meters | None:
    """The rounds of a run that has not ended, with the time left; None for a finished run."""
    planned, rows = result.settings.get("rounds"), result.rows
    if result.done or not isinstance(planned, int) or planned < 1:
        return None
    done = rows[-1].round if rows else 0
    words = _rounds_words(result, done, planned)
    return Meters(meters=(Meter(name="rounds", share=done / planned, words=words),))


def budget_meter(result: Result) -> Meters | None:
    """The spent part of the budget of a run that has not ended; None without a budget."""
    budget, spent, settings = result.epsilon_target, result.epsilon_max, result.settings
    if result.done or not budget or spent is None or not math.isfinite(spent):
        return None
    if settings.get("reproducible"):
        return None
    words = f"epsilon {epsilon_words(spent)} of {budget:g}, at delta {settings.get('delta')}"
    meter = Meter(name="privacy budget", share=min(spent / budget, 1.0), words=words)
    return Meters(meters=(meter,))


def _rounds_words(result: Result, done: int, planned: int) -> str:
    """Rounds in words; for a run that goes on, with the time left at the pace of the last ones."""
    words = f"{done} of {planned}"
    recent = [row.seconds for row in result.rows[-RECENT:] if row.seconds]
    if result.status != "running" or not recent:
        return words
    return f"{words}, about {duration((planned - done) * sum(recent) / len(recent))} left"
