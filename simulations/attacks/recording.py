"""Runs that ``fedlsg attack`` records itself.

``record_all``   a run of each of several methods, at one sigma
``record_like``  a short run with the settings of another run
``record_pair``  two runs of one round that differ in the named settings only
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from rich.console import Console

from fedlsg import strategies
from fedlsg.config.mechanisms import is_silent
from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.attacks.replayable import check_replayed, refuse_client_unit
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
"""Raises ValueError before the recording of a run that could not be attacked."""
RECORDED_SETTINGS: Mapping[str, object] = {
    "clients": 8,
    "rounds": 4,
    "batch_size": 1,
    "noise_multiplier": 1.0,
}
"""Default settings of the runs that ``--compare`` records: small batches, one sigma for all."""
LEFT_OUT = (
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
"""Settings of a run that a short run like it does not take over.

The short run has the sigma that the epsilon led to. Participation and speed of clients do not
matter for an attack.
"""
SAME_EPSILON = frozenset({"clip_norm", "rank", "sparsity", "importance"})
"""Settings that change what is sent at one sigma, and nothing that the ledger counts."""
FEW_CLIENTS = 8
"""Clients a round of a short run at most."""
FEWEST_ROUNDS = 4
"""Rounds of a short run at least."""
ONE_EXAMPLE = math.exp(-1)
"""Share of Poisson batches with an expected size of 1 that hold exactly one example."""


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A run whose updates were recorded.

    path: its directory.
    epsilon: of the whole run whose noise a short run has; its own rounds cost less. None if there
        is no such run, or if its epsilon is not known.
    """

    path: str
    epsilon: float | None = None


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
    """Record a run for each method at equal settings, in ``folder``/METHOD, or reuse it.

    With ``sparsities`` or ``sigmas`` a run for each of them, in ``folder``/METHOD-pP-sigmaS; see
    ``variants``. Raises ValueError for methods that cannot be compared.
    """
    for method in methods:
        strategies.check_name(method)
    methods = accepted_methods(methods, given, console)
    check_comparable(methods, given)
    dropped = lacking_settings(methods, given)
    for line in dropped_lines(dropped):
        print_line(line, console, "yellow")
    settings_by_name: dict[str, dict[str, Any]] = {}
    for method in methods:
        kept = {name: value for name, value in given.items() if (method, name) not in dropped}
        for name, changes in variants(method, sparsities, sigmas):
            settings_by_name[name] = {**RECORDED_SETTINGS, **kept, **changes}
    for name, settings in settings_by_name.items():
        if (reason := refusal(parse(settings))) is not None:
            raise ValueError(f"{name}: {reason}")
    return [
        Recorded(path=find_or_record(settings, folder / name, console, device, check))
        for name, settings in settings_by_name.items()
    ]


def variants(
    method: str, sparsities: Sequence[float] | None, sigmas: Sequence[float] | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names and settings of the runs of one method: all pairs of a sparsity and a sigma.

    Sparsities are for methods that have one; sigma 0 is no noise.
    """
    if "sparsity" not in strategies.own_settings(method):
        sparsities = None
    for sparsity in (None,) if sparsities is None else sparsities:
        for sigma in (None,) if sigmas is None else sigmas:
            name = method
            settings: dict[str, Any] = {"method": method}
            if sparsity is not None:
                name = f"{name}-p{sparsity:g}"
                settings["sparsity"] = sparsity
            if sigma is not None:
                name = f"{name}-sigma{sigma:g}"
                settings |= noise_settings(sigma)
            yield name, settings


def noise_settings(sigma: float) -> dict[str, Any]:
    """The setting that gives this sigma; for 0 the mechanism without noise."""
    return {"noise_multiplier": sigma} if sigma else {"mechanism": "clip-only"}


def lacking_settings(methods: Sequence[str], given: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(method, setting) of each given setting that a method lacks.

    Raises ValueError for a setting that no method has.
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
    """Record a short run like that at ``path``, with its sigma and about one example a batch.

    given: settings in place of the run's.
    folder: of the short run; one with these settings is reused.
    examples: about how many updates of exactly one example are recorded.

    Raises ValueError for settings that do not fit.
    """
    before = settings_like(path)
    clients = min(int(before["clients_per_round"]), FEW_CLIENTS)
    rounds = max(FEWEST_ROUNDS, math.ceil(examples / ONE_EXAMPLE / clients))
    small = one_example_settings(before, rounds=rounds, clients=clients)
    recording = find_or_record(
        with_changes({**before, **small}, given), folder, console, device, check
    )
    return Recorded(
        path=recording, epsilon=epsilon_of_run(path) if given.keys() <= SAME_EPSILON else None
    )


def settings_like(path: str) -> dict[str, Any]:
    """The settings of the run at ``path`` that a short run takes over, with its sigma.

    If clients have different sigmas it is the least, which hides least. Raises ValueError for a run
    whose unit is a client or a person.
    """
    run = RunDir.open(path)
    settings = run.read_config()
    refuse_client_unit(settings)
    before = {name: value for name, value in values_of(settings).items() if name not in LEFT_OUT}
    sigma = settings.noise_multiplier or least_sigma(run)
    return before if sigma is None else {**before, "noise_multiplier": sigma}


def least_sigma(run: RunDir) -> float | None:
    """The least noise over clip norm of the clients of a run, by its ledger; None without noise."""
    settings, charges = run.read_config(), run.charges
    ratios = [charges.of(client).entries[-1].noise_multiplier for client in charges.clients()]
    if not any(ratios):
        return None
    base = prepare(settings)
    mechanism = base.method.mechanism
    # the ledger has the noise over this move of a sum by one unit
    unit_sensitivity = mechanism.sensitivity(count_blocks(base)) * base.unit.examples
    return min(ratios) * unit_sensitivity / mechanism.clip_norm


def one_example_settings(before: Mapping[str, Any], *, rounds: int, clients: int) -> dict[str, Any]:
    """The settings that make a run short: one example a batch on average, and few clients."""
    small = {"batch_size": 1, "rounds": rounds, "clients_per_round": clients, "augment": "none"}
    small["min_survivors"] = min(int(before["min_survivors"]), clients)
    if before.get("colluders"):  # colluders are fewer than clients, all of whom must survive
        small["colluders"] = min(int(before["colluders"]), max(clients - 1, 1))
        small["min_survivors"] = clients
    return small


def with_changes(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the given changes, and without those that these make void.

    An epsilon makes the sigma void; a method or mechanism makes void what it lacks. If no noise is
    added, ``trust`` becomes "client", because there is no noise to share.
    """
    settings = {**before, **given}
    if "epsilon" in given:
        settings.pop("noise_multiplier", None)
    silent = is_silent(settings.get("mechanism"))
    if "method" in given and "mechanism" not in given:
        silent = is_silent(strategies.default_mechanism(given["method"]))
        if silent:  # such as sgd, which refuses the run's mechanism
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
    """Record two runs of one round in ``folder``: one with the changes ``against``, one without.

    path: a run whose settings both have; None: the defaults.
    given: settings in place of the run's; sigma is that of all rounds of such a run.
    against: the changes of the first run that is returned.
    examples: about how many updates of exactly one example there are; it sets the number of
        clients. The expected batch size is 1.

    Batches follow from the seed (``reproducible``), and the first round starts at the initial
    weights: both runs have the same rows and weights, unless ``against`` changes these. Existing
    runs are reused. Raises ValueError if ``against`` changes nothing.
    """
    changed = parse(against)
    before: dict[str, Any] = {}
    epsilon: float | None = None
    if path is not None:
        before, epsilon = settings_like(path), epsilon_of_run(path)
    if path is None or given:
        before, epsilon = plan_settings(with_changes(before, given), console, device)
    other = with_changes(before, against)
    other_epsilon = epsilon
    if "epsilon" in against:
        other, other_epsilon = plan_settings(other, console, device)
    elif not changed.keys() <= SAME_EPSILON:
        other_epsilon = None
    if parse(before).items() >= changed.items():
        raise ValueError(
            f"--against {words_of(against)} is what the run has: name settings that differ, such "
            "as mechanism=none"
        )
    short = one_round_settings(before, examples)
    kept = {name: value for name, value in against.items() if name not in LEFT_OUT}
    first = find_or_record(
        with_changes({**other, **short}, kept), folder / "against", console, device, check
    )
    second = find_or_record({**before, **short}, folder / "run", console, device, check)
    return Recorded(path=first, epsilon=other_epsilon), Recorded(path=second, epsilon=epsilon)


def epsilon_of_run(path: str) -> float | None:
    """The finite epsilon that the summary of a run reports; None without one."""
    run = RunDir.open(path)
    epsilon = run.read_summary()["epsilon_max"] if run.summary.exists() else None
    return epsilon if isinstance(epsilon, float) and math.isfinite(epsilon) else None


def one_round_settings(before: Mapping[str, Any], examples: int) -> dict[str, Any]:
    """The settings that make a run one round of about so many examples, which can be repeated."""
    clients = int(before["clients"])
    if before["partition"] in SCHEMES:  # other partitions have the clients of the data
        clients = math.ceil(examples / ONE_EXAMPLE)
    small = one_example_settings(before, rounds=1, clients=clients)
    return {**small, "clients": clients, "reproducible": True}


def plan_settings(
    given: Mapping[str, Any], console: Console, device: Device
) -> tuple[dict[str, Any], float | None]:
    """All settings of a run that has not begun, and its epsilon, None if it has only a sigma.

    An epsilon is replaced by the sigma that it needs; if clients have different sigmas, by the
    least.
    """
    with console.status("loading data") as status:
        plan = make_plan(resolve({**given, "device": device}), progress=status.update)
    refuse_client_unit(plan.settings)
    settings = {
        name: value for name, value in values_of(plan.settings).items() if name not in LEFT_OUT
    }
    if plan.method.mechanism.adds_noise:
        settings["noise_multiplier"] = min(terms.noise_multiplier for terms in plan.terms)
    return settings, plan.settings.epsilon


def words_of(given: Mapping[str, Any]) -> str:
    """Settings in words, as ``-c`` takes them."""
    return ", ".join(f"{name}={value}" for name, value in given.items())


def find_or_record(
    wanted: Mapping[str, Any],
    directory: Path,
    console: Console,
    device: Device,
    check: Check = check_replayed,
) -> str:
    """The path of a finished run with the wanted settings, which is recorded if there is none.

    An interrupted run is continued. If ``directory`` has other settings, the run is in DIRECTORY-2
    and so on. Raises ValueError for a run that ``check`` refuses, before anything is recorded.
    """
    wanted = {**wanted, "engine": "local", "record_updates": True}
    if is_silent(wanted.get("mechanism")):
        wanted.pop("noise_multiplier", None)
    with console.status("loading data") as status:
        plan = ready_plan(resolve({**wanted, "device": device}), progress=status.update)
    check(plan)
    others = (directory.with_name(f"{directory.name}-{number}") for number in count(2))
    while RunDir(directory).config.exists() and not has_settings(directory, plan.settings):
        directory = next(others)
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
    """Run the remaining rounds on the local engine, with a bar. Raises for a diverged run."""
    done = run.last_round()
    with count_bar(
        console, f"recording {plan.settings.method}", plan.schedule.rounds - done
    ) as advance:
        refuse_diverged(local.run(plan, run, on_round=lambda row: advance()))


def accepted_methods(
    methods: Sequence[str], given: Mapping[str, Any], console: Console
) -> list[str]:
    """The methods that these settings fit; a printed line names the others and says why.

    Raises ValueError with the reasons if the settings fit no method.
    """
    common = parse({**RECORDED_SETTINGS, **given})
    reasons = {method: refusal({**common, "method": method}) for method in methods}
    refused = {method: reason for method, reason in reasons.items() if reason is not None}
    if refused and len(refused) == len(reasons):
        raise all_refused(refused)
    for line in left_out(refused):
        print_line(line, console, "yellow")
    return [method for method in methods if method not in refused]


def check_comparable(methods: Sequence[str], given: Mapping[str, Any]) -> None:
    """Raise ValueError for methods that ``--compare`` cannot record at one sigma.

    A method may not be named twice. A method without noise needs a mechanism that is given for all.
    Sigma may not follow from an epsilon.
    """
    if len(set(methods)) < len(methods):
        raise ValueError(f"--compare {','.join(methods)} names a method twice")
    if "epsilon" in given:
        raise ValueError(
            "--compare attacks methods at equal sigma: give noise_multiplier instead of epsilon"
        )
    for method in methods:
        if "mechanism" not in given and not strategies.recipe(method).mechanism.adds_noise:
            raise ValueError(
                f"{method} adds no noise: leave it out, or compare all methods without noise, -c "
                "mechanism=none"
            )


def has_settings(directory: Path, wanted: Settings) -> bool:
    """Whether the existing run has these settings; its directory and device may be others."""
    before = RunDir.open(str(directory)).read_config()
    before = replace(before, run_dir=wanted.run_dir, device=wanted.device)
    return values_of(before) == values_of(wanted)
