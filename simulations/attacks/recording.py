"""Runs that ``fedlsg attack`` records itself: of several methods at one sigma, a short one like
another run, or two of one round that differ in the named settings only.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg import strategies
from fedlsg.config.mechanisms import is_silent
from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.attacks.observations import Recorded, check_replayed, refuse_client_unit
from fedlsg.simulations.compare.grid.cells import dropped_lines, lacks
from fedlsg.simulations.engines import local
from fedlsg.simulations.planning.base.disclosure import is_covered
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import begin
from fedlsg.simulations.planning.faults.model_faults import count_blocks
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.report.terminals.progress import count_bar
from fedlsg.simulations.report.terminals.terminal import print_line
from fedlsg.simulations.run.commands import continued
from fedlsg.simulations.server.divergence import refuse_diverged
from fedlsg.simulations.server.ready import ready_plan
from fedlsg.simulations.settings import participation
from fedlsg.simulations.settings.any_run import Device, Settings
from fedlsg.simulations.settings.rule_checker import all_refused, left_out, refusal
from fedlsg.simulations.settings.settings import parse, values_of
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.lock import create
from fedlsg.simulations.storage.run_directory import RunDir

Check = Callable[[Base], None]
"""Raises ValueError for a run that could not be attacked once it is recorded."""
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
    "client_epsilons",
    "client_deltas",
    "sampling",
    "sample_rate",
    "run_dir",
    "callbacks",
    "multiplicity",
    "evaluate_clients",
    "show_names",
    "partial_run",
    *participation.NAMES,
)
"""Settings of a run that the short one like it has not: it has the sigma that an epsilon led
to, and who is there and how fast is not what an attack needs.
"""
SAME_EPSILON = frozenset({"clip_norm", "rank", "sparsity", "importance"})
"""Settings that change what is sent at one sigma, and nothing that the ledger counts."""
FEW_CLIENTS, FEWEST_ROUNDS = 8, 4
ONE_EXAMPLE = math.exp(-1)
"""Share of Poisson batches with an expected size of 1 that hold one example."""


def record_all(
    methods: Sequence[str],
    given: Mapping[str, Any],
    folder: Path,
    console: Console,
    device: Device,
    check: Check = check_replayed,
    *,
    sparsities: Sequence[float] | None = None,
    sigmas: Sequence[float] | None = None,
) -> list[Recorded]:
    """One recorded run for each method at equal settings, in ``folder``/METHOD; existing runs are
    reused.

    With ``sparsities`` or ``sigmas`` one for each of them, too, in ``folder``/METHOD-pP-sigmaS; see
    ``variants``. Raises ValueError for methods that cannot be compared.
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
            name: {**RECORDED, **kept, **changes}
            for name, changes in variants(method, sparsities, sigmas)
        }
    for name, settings in wanted.items():
        if (reason := refusal(parse(settings))) is not None:
            raise ValueError(f"{name}: {reason}")
    return [
        Recorded(path=recorded(settings, folder / name, console, device, check))
        for name, settings in wanted.items()
    ]


def variants(
    method: str, sparsities: Sequence[float] | None, sigmas: Sequence[float] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and settings of the runs of one method. Sparsities are for methods that have one; sigma
    0 is no noise.
    """
    names = strategies.own_settings(method)
    for p in (None,) if sparsities is None or "sparsity" not in names else sparsities:
        for sigma in (None,) if sigmas is None else sigmas:
            name, settings = method, dict[str, Any](method=method)
            if p is not None:
                name, settings = f"{name}-p{p:g}", {**settings, "sparsity": p}
            if sigma is not None:
                name = f"{name}-sigma{sigma:g}"
                settings |= of_sigma(sigma)
            yield name, settings


def of_sigma(sigma: float) -> dict[str, Any]:
    """The setting of so much noise; 0 is no noise."""
    return {"noise_multiplier": sigma} if sigma else {"mechanism": "clip-only"}


def lacking(methods: Sequence[str], given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(method, setting) of each given setting that a method lacks. Raises ValueError for one that
    no method has.
    """
    known = parse(given)
    pairs = [(method, name) for name in known for method in methods if lacks(method, name, known)]
    for name in known:
        if all((method, name) in pairs for method in methods):
            raise ValueError(
                f"none of the methods {', '.join(methods)} has a setting {name}: leave it out"
            )
    return pairs


def record_like(
    path: str,
    given: Mapping[str, Any],
    folder: Path,
    console: Console,
    device: Device,
    check: Check = check_replayed,
    *,
    examples: int,
) -> Recorded:
    """A short run with the settings and the sigma of the run at ``path`` and one example a batch,
    in ``folder``.

    ``given``: what it has in place of the run's. ``examples``: about as many updates of one example
    are recorded. An existing run with these settings is reused. Raises ValueError for settings that
    do not fit.
    """
    before = settings_like(path)
    asked = min(int(before["clients_per_round"]), FEW_CLIENTS)
    rounds = max(FEWEST_ROUNDS, math.ceil(examples / ONE_EXAMPLE / asked))
    small = one_example(before, rounds=rounds, clients=asked)
    recording = recorded(over({**before, **small}, given), folder, console, device, check)
    return Recorded(
        path=recording, epsilon=epsilon_of_run(path) if given.keys() <= SAME_EPSILON else None
    )


def settings_like(path: str) -> dict[str, Any]:
    """The settings of the run at ``path`` that a short run like it has, with its sigma; of clients
    with different sigmas the least, which hides least. Raises ValueError for a run whose unit is a
    client or a person.
    """
    run = RunDir.open(path)
    settings = run.read_config()
    refuse_client_unit(settings)
    before = {name: value for name, value in values_of(settings).items() if name not in OWN}
    sigma = settings.noise_multiplier or least_sigma(run)
    return before if sigma is None else {**before, "noise_multiplier": sigma}


def least_sigma(run: RunDir) -> float | None:
    """The least noise over clip norm of the clients of a run, by its ledger; None without noise."""
    settings, charges = run.read_config(), run.charges
    each = [charges.of(client).entries[-1].noise_multiplier for client in charges.clients()]
    if not any(each):
        return None
    base = prepare(settings)
    mechanism = base.method.mechanism
    # the ledger has it over what one unit moves a sum by
    moved = mechanism.sensitivity(count_blocks(base)) * base.unit.examples
    return min(each) * moved / mechanism.clip_norm


def one_example(before: Mapping[str, Any], *, rounds: int, clients: int) -> dict[str, Any]:
    """What makes a run short: one example a batch on average, and few clients a round."""
    small = {"batch_size": 1, "rounds": rounds, "clients_per_round": clients, "augment": "none"}
    small["min_survivors"] = min(int(before["min_survivors"]), clients)
    if before.get("colluders"):  # fewer clients tolerate fewer
        small["colluders"] = min(int(before["colluders"]), max(clients - 1, 1))
        small["min_survivors"] = clients
    return small


def over(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the given ones in their place, and without those that these make void: sigma
    next to an epsilon, and what a given method or mechanism lacks. Clients that add no noise share
    none: their updates are summed as they are.
    """
    settings = {**before, **given}
    if "epsilon" in given:
        settings.pop("noise_multiplier", None)
    silent = is_silent(settings.get("mechanism"))
    if "method" in given and "mechanism" not in given:
        silent = is_silent(strategies.default_mechanism(given["method"]))
        if silent:  # such as sgd
            settings.pop("mechanism", None)
    if silent and "trust" in before.keys() - given.keys():
        settings["trust"] = "client"
    if settings.get("trust") != "secure" and "colluders" not in given:
        settings.pop("colluders", None)
    if not {"method", "mechanism"} & given.keys():
        return settings
    known = parse(settings)
    return {
        name: value
        for name, value in settings.items()
        if name in given or not lacks(known["method"], name, known)
    }


def record_pair(
    path: str | None,
    given: Mapping[str, Any],
    against: Mapping[str, Any],
    folder: Path,
    console: Console,
    device: Device,
    check: Check = check_replayed,
    *,
    examples: int,
) -> tuple[Recorded, Recorded]:
    """Two recorded runs of one round, in ``folder``: with ``against`` in place of the settings, and
    with the settings.

    The settings are those of the run at ``path``, if there is one, with ``given`` in their place;
    sigma is that of all rounds of such a run. One example a batch is expected, from as many clients
    as it takes for about ``examples``. Batches follow from the seed (``reproducible``), and the
    first round starts at the initial weights: both runs have the same rows and weights, unless
    ``against`` changes these. Existing runs are reused. Raises ValueError where ``against`` changes
    nothing.
    """
    changed = parse(against)
    before, epsilon = ({}, None) if path is None else (settings_like(path), epsilon_of_run(path))
    if path is None or given:
        before, epsilon = planned(over(before, given), console, device)
    other, others = over(before, against), epsilon
    if "epsilon" in against:
        other, others = planned(other, console, device)
    elif not changed.keys() <= SAME_EPSILON:
        others = None
    if parse(before).items() >= changed.items():
        raise ValueError(
            f"--against {words_of(against)} is what the run has: name settings that differ, such "
            "as mechanism=none"
        )
    short = one_round(before, examples)
    kept = {name: value for name, value in against.items() if name not in OWN}
    wanted = (
        ("against", over({**other, **short}, kept), others),
        ("run", {**before, **short}, epsilon),
    )
    first, second = (
        Recorded(path=recorded(settings, folder / name, console, device, check), epsilon=known)
        for name, settings, known in wanted
    )
    return first, second


def epsilon_of_run(path: str) -> float | None:
    """Epsilon that the summary of a run reports; None where it has none."""
    run = RunDir.open(path)
    epsilon = run.read_summary()["epsilon_max"] if run.summary.exists() else None
    return epsilon if isinstance(epsilon, float) and math.isfinite(epsilon) else None


def one_round(before: Mapping[str, Any], examples: int) -> dict[str, Any]:
    """What makes a run one round of about so many examples, which anybody can repeat."""
    # the clients of a column, and of lists of rows, are those of the data
    clients = int(before["clients"])
    if before["partition"] in SCHEMES:
        clients = math.ceil(examples / ONE_EXAMPLE)
    small = one_example(before, rounds=1, clients=clients)
    return {**small, "clients": clients, "reproducible": True}


def planned(
    given: Mapping[str, Any], console: Console, device: Device
) -> tuple[dict[str, Any], float | None]:
    """All settings of a run that has not begun, with the sigma that its epsilon needs, and that
    epsilon, if it is given; of clients with different sigmas the least.
    """
    with console.status("loading data") as status:
        plan = make_plan(resolve({**given, "device": device}), progress=status.update)
    refuse_client_unit(plan.settings)
    settings = {name: value for name, value in values_of(plan.settings).items() if name not in OWN}
    if plan.method.mechanism.adds_noise:
        settings["noise_multiplier"] = min(terms.noise_multiplier for terms in plan.terms)
    return settings, plan.settings.epsilon


def words_of(given: Mapping[str, Any]) -> str:
    """Settings as ``-c`` takes them."""
    return ", ".join(f"{name}={value}" for name, value in given.items())


def recorded(
    wanted: Mapping[str, Any],
    directory: Path,
    console: Console,
    device: Device,
    check: Check = check_replayed,
) -> str:
    """The path of a recorded run: an existing one with these settings, an interrupted one that is
    continued, or new. Where ``directory`` has other settings it is next to it: DIRECTORY-2.
    Raises ValueError before anything is recorded for a run that ``check`` refuses.
    """
    wanted = {**wanted, "engine": "local", "record_updates": True}
    if is_silent(wanted.get("mechanism")):
        wanted.pop("noise_multiplier", None)
    with console.status("loading data") as status:
        plan = ready_plan(resolve({**wanted, "device": device}), progress=status.update)
    check(plan)
    places = (directory.with_name(f"{directory.name}-{n}") for n in count(2))
    while RunDir(directory).config.exists() and not has_settings(directory, plan.settings):
        directory = next(places)
    if not RunDir(directory).config.exists():
        words = f"recording {wanted['rounds']} rounds of {wanted['method']} in {directory}"
        print_line(words.replace(" 1 rounds", " 1 round"), console)
        run = create(str(directory), plan.settings, private=not is_covered(plan))
        plan = replace(plan, settings=replace(plan.settings, run_dir=str(run.path)))
        begin(plan, run)
        finish(plan, run, console)
    elif not RunDir(directory).summary.exists():
        run = RunDir.open(str(directory))
        finish(continued(run, console), run, console)
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


def has_settings(directory: Path, wanted: Settings) -> bool:
    """Whether the existing run has these settings, and no others."""
    before = RunDir.open(str(directory)).read_config()
    before = replace(before, run_dir=wanted.run_dir, device=wanted.device)
    return values_of(before) == values_of(wanted)
