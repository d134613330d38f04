"""Settings and data that must not change within a run.

Epsilon is a maximum over clients that keep their examples and settings in the whole run. A resumed
run with other settings or data would report an epsilon that holds for neither.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from fedlsg.accounting.population import spread
from fedlsg.simulations.planning.advice.remarks import inputs_line
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import source_digest
from fedlsg.simulations.planning.earlier_runs.data_digest import (
    contents_of,
    data_digest,
    digest_of_rows,
)
from fedlsg.simulations.planning.plan import Plan
from fedlsg.simulations.planning.trust import keep_code, other_code, recorded
from fedlsg.simulations.settings.own_epsilons import BELOW, numbered, read_own
from fedlsg.simulations.settings.participation import trace_digest
from fedlsg.simulations.settings.settings import (
    FOLDERS,
    OF_RAY,
    Settings,
    as_config,
)
from fedlsg.simulations.storage.atomic_files import Record
from fedlsg.simulations.storage.manifest import AT_END, reopen
from fedlsg.simulations.storage.results import refuse_own_noise
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.run_format import NUMBER, stamp
from fedlsg.simulations.storage.start_record import read_start, write_start
from fedlsg.simulations.workloads.base.parts import digest

HARMLESS = frozenset(
    {
        *FOLDERS,
        *OF_RAY,
        "engine",
        "device",
        "threads",
        "loader_workers",
        "round_timeout",
        "evaluate_every",
        "evaluate_clients",
        "show_names",
        "partial_run",
        "record_updates",
    }
)
"""Settings that a resumed run may change.

They change neither a random draw nor the meaning of a ledger entry.
"""

FURTHER = frozenset({"rounds", "epsilon", "noise_multiplier"})
"""Settings that may change when a run trains further.

Its ledgers stay, and the additional rounds are planned with them.
"""

MOVED = frozenset({"run_dir"})
"""Harmless settings that no message mentions: who resumes a run knows where its directory is."""


def fingerprint(plan: Plan) -> dict[str, Any]:
    """The part of a plan in a checkpoint: format of the run, settings, partition and test splits.

    The last two are digests. More digests follow if the plan has code, public data or a trace of
    its own, and the noise of each kind of client if it was calibrated.
    """
    tests = {name: data_digest(split) for name, split in plan.workload.tests.items()}
    # the device in use: auto may find another later
    settings = {**as_config(plan.settings), "device": plan.device}
    more: dict[str, Any] = {"own_code": plan.own_code} if plan.own_code else {}
    if (plan.method.carrier.source or "").startswith("data:"):
        more["source"] = source_digest(plan.initial.probe_source)
    if (trace := trace_digest(plan.clients.participation)) is not None:
        more["trace"] = trace
    if plan.method.mechanism.adds_noise and plan.settings.noise_multiplier is None:
        each = dict(zip(plan.clients.kinds, plan.terms, strict=True))
        more["noise"] = {
            kind: (t.noise_multiplier, t.prune_noise_multiplier) for kind, t in each.items()
        }
    parts = digest_of_units(plan)
    return {**stamp(), "settings": settings, "partition": parts, "tests": tests, **more}


def fingerprint_of_begun(plan: Plan, saved: Mapping[str, Any], run: RunDir) -> dict[str, Any]:
    """``fingerprint`` of a plan that goes on from the one in a checkpoint, in the format of that.

    In the newest format each setting is named. In an older one, a setting that neither the
    checkpoint nor config.toml names did not exist: it is left out, and has its default.
    """
    now = fingerprint(plan)
    if saved.get(NUMBER) == now[NUMBER]:
        return now
    known = {*saved["settings"], *run.read_raw_config()}
    settings = {name: value for name, value in now["settings"].items() if name in known}
    facts = {name: value for name, value in now.items() if name not in stamp()}
    begun = {name: saved[name] for name in stamp() if name in saved}
    return {**begun, **facts, "settings": settings}


def digest_of_units(base: Base) -> str:
    """A digest of the client of each row; of N_k alone if persons are protected.

    How many rows a person has is secret, and others may see the file that has this digest.
    ``digest_of_rows`` covers the rest.
    """
    owners = b"" if base.declared is None else repr(tuple(base.declared)).encode()
    if base.person is not None:
        return digest([], repr(list(base.clients.sizes)).encode())
    return digest(base.parts, owners)


def begin(plan: Plan, run: RunDir, *, named: bool = False) -> None:
    """Write what a new run directory needs to be continued: settings, code, and how it began.

    named: the settings say where the run directory is.
    """
    # first: a folder with config.toml is a run, which has the record of its code
    keep_code(run.path, as_config(plan.settings), plan.own_code)
    run.write_config(replace(plan.settings, run_dir=str(run.path)) if named else plan.settings)
    write_start(
        run,
        given=plan.given,
        arguments=plan.workload.arguments,
        notes=[*plan.notes, *filter(None, [inputs_line(plan)])],
        before=spent_before(plan),
        rows=rows_record(plan),
    )


def rows_record(plan: Plan) -> Record:
    """Public facts about the rows of a run: names of files, and N_k of all clients together.

    The second are left out if who takes part is a secret of the server.
    """
    # a file for each client most often has its name
    places = () if plan.workload.parts is not None else plan.workload.places
    files = {
        "files": sorted({place.name for place in places}),
        "images": plan.workload.has_images,
    }
    if plan.unit.at_server:
        return files
    sizes = plan.clients.sizes
    return {
        **files,
        "clients": len(sizes),
        "counted": plan.unit.counted,
        "fewest": min(sizes),
        "most": max(sizes),
        "all": sum(sizes),
        "named": plan.clients.names is not None,
    }


def spent_before(plan: Plan) -> Record:
    """The run that a plan starts from, with its epsilon and rounds; empty if it starts from none.

    An epsilon that is not finite is left out.
    """
    if plan.settings.start_from is None:
        return {}
    source = RunDir.open(plan.settings.start_from)
    earlier = read_start(source).get("before", {})
    rounds = source.last_round() + int(earlier.get("rounds", 0))
    histories = list(chain.from_iterable(plan.before.histories.values()))
    spent = spread(histories, delta=plan.settings.delta).largest if histories else math.inf
    epsilon = {"epsilon": spent} if math.isfinite(spent) else {}
    return {"run": source.path.name, "rounds": rounds, **epsilon}


def refuse_lost_checkpoint(run: RunDir) -> None:
    """Raise ValueError for ledgers without a checkpoint.

    The finished rounds would be trained, and charged, once more.
    """
    if run.ledgers.exists() and not run.has_checkpoint:
        raise ValueError(
            f"{run.path} has ledgers and no checkpoint: restore checkpoint/latest.pt, or start a "
            "new run"
        )


def keep_data_digest(plan: Plan, run: RunDir) -> None:
    """Keep the digest of all training rows, for ``check_unchanged`` in a resumed run, and what the
    run is made from, for comparisons.
    """
    run.write_data_digest(digest_of_rows(plan), contents_of(plan))


def settings_further(settings: Settings, changes: Mapping[str, Any], done: int) -> Settings:
    """The settings of a run that trains further, with ``changes`` of the ``FURTHER`` ones.

    A target epsilon is that of all rounds together. The noise of the rounds to come is calibrated
    for it, unless it is given.
    Raises ValueError for no more rounds than are ``done``, for a run without a finished round, and
    for clients with own budgets.
    """
    rounds = changes.get("rounds", settings.rounds)
    if settings.client_epsilons is not None or settings.client_deltas is not None:
        raise ValueError(
            "clients have budgets of their own, which this run has planned to spend: train "
            "further in a new run, start_from= this one, with client_epsilons= for both together"
        )
    if not done:
        raise ValueError("no round is finished, so there is nothing to go on from: start a new run")
    if rounds <= done:
        raise ValueError(
            f"rounds={rounds} counts all rounds, and {done} are finished: give more than {done}"
        )
    changed = replace(settings, **changes)
    if changed.epsilon is None or "noise_multiplier" in changes:
        return changed
    return replace(changed, noise_multiplier=None)


def go_further(plan: Plan, run: RunDir, saved: Mapping[str, Any]) -> None:
    """Turn a run into the longer one of a plan, which has other ``FURTHER`` settings.

    saved: the checkpoint of the run before. Nobody has been charged for the longer one.
    Guarantee: the directory has the old run until the new checkpoint replaces the old one, in one
    step, and the longer run from then on. ``settle`` does the rest, also after a crash. Until the
    first charge, its summary is either true or does not exist.
    """
    was = {name: saved["plan"]["settings"].get(name) for name in _dashed(FURTHER)}
    state = {**saved, "plan": {**fingerprint_of_begun(plan, saved["plan"], run), "was": was}}
    # files that are about to change must not count as damaged, even after a crash
    reopen(run, int(saved["server"]["round"]), saved, forgotten=(*AT_END, run.config.name))
    for _ in range(2):  # a run keeps its last two checkpoints, and both have to be of this plan
        run.save_checkpoint(state)
    settle(run, state)


def settle(run: RunDir, saved: Mapping[str, Any]) -> None:
    """Write the settings of a checkpoint that ``go_further`` made into config.toml.

    The summary of the shorter run is removed: its epsilon will be too small.
    """
    planned = saved["plan"]
    if "was" not in planned:
        return
    given, names = run.read_raw_config(), planned["was"].keys()
    if {name: given.get(name) for name in names} == planned["was"]:
        config = given | {name: planned["settings"].get(name) for name in names}
        run.write_raw_config({name: value for name, value in config.items() if value is not None})
    run.summary.unlink(missing_ok=True)


def _dashed(names: Iterable[str]) -> list[str]:
    """Names of settings as config.toml has them, sorted."""
    return [name.replace("_", "-") for name in sorted(names)]


def check_unchanged(
    saved: Mapping[str, Any], plan: Plan, run: RunDir, *, further: bool = False
) -> list[str]:
    """Raise ValueError, naming the difference, if settings or data are not those of the checkpoint.

    Returns the settings that may change and have changed, as "threads = 2 (was 1)".

    saved: the plan of the checkpoint, as ``fingerprint`` makes it.
    further: the plan is for more rounds, so ``FURTHER`` settings may change.
    """
    refuse_own_noise(run, vars(plan.settings))
    now = fingerprint_of_begun(plan, saved, run)
    before, after = saved["settings"], now["settings"]
    names = {k: k.replace("-", "_") for k in before.keys() | after.keys()}
    changed = [k for k in _changed(before, after) if names[k] not in MOVED]
    allowed = HARMLESS | FURTHER if further else HARMLESS
    refused = [k for k in changed if names[k] not in allowed]
    if refused:
        words = ", ".join(
            f"{k} = {before.get(k, 'unset')} (now {after.get(k, 'unset')})" for k in refused
        )
        raise ValueError(
            f"a run cannot change its settings midway: restore {words} in config.toml, or start a "
            "new run; for more rounds, resume it with rounds=N (--rounds N)"
        )
    check_own_code(plan, run, before=saved.get("own_code", {}))
    if saved["partition"] != now["partition"] or run.read_data_digest() != digest_of_rows(plan):
        raise ValueError(
            "the data or its partition differ from those that this run began with, and the "
            "clients' ledgers would then say too little: restore the data, or start a new run"
        )
    if "source" in saved and saved["source"] != now.get("source"):
        raise ValueError(
            f"the public data of source={plan.initial.probe_source.name} differ from those that "
            "this run began with, and its carriers would be others: restore the data, or start a "
            "new run"
        )
    if saved.get("trace") != now.get("trace"):
        raise ValueError(
            f"the trace {plan.settings.availability} differs from the one that this run began "
            "with, and other clients would be selected: restore the file, or start a new run"
        )
    if saved["tests"] != now["tests"]:
        raise ValueError(
            "the test data differ from those that this run began with, and its accuracies could "
            "not be compared: restore the data, or start a new run"
        )
    return [
        f"{k} = {after.get(k, 'unset')} (was {before.get(k, 'unset')})"
        for k in changed
        if names[k] not in FURTHER
    ]


def _changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names whose values differ, or that only one of them has."""
    return sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )


def check_same_budgets(base: Base, given: Mapping[str, Any]) -> None:
    """Raise ValueError if the given epsilons or deltas of clients are not those of the run."""
    names = getattr(base.parts, "names", None)
    for what in BELOW:
        if (text := given.get(setting := f"client_{what}s")) is None:
            continue
        numbers = read_own(text, names, base.parts, base.workload.columns, what)
        began = getattr(base.settings, setting) or ""
        if numbers != numbered(began, what):
            raise ValueError(
                f"resume continues the run as it began: give {setting}={began!r} (not {text!r})"
            )


def check_own_code(base: Base, run: RunDir, before: Mapping[str, str] | None = None) -> None:
    """Raise ValueError if the loaded code of the run's own is not that which the run began with.

    before: its digests by setting, from a checkpoint; None: those of the run's record. (Files are
        compared before they run, by ``allow_code``.)
    """
    if before is None:
        before = recorded(run.path).get("own_code", {})
    if changed := _changed(before, base.own_code):
        raise other_code(changed)
