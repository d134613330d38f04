"""A run that goes on from the weights of another one (``start_from``) goes on with its ledgers.

Every client begins with the entries of the client that held its examples before. These are known if
the data and the partition are those of the other run. In all other cases (clients that came or
left, other parts) nobody knows who held a row. Then every client begins with the entries of the one
client that had spent most, against each reader. If there is no such client, the start is refused.
It is also refused for persons: rows of one person may have been several persons before, which were
protected one by one.

Guarantee: the epsilon of a client covers both runs for each of its examples. Examples that the
other run has not seen are charged too much.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from fedlsg.accounting.population import front
from fedlsg.privacy import SERVER, Entry, verify_extends
from fedlsg.privacy.ledger_entry import kind_of
from fedlsg.privacy.totals import READERS, Totals
from fedlsg.simulations.planning.base.charged_before import Before, History, Kind, least_covered
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.earlier_runs.continuity import digest_of_units
from fedlsg.simulations.planning.earlier_runs.data_digest import digest_of_rows
from fedlsg.simulations.settings.own_epsilons import BELOW, What, numbered, shorter
from fedlsg.simulations.settings.rule_checker import without_effect
from fedlsg.simulations.settings.settings import all_settings, values_of
from fedlsg.simulations.storage.run_directory import RunDir

DEALING = ("clients", "partition", "alpha", "shards_per_client", "holdout", "seed")
"""Settings that decide which client holds a row."""
NAME = 16
"""Digits of the head of a ledger that name its entries in the ledger of another run."""
OTHERS = "if the data are others, give its folder as pretrained=, and fresh_data=True"
"""What to do if the other run has other data, in messages."""


def before_start(base: Base) -> Before:
    """What the clients of a run were charged for by the one that it starts from."""
    carried = _carried(base)
    if base.unit.at_server:
        common = (_history(carried[SERVER]),)
        return Before(histories=dict.fromkeys(base.clients.kinds, common))
    # clients with equal charges share a history, which is computed once
    histories = {_charges_of(entries): _history(entries) for entries in _distinct(carried).values()}
    by_kind: dict[Kind, set[History]] = {}
    for client, kind in enumerate(base.clients.kinds):
        history = histories[_charges_of(carried[client])] if client in carried else ()
        by_kind.setdefault(kind, set()).add(history)
    return Before(histories=least_covered(by_kind))


def carry_over(base: Base, run: RunDir) -> None:
    """Begin the ledgers of a new run with the charges for the weights that it starts from."""
    if base.settings.start_from is not None:
        run.charges.charge([entry for entries in _carried(base).values() for entry in entries])


def _carried(base: Base) -> dict[int, Sequence[Entry]]:
    """The entries of the other run, by the client here that takes them over, or the server.

    Raises ValueError, naming the run, if nobody knows them, or if no epsilon covers both runs.
    """
    source = RunDir.open(str(base.settings.start_from))
    where, charges = f"start_from={source.path}", source.charges
    saved = source.load_checkpoint()
    if saved.get("name"):
        raise ValueError(
            f"{where} is a run of a deployment, and its ledgers are with its clients: their own "
            "ledgers count every run"
        )
    _check_own_budgets(source, base, where)
    verify_extends(saved["ledgers"], source.ledgers)
    every = {c: charges.of(c).entries for c in (*charges.clients(), SERVER)}
    charged = {client: entries for client, entries in every.items() if entries}
    _check_alike(charged, base, where)
    name = charges.snapshot()[1][:NAME]
    clients = range(len(base.clients.sizes))
    takes_over: Mapping[int, int]  # from a client here to one of the other run
    if not charged:
        takes_over = {}
    elif base.unit.at_server:
        takes_over = {SERVER: SERVER}
    elif _holds_the_same(saved, source, base):
        takes_over = {client: client for client in charged if client in clients}
    elif base.unit.persons:
        raise ValueError(
            f"{where} has other data, or another partition or {base.unit.name} of them, and "
            f"nobody knows what the rows of one {base.unit.name} have spent together: give the "
            f"same data and partition; {OTHERS}"
        )
    else:
        takes_over = dict.fromkeys(clients, _largest_spender(charged, where))
    return {
        client: [replace(entry, client=client, run=entry.run or name) for entry in charged[earlier]]
        for client, earlier in takes_over.items()
    }


def _check_own_budgets(source: RunDir, base: Base, where: str) -> None:
    """Raise ValueError if a client with an own epsilon or delta in the other run has a larger one.

    It may be larger if it is given for this client again: nobody's budget grows without a word. If
    clients have other rows than there, each may have those of the client with the smallest budget.
    """
    s = base.settings
    for what in BELOW:
        name = f"client_{what}s"
        had, is_same = _own_budgets(source, base, what)
        if not had or not base.method.mechanism.private:
            continue
        here, common = getattr(s, name), getattr(s, what)
        each, moved = had, ""
        if not is_same:
            each = dict.fromkeys(range(len(base.clients.sizes)), min(had.values()))
            moved = " and had other data or another partition, so nobody knows who they are here"
        named = numbered(here, what) if here else {}
        raised = [
            client
            for client, value in each.items()
            if client not in named and (common is None or common > value)
        ]
        if not raised:
            continue
        shown = ", ".join(f"#{client}={had[client]:g}" for client in (had if moved else raised))
        instead = f"{what}={common:g}" if common else f"noise_multiplier={s.noise_multiplier:g}"
        raise ValueError(
            f"{where} gave clients an own {what} each ({name}={shorter(shown)!r}){moved}, and this "
            f"run would give all of them {instead}: give {name}= again, for both runs together, as "
            f"{name}='#{raised[0]}={what.upper()}, ...' with each client's, by name or number"
        )


def _own_budgets(source: RunDir, base: Base, what: What) -> tuple[dict[int, float], bool]:
    """What clients had of their own in a run, or in those that it goes on from: of each the newest
    word; and whether clients had the rows there that they have here.
    """
    each: dict[int, float] = {}
    is_same, run = True, source
    seen: set[Path] = set()  # a folder may be another run now
    while True:
        seen.add(run.path)
        settings = _known_settings(run)
        if text := settings.get(f"client_{what}s"):
            each = {**numbered(text, what), **each}
            is_same = is_same and _holds_the_same(run.load_checkpoint(), run, base)
        start = settings.get("start_from")
        if start is None or not Path(start).is_dir():
            return each, is_same
        run = RunDir.open(start)
        if run.path in seen or not run.has_checkpoint:
            return each, is_same


def start_notes(base: Base) -> tuple[str, ...]:
    """A sentence if rows are dealt to other clients than in the run that this one starts from.

    It has the settings that differ.
    """
    source = RunDir.open(str(base.settings.start_from))
    if source.load_checkpoint()["plan"]["partition"] == digest_of_units(base):
        return ()
    before = _dealing(_known_settings(source))
    now = _dealing(values_of(base.settings))
    names = [name for name in DEALING if before.get(name) != now.get(name)]
    was, has = (
        ", ".join(f"{name}={values[name]}" for name in names if name in values)
        or "the same settings"
        for values in (before, now)
    )
    return (
        f"rows are dealt to other clients than in {source.path.name}: it had {was}; this run has "
        f"{has}. Each client begins with what the client that spent most had spent; give the "
        "settings of that run to keep its clients.",
    )


def _known_settings(source: RunDir) -> dict[str, Any]:
    """Another run's settings that still exist: a removed setting must not prevent a start."""
    given = {key.replace("-", "_"): value for key, value in source.read_raw_config().items()}
    return {name: given[name] for name in all_settings() if name in given}


def _dealing(values: Mapping[str, Any]) -> dict[str, object]:
    """The values of the settings DEALING that have an effect."""
    idle = without_effect(values)
    return {name: values[name] for name in DEALING if name in values and name not in idle}


def _check_alike(charged: Mapping[int, Sequence[Entry]], base: Base, where: str) -> None:
    """Raise ValueError for entries without an epsilon, of another unit, or of another trust."""
    entries = list(chain.from_iterable(_distinct(charged).values()))
    if base.method.mechanism.private and not all(
        entry.has_epsilon or (entry.private and base.settings.reproducible) for entry in entries
    ):
        raise ValueError(
            f"{where} has no finite epsilon (its mechanism or its noise is not private), and no "
            f"epsilon would cover both runs: train these weights privately; {OTHERS}"
        )
    at_server = SERVER in charged
    has_other_unit = any(entry.unit != base.unit.name for entry in entries)
    if has_other_unit or (entries and at_server != base.unit.at_server):
        raise ValueError(
            f"{where} protects another unit, or trusts another server: give its unit and trust; "
            f"{OTHERS}"
        )


def _holds_the_same(saved: Mapping[str, dict[str, object]], source: RunDir, base: Base) -> bool:
    """Whether each client has the rows that it had in the other run."""
    if saved["plan"]["partition"] != digest_of_units(base):
        return False
    return source.read_data_digest() == digest_of_rows(base)


def _largest_spender(charged: Mapping[int, Sequence[Entry]], where: str) -> int:
    """A client that has spent at least as much as every other one, against each reader.

    Its events alone are then the front of the events of all clients. Raises ValueError without one.
    """
    totals = {c: Totals().extended(entries) for c, entries in _distinct(charged).items()}
    fronts = {reader: front([t.events(reader) for t in totals.values()]) for reader in READERS}
    for client, total in totals.items():
        if all(front([total.events(reader)]) == fronts[reader] for reader in READERS):
            return client
    raise ValueError(
        f"{where} has clients that have spent differently, and the data or their partition are "
        "others now: nobody knows which client held a row before. Give the same data and "
        f"partition, or train the run further (resume); {OTHERS}"
    )


def _charges_of(entries: Sequence[Entry]) -> Hashable:
    """What the entries charge, without the client and the time: equal for equal charges."""
    return tuple(map(kind_of, entries))


def _distinct(charged: Mapping[int, Sequence[Entry]]) -> dict[int, Sequence[Entry]]:
    """Of clients with equal charges the first one, with its entries."""
    first: dict[Hashable, int] = {}
    for client, entries in charged.items():
        first.setdefault(_charges_of(entries), client)
    return {client: charged[client] for client in first.values()}


def _history(entries: Sequence[Entry]) -> History:
    """The events of entries, in the form in which a plan has them."""
    return Totals().extended(entries).events()


def started_from(base: Base) -> Path | None:
    """The folder of the run that this one goes on from."""
    start = base.settings.start_from
    return None if start is None else Path(start).resolve()
