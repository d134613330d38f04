"""Runs that ``fedlsg attack`` records itself: of several methods at one sigma, or a short one like
another run.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg import strategies
from fedlsg.config.mechanisms import is_silent
from fedlsg.simulations.attacks.observations import refuse_client_unit
from fedlsg.simulations.compare.cells import dropped_lines, lacks
from fedlsg.simulations.engines import local
from fedlsg.simulations.planning.continuity import begin
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.report.progress import count_bar
from fedlsg.simulations.report.terminal import print_line
from fedlsg.simulations.run.commands import continued
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.server.summary import refuse_diverged
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.published import resolve
from fedlsg.simulations.settings.rule_checker import all_refused, left_out, refusal
from fedlsg.simulations.settings.settings import parse, values_of
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.run_directory import RunDir

RECORDED: Mapping[str, object] = {
    "clients": 8,
    "rounds": 4,
    "batch_size": 1,
    "noise_multiplier": 1.0,
}
"""Default settings of the runs that ``--compare`` records: small batches, the same sigma for
all.
"""
OWN = (
    "epsilon",
    "sampling",
    "sample_rate",
    "run_dir",
    "callbacks",
    "multiplicity",
    "evaluate_clients",
    "availability",
    "dropout",
    "speed",
    "example_seconds",
    "uplink_mbps",
    "downlink_mbps",
    "deadline",
    "over_selection",
)
"""Settings of a run that the short one like it has not: who is there and how fast is not what an
attack needs.
"""
FEW_CLIENTS, FEWEST_ROUNDS = 8, 4
ONE_EXAMPLE = math.exp(-1)
"""Share of Poisson batches with an expected size of 1 that hold one example."""


def record_all(
    methods: Sequence[str],
    given: Mapping[str, Any],
    folder: Path,
    console: Console,
    device: Device,
    *,
    sparsities: Sequence[float] | None = None,
    sigmas: Sequence[float] | None = None,
) -> list[str]:
    """One recorded run for each method at equal settings, in ``folder``/METHOD; existing runs are
    reused.

    With ``sparsities`` or ``sigmas`` one for each of them, too, in ``folder``/METHOD-pP-sigmaS; see
    ``variants``.
    Raises ValueError for methods that cannot be compared, and for an existing run with other
    settings.
    """
    for method in methods:
        strategies.check_name(method)
    methods = accepted(methods, given, console)
    check_comparable(methods, given)
    dropped = lacking(methods, given)
    for line in dropped_lines(dropped):
        print_line(line, console, "yellow")
    wanted: dict[str, dict[str, Any]] = {}
    for method in methods:
        kept = {name: value for name, value in given.items() if (method, name) not in dropped}
        wanted |= {
            name: {**RECORDED, **kept, **own} for name, own in variants(method, sparsities, sigmas)
        }
    for name, settings in wanted.items():
        if (reason := refusal(parse(settings))) is not None:
            raise ValueError(f"{name}: {reason}")
    return [recorded(settings, folder / name, console, device) for name, settings in wanted.items()]


def variants(
    method: str, sparsities: Sequence[float] | None, sigmas: Sequence[float] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and settings of the runs of one method. Sparsities are for methods that have one; sigma
    0 is no noise.
    """
    own = strategies.own_settings(method)
    for p in (None,) if sparsities is None or "sparsity" not in own else sparsities:
        for sigma in (None,) if sigmas is None else sigmas:
            name, settings = method, dict[str, Any](method=method)
            if p is not None:
                name, settings = f"{name}-p{p:g}", {**settings, "sparsity": p}
            if sigma is not None:
                name = f"{name}-sigma{sigma:g}"
                settings |= {"noise_multiplier": sigma} if sigma else {"mechanism": "clip-only"}
            yield name, settings


def lacking(methods: Sequence[str], given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(method, setting) of each given setting that a method lacks. Raises ValueError for one that
    no method has.
    """
    known = parse(given)
    found = [(method, name) for name in known for method in methods if lacks(method, name, known)]
    for name in known:
        if all((method, name) in found for method in methods):
            raise ValueError(
                f"none of the methods {', '.join(methods)} has a setting {name}: leave it out"
            )
    return found


def record_like(
    path: str,
    given: Mapping[str, Any],
    folder: Path,
    console: Console,
    device: Device,
    *,
    examples: int,
) -> str:
    """A short run with the settings and the sigma of the run at ``path`` and one example a batch,
    in ``folder``.

    ``given``: what it has in place of the run's. ``examples``: about as many updates of one example
    are recorded. An existing run is reused. Raises ValueError for one with other settings, and for
    settings that do not fit.
    """
    run = RunDir.open(path)
    settings = run.read_config()
    refuse_client_unit(settings)
    before = {name: value for name, value in values_of(settings).items() if name not in OWN}
    asked = min(int(before["clients_per_round"]), FEW_CLIENTS)
    rounds = max(FEWEST_ROUNDS, math.ceil(examples / ONE_EXAMPLE / asked))
    # clients with different sigmas: the largest
    if settings.noise_multiplier is None and run.summary.exists():
        before |= (
            {"noise_multiplier": sigma} if (sigma := run.read_summary()["noise_multiplier"]) else {}
        )
    if "epsilon" in given:
        before.pop("noise_multiplier", None)
    small = {"batch_size": 1, "rounds": rounds, "clients_per_round": asked, "augment": "none"}
    small["min_survivors"] = min(int(before["min_survivors"]), asked)
    if before.get("colluders"):  # fewer clients tolerate fewer
        small["colluders"] = min(int(before["colluders"]), max(asked - 1, 1))
        small["min_survivors"] = asked
    return recorded({**before, **small, **given}, folder, console, device)


def recorded(wanted: Mapping[str, Any], directory: Path, console: Console, device: Device) -> str:
    """The path of a recorded run: an existing one with these settings, an interrupted one that is
    continued, or new.
    """
    wanted = {**wanted, "engine": "local", "record_updates": True}
    if is_silent(wanted.get("mechanism")):
        wanted.pop("noise_multiplier", None)
    if RunDir(directory).config.exists():
        check_recorded(directory, wanted)
        if not RunDir(directory).summary.exists():
            finish(
                continued(RunDir.open(str(directory)), console),
                RunDir.open(str(directory)),
                console,
            )
        return str(directory)
    print_line(f"recording {wanted['rounds']} rounds of {wanted['method']} in {directory}", console)
    with console.status("loading data") as status:
        plan = ready_plan(resolve({**wanted, "device": device}), progress=status.update)
    run = create(str(directory), plan.settings, private=not plan.covered)
    plan = replace(plan, settings=replace(plan.settings, run_dir=str(run.path)))
    begin(plan, run)
    finish(plan, run, console)
    return str(directory)


def finish(plan: Plan, run: RunDir, console: Console) -> None:
    """Run on the local engine and keep every payload."""
    done = run.last_round()
    with count_bar(
        console, f"recording {plan.settings.method}", plan.schedule.rounds - done
    ) as advance:
        refuse_diverged(local.run(plan, run, on_round=lambda row: advance()))


def accepted(methods: Sequence[str], given: Mapping[str, Any], console: Console) -> list[str]:
    """The methods that the settings do not refuse; a line names the others and says why.

    Raises ValueError, with the reasons, if no method is left.
    """
    common = parse({**RECORDED, **given})
    reasons = {method: refusal({**common, "method": method}) for method in methods}
    refused = {method: reason for method, reason in reasons.items() if reason is not None}
    if refused and len(refused) == len(reasons):
        raise all_refused(refused)
    for line in left_out(refused):
        print_line(line, console, "yellow")
    return [method for method in methods if method not in refused]


def check_comparable(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for a method that is given twice, or has no noise while others have."""
    if len(set(methods)) < len(methods):
        raise ValueError(f"--compare {','.join(methods)} names a method twice")
    if "epsilon" in given:
        raise ValueError(
            "--compare attacks methods at equal sigma: give noise_multiplier instead of epsilon"
        )
    quiet = [method for method in methods if not strategies.recipe(method).mechanism.adds_noise]
    if quiet and "mechanism" not in given:
        raise ValueError(
            f"{quiet[0]} adds no noise: leave it out, or compare all methods without noise, -c "
            "mechanism=none"
        )


def check_recorded(directory: Path, wanted: Mapping[str, Any]) -> None:
    """Raise ValueError if the existing run has other settings than ``wanted``."""
    before, now = values_of(RunDir.open(str(directory)).read_config()), values_of(resolve(wanted))
    for name in wanted:
        old, new = before.get(name), now.get(name)
        if old != new:
            raise ValueError(
                f"{directory} was recorded with {name}={old}, not {new}; choose another --out"
            )
