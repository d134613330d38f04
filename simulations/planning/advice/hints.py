"""Hints for a run that has ended at the accuracy of guessing: a cause, and what to change.

The cause is the first one that public numbers of the run support, in this order: the model does not
learn public rows without clip and noise; noise moves weights further than data can; the loss rose,
or was still falling; there were few updates. Nothing here reads a training row.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedlsg.config.units import unit_in
from fedlsg.simulations.workloads.base.split import Chance, beats_chance
from fedlsg.training.auto import FEWEST_UPDATES

SWAMPED = 10.0
"""Runs with a smaller pull were measured at the accuracy of guessing, or near it."""
LOUD = 10.0
"""Noise hides a step from this rho on, if the pull is not known."""
DENSE = 1.0
"""Fewer values in a message may gain accuracy from this rho on."""
MOVED = 0.02
"""A loss has moved if it changes by a larger share between the two ends of a run."""
ENDS = 0.2
"""The share of the rounds that an end of a run has."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Training on public rows without clip and noise.

    learns: the accuracy became better than guessing.
    before, after: the loss.
    updates: until it learned, or all that there was time for.
    """

    learns: bool
    before: float
    after: float
    updates: int


@dataclass(frozen=True, kw_only=True)
class Ended:
    """Public numbers of a run at the accuracy of guessing.

    noise_multiplier: 0 without noise.
    rho: see ``remarks``; None if it is not known.
    pull: the most that data move a weight, in deviations of the noise; None if it is not known.
    rounds: how many there were.
    losses: of the test split, by round.
    ruled: the learning rate is the rule's.
    clients: how many there are.
    trust: the setting.
    whole: the unit is a client.
    trial: training without clip and noise, if it was tried.
    """

    noise_multiplier: float
    rho: float | None
    pull: float | None = None
    rounds: int
    losses: Sequence[float] = ()
    ruled: bool
    clients: int
    trust: str = "client"
    whole: bool = False
    trial: Trial | None = None

    @property
    def slope(self) -> float:
        """The change of the loss from the first rounds to the last, as ``change`` gives it."""
        size = max(1, round(ENDS * len(self.losses)))
        return change(self.losses[:size], self.losses[-size:])

    @property
    def falls(self) -> bool:
        """Whether the loss fell over the run, and was still falling in its last rounds."""
        size = max(1, round(ENDS * len(self.losses)))
        late = change(self.losses[-2 * size : -size], self.losses[-size:])
        return self.slope < -MOVED and late < 0


def change(before: Sequence[float], after: Sequence[float]) -> float:
    """The change from one mean to another, as a share of the first.

    It is 0 if one of them is not known, and inf if the second is not finite.
    """
    if not before or not after:
        return 0.0
    first, last = fmean(before), fmean(after)
    if not math.isfinite(last):
        return math.inf
    return (last - first) / abs(first) if first and math.isfinite(first) else 0.0


def less_noise(*, clients: int, trust: str, whole: bool = False, values: bool = False) -> str:
    """What would lower the noise of a run compared with its signal, in words.

    whole: the unit is a client.
    values: fewer values in a message would help, too.
    """
    ways = ["a larger epsilon", "more clients" if whole else "more rows"]
    if trust == "client" and clients > 1:
        ways += ["trust=secure"] if whole else ["fewer clients", "trust=secure"]
    if values:
        ways.append("a method that sends fewer values (method=lsg, or a smaller rank)")
    return f"{', '.join(ways[:-1])} or {ways[-1]}"


def hint(run: Ended) -> str:
    """One sentence with the cause, its numbers, and what to change first."""
    noisy, trial = run.noise_multiplier > 0, run.trial
    rate = "a smaller learning_rate" if run.ruled else "learning_rate=auto"
    if trial is not None and not trial.learns:
        without = "without clip and noise" if noisy else "on its own"
        first = "look" if run.ruled else "give learning_rate=auto; if that does not help, look"
        return (
            f"{without} the model does not learn public rows either (loss {trial.before:.3g} to "
            f"{trial.after:.3g} in {trial.updates} updates): {first} at the model, the loss, the "
            "scale of the inputs (normalise=public) and the labels"
        )
    if noisy and _swamped(run):
        ways = _less_noise(run, values=run.rho is not None and run.rho >= DENSE)
        return f"{noise_words(run.pull, run.rho)}: give {ways}"
    if trial is not None and trial.updates > run.rounds:
        return (
            f"{run.rounds} updates are few: the model learned public rows in {trial.updates}"
            f"{', without clip and noise' if noisy else ''}: give rounds="
            f"{max(trial.updates, FEWEST_UPDATES)} or more"
        )
    slope = run.slope
    if slope > MOVED:
        went = "was not finite at the end" if math.isinf(slope) else f"rose by {slope:.0%}"
        if noisy and run.rho is not None and run.rho >= LOUD:
            ways = _less_noise(run, values=True)
            return (
                f"the loss {went}, and the noise of a step is {run.rho:.2g} times the clip norm: "
                f"give {ways}; then {rate}"
            )
        return f"the loss {went}, so steps are too long: give {rate}"
    if run.falls:
        return (
            f"the loss was still falling (by {-slope:.0%} over the run): give more than "
            f"rounds={run.rounds}" + ("; the noise for the same epsilon follows" if noisy else "")
        )
    if run.rounds < FEWEST_UPDATES:
        return f"{run.rounds} updates of the weights are few: give rounds={FEWEST_UPDATES} or more"
    still = f"the loss did not move at the end of {run.rounds} rounds"
    if not run.ruled:
        return f"{still}: give {rate}"
    if noisy:
        return f"{still}: give {_less_noise(run)}, which lower the noise"
    return (
        f"{still}, and this run has no noise: look at the model, the loss, the scale of the "
        "inputs (normalise=public) and the labels"
    )


def _less_noise(run: Ended, *, values: bool = False) -> str:
    """``less_noise`` for a run."""
    return less_noise(clients=run.clients, trust=run.trust, whole=run.whole, values=values)


def _swamped(run: Ended) -> bool:
    """Whether noise hides the updates."""
    if run.pull is not None:
        return run.pull < SWAMPED
    return run.rho is not None and run.rho >= LOUD


def noise_words(pull: float | None, rho: float | None) -> str:
    """How the noise compares with the largest possible effect of the data, in words.

    With a pull, ``rho`` is not used; one of them is known.
    """
    if pull is None:
        return f"noise hides the updates: that of one step is {rho:.2g} times the clip norm"
    if pull < 1:
        return (
            f"noise hides these rows: over the run it moves a weight {1 / pull:.2g} times as far "
            "as all rows together can"
        )
    return (
        f"noise is likely to hide these rows: even if all of their gradients agreed, they would "
        f"move a weight only {pull:.2g} times as far as noise does, and runs learn from about "
        f"{SWAMPED:g} times on"
    )


def guessing_line(
    summary: Mapping[str, Any],
    auto: str | None,
    *,
    losses: Sequence[float] = (),
    pull: float | None = None,
    trial: Trial | None = None,
) -> str | None:
    """What to change first in a run that has ended at the accuracy of guessing; None for others.

    summary: of the run.
    auto: the settings that the rule chose.
    losses, pull, trial: see ``Ended``.
    """
    if not at_guessing(summary):
        return None
    ended = Ended(
        noise_multiplier=float(summary["noise_multiplier"] or 0.0),
        rho=summary.get("rho"),
        pull=pull,
        rounds=int(summary["rounds"]),
        losses=losses,
        ruled="learning_rate" in (auto or "").split(),
        clients=int(summary["clients"]),
        trust=str(summary.get("trust", "client")),
        whole=unit_in(summary).whole,
        trial=trial,
    )
    level = Chance(**summary["chance"]).level
    return f"the accuracy is that of guessing ({level:.0%}): {hint(ended)}"


def at_guessing(summary: Mapping[str, Any]) -> bool:
    """Whether a finished run's accuracy is no better than guessing; False without classes."""
    if summary["chance"] is None or summary["accuracy"] is None:
        return False
    return not beats_chance([summary["accuracy"]], Chance(**summary["chance"]))
