"""Under trust=server nothing that leaves the server depends on who, or how many, took part.

Two runs have the same noise and draw other clients, another number of them. Their updates are left
out of the sums, so that the weights are equal; then every byte that others may see must be equal,
too.
"""

import io
import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import fedlsg.simulations.planning.base.disclosure
import fedlsg.strategies.protocol.sums as server_noise
from fedlsg.simulations.report.page_of_run.run_page import run_page
from fedlsg.simulations.run.commands import execute
from fedlsg.simulations.server.callbacks import Callback
from fedlsg.simulations.server.loggers import metrics_of, names_of, results_of
from fedlsg.simulations.storage.declared import AT_SERVER, EVERYTHING, RELEASED, Released
from fedlsg.simulations.storage.results import read_run, results_csv
from fedlsg.simulations.storage.tensorboard_events import EVENTS as FILE
from fedlsg.strategies.protocol.exchange import Exchange
from fedlsg.training.client_level import release_round
from tests.simulations.client_level.test_runs import CLIENT_LEVEL
from tests.simulations.support.runs import plan_at, run_local

DRAWN = ((0, 3, 7), (1, 5, 9, 11, 28))
"""The clients of every round in either run."""
SETTINGS = CLIENT_LEVEL | {
    "rounds": 3,
    "record_updates": True,
    "downlink": "sparse",
    "example_seconds": 0.01,
    "uplink_mbps": 1.0,
    "downlink_mbps": 1.0,
    "speed": "lognormal 0.5",
}
OWN = ("run.log", "checkpoint", "clients", ".lock", FILE)
"""Of the server alone, see docs/client-level.md; and the events, which are compared as TensorBoard
reads them.
"""


OF_LOGGERS: dict[str, tuple[Callable[[Any], Any], ...]] = {
    "on_begin": (lambda run: names_of(run.settings),),
    "on_round": (metrics_of,),
    "on_end": (results_of,),
}
"""What loggers make of what a method of ``Callback`` gets."""


class Watching(Callback):
    """Keeps everything that callbacks and loggers get: every method of ``Callback`` is watched, by
    construction (``watch``).
    """

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []


def watch(moment: str) -> Callable[..., None]:
    """A method of ``Watching``."""

    def keep(self: Watching, *given: Any) -> None:
        self.seen += [(moment, shown(one)) for one in given]
        self.seen += [(moment, make(one)) for make in OF_LOGGERS.get(moment, ()) for one in given]

    return keep


def shown(given: Any) -> Any:
    """What a callback gets, in values: fields in place of an object, no function of the run."""
    if is_dataclass(given):
        named = {field.name: getattr(given, field.name) for field in fields(given)}
        return {name: value for name, value in named.items() if not callable(value)}
    return str(given) if isinstance(given, BaseException) else given


MOMENTS = {name for name in vars(Callback) if not name.startswith("_")}
for moment in MOMENTS:
    setattr(Watching, moment, watch(moment))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What others may see of a run: by file, by consumer."""

    files: dict[str, bytes]
    events: list[Any]
    callbacks: list[Any]
    moments: set[str]
    terminal: str
    page: str
    result: Any

    def differs(self, other: "Seen") -> list[str]:
        """The consumers, or files, that differ."""
        parts = [
            name
            for name in ("events", "callbacks", "terminal", "page", "result")
            if getattr(self, name) != getattr(other, name)
        ]
        names = self.files.keys() | other.files.keys()
        return parts + sorted(
            name for name in names if self.files.get(name) != other.files.get(name)
        )


@contextmanager
def drawing(clients: tuple[int, ...]):
    """A server that draws these clients, and leaves their updates out of the sum."""

    def select(self, plan):
        self._charge(plan)
        return list(clients)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server_noise.ServerNoiseExchange, "select", select)
        patch.setattr(
            server_noise, "release_round", lambda updates, **given: release_round([], **given)
        )
        yield


def seen_of(folder: Path, clients: tuple[int, ...]) -> Seen:
    """A run with these clients, as everybody outside the server sees it."""
    plan, directory = plan_at(folder / "run", **SETTINGS)
    watching, text = Watching(), io.StringIO()
    with drawing(clients):
        execute(plan, directory, Console(file=text, width=500), callbacks=[watching])
    where = re.compile(re.escape(str(folder)))
    files = {
        str(path.relative_to(directory.path)): where.sub(
            "", path.read_bytes().decode("latin-1")
        ).encode("latin-1")
        for path in directory.path.rglob("*")
        if path.is_file() and path.relative_to(directory.path).parts[0] not in OWN
    }
    record = json.loads(files["manifest.json"])
    # where the run is, and its seal
    del record["sha256"], record["files"]["config.toml"], record["grows"][FILE]
    files["manifest.json"] = json.dumps(record).encode()
    events = [
        (
            event.step,
            event.wall_time,
            [(value.tag, list(value.tensor.float_val)) for value in event.summary.value],
        )
        for event in EventFileLoader(str(directory.path / FILE)).Load()
    ]
    result = read_run(directory.path)
    said = (result.as_row(), results_csv([result]), [asdict(row) for row in result.rows])
    return Seen(
        files=files,
        events=events,
        callbacks=[where.sub("", repr(one)) for one in watching.seen],
        moments={moment for moment, _ in watching.seen},
        terminal=re.sub(r"left \S+|estimate: .*", "", where.sub("", text.getvalue())),
        page=run_page(result),
        result=where.sub("", repr(said)),
    )


def different(folder: Path) -> list[str]:
    """What differs between the two runs."""
    one, other = both(folder)
    return one.differs(other)


def both(folder: Path) -> tuple[Seen, Seen]:
    """The two runs, as others see them."""
    one, other = (seen_of(folder / str(len(clients)), clients) for clients in DRAWN)
    return one, other


def test_nothing_that_leaves_the_server_depends_on_who_was_drawn(tmp_path):
    one, other = both(tmp_path)
    assert one.differs(other) == []
    assert one.moments == MOMENTS - {"on_plan", "on_failure"}, (
        "expected this run to call every method of Callback: what it does not call is not compared"
    )
    kinds = {path.name for path in (tmp_path / "3" / "run").rglob("*")}
    assert {"rounds.csv", "summary.json", "run.jsonl", "sum.npy", "frame.json", FILE} <= kinds
    assert "bytes.csv" not in kinds
    assert "updates-truth" not in kinds


@pytest.mark.thinned(1)
@pytest.mark.parametrize(
    ("entry", "names", "where"),
    [
        (
            "summary",
            "uplink_bytes uplink_bytes_dense downlink_bytes",
            {"summary.json", "callbacks", "result"},
        ),
        ("summary", "transfer_seconds", {"summary.json", "callbacks", "terminal", "page"}),
        ("summary", "simulated", {"summary.json", "callbacks"}),
        ("summary", "wall_seconds", {"summary.json", "callbacks"}),
        ("rows", "asked", {"rounds.csv", "callbacks", "events"}),
        ("rows", "uplink_messages", {"rounds.csv", "callbacks"}),
    ],
)
def test_a_name_that_is_let_pass_is_seen(tmp_path, monkeypatch, entry, names, where):
    """Negative control: a name more in the list, and a server that reports all that it knows."""
    before = getattr(AT_SERVER, entry)
    more = replace(AT_SERVER, **{entry: before | set(names.split())})
    monkeypatch.setattr(
        fedlsg.simulations.planning.base.disclosure, "RELEASED", {**RELEASED, "server": more}
    )
    monkeypatch.setattr("fedlsg.simulations.storage.round_tables.AT_SERVER", more)
    monkeypatch.setattr(Released, "counted", property(lambda self: True))
    monkeypatch.setattr(server_noise.ServerNoiseExchange, "end", Exchange.end)
    assert where <= set(different(tmp_path))


def test_a_client_that_is_charged_on_its_own_is_seen(tmp_path, monkeypatch):
    """Negative control: clients are charged, as where everybody knows who takes part."""
    for module in ("client.train", "engines.accounts"):
        monkeypatch.setattr(f"fedlsg.simulations.{module}.takes_part_in_secret", lambda base: False)
    found = different(tmp_path)
    assert "ledger/run.jsonl" in found
    assert any(name.startswith("updates-truth/") for name in found)


@pytest.mark.parametrize("trust", ["client", "secure", "aggregate"])
def test_other_modes_show_everything(tmp_path, trust):
    assert RELEASED[trust] is EVERYTHING
    settings = {"trust": trust, "clients": 4, "rounds": 1}
    run = run_local(
        tmp_path / "run",
        **settings | ({"colluders": 1, "min_survivors": 4} if trust == "secure" else {}),
    )
    assert {"uplink_bytes", "wall_seconds", "transfer_seconds"} <= run.summary.keys()
    assert {"asked", "seconds"} <= run.rows[0].columns.keys()


def test_an_error_names_no_client(tmp_path):
    """A client that never answers ends the run, whoever it is."""
    said = []
    for clients in DRAWN:
        silent: Callable[..., Any] = lambda message, context: None  # noqa: E731
        with drawing(clients), pytest.raises(RuntimeError) as error:
            run_local(tmp_path / str(len(clients)), client=silent, **CLIENT_LEVEL)
        said.append(str(error.value))
    assert said[0] == said[1]
