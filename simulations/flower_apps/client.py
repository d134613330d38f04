"""``fedlsg.flower.client_app``: a ClientApp that trains an app's own workload privately.

Settings of a run are in its messages, since the app's run config is for the app's own keys. The
server adds one record to each of its messages, from which clients read their settings. A deployed
client compares them with its terms, as it does with a run config of fedlsg's own app.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import distributions
from logging import WARNING
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedlsg import strategies
from fedlsg.config.foreign import explain_other_names
from fedlsg.simulations import workloads
from fedlsg.simulations.client.client_app import make_app
from fedlsg.simulations.client.node.refusals import SettingsError
from fedlsg.simulations.settings.settings import AUTO, Settings, from_mapping
from fedlsg.simulations.workloads import Workload
from fedlsg.simulations.workloads.user_workload import MODEL, make
from fedlsg.strategies.protocol.watched_grid import WrappedGrid
from fedlsg.user_code.digest import digest_of

FIX = (
    "leave torch out of the dependencies in the app's pyproject.toml, or ask for the version that "
    "fedlsg has"
)


def other_torch() -> str | None:
    """A warning if two versions of torch are installed; else None.

    Flower puts the environment that it makes of an app's requirements before its own environment.
    """
    versions = list(dict.fromkeys(torch.version for torch in distributions(name="torch")))
    if len(versions) < 2:
        return None
    return (
        f"the app's own requirements brought torch {versions[0]}, and torch {versions[1]} came "
        f"with fedlsg: {FIX}"
    )


@cache  # the torch of a process stays
def note_other_torch() -> None:
    """Log the warning of ``other_torch``, once in a process."""
    warning = other_torch()
    if warning is not None:
        log(WARNING, "fedlsg: %s", warning)


RECORD = "fedlsg.settings"
"""The record of a message with the settings."""


def announcement(config: Mapping[str, Any]) -> ConfigRecord:
    """The record for settings by name."""
    return ConfigRecord(dict(config))


def announced(content: RecordDict) -> dict[str, Any]:
    """The settings in a message. Raises SettingsError for a message without them."""
    record = content.config_records.get(RECORD)
    if record is None:
        raise SettingsError(
            "the server announces no settings: it needs fedlsg.flower.Strategy of the same version "
            "of fedlsg"
        )
    return dict(record)


class AnnouncingGrid(WrappedGrid):
    """A grid that adds the settings (``record``) to each message and sends it by ``inner``."""

    def __init__(self, inner: Grid, record: ConfigRecord) -> None:
        super().__init__(inner)
        self.record = record

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(self._add_record(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        return super().send_and_receive(self._add_record(messages), timeout=timeout)

    def _add_record(self, messages: Iterable[Message]) -> list[Message]:
        with_record = list(messages)
        for message in with_record:
            if message.has_content():
                message.content[RECORD] = self.record
        return with_record


OWN_CODE = "own-code"
"""Key of an announcement: digest of the code of the workload and the method."""


@explain_other_names
def client_app(
    workload: Workload | Callable[[], Workload],
    *,
    methods: tuple[Callable[..., Any], ...] = (),
    replies_without_noise: str = "",
) -> ClientApp:
    """A Flower ClientApp whose clients train ``workload`` under the settings of
    ``fedlsg.flower.Strategy``.

    workload: a ``fedlsg.Workload`` or a function that returns one; the one that the Strategy has.
        Its ``train`` holds the rows of all simulated clients, which the Strategy's settings
        partition. A deployed client takes its own rows from its node config (``data="NAME:PATH"``,
        where NAME is the workload's), and charges its own ledger there.
    methods: recipes of the app's own that the Strategy may name.
    replies_without_noise: "evaluate", "query" or both: replies of handlers of your own that may
        leave as they are, where the node config has no key ``replies-without-noise``. No epsilon
        covers them; a deployed client counts them in ``without-noise-ledger.jsonl``.

    More handlers may be added to the app (``@app.evaluate()``); its run config is not read. The
    client refuses a server that names another workload, a method that is neither fedlsg's,
    installed, nor in ``methods``, or other code.
    Raises ValueError for anything that is not a workload or recipe.
    """
    note_other_torch()
    name = _give_all(workload, methods)

    def read(message: Message, context: Context) -> Settings:
        if workloads.own(name) is None:  # another process than the one that made the app
            _give_all(workload, methods)
        settings = announced(message.content)
        digest = settings.pop(OWN_CODE, "")
        if settings.get("workload") != name:
            raise SettingsError(
                f"the server trains workload {settings.get('workload')!r}, this app has {name!r}"
            )
        if "preset" in settings:
            raise SettingsError(
                "the server announces a preset and not its settings: it has another version of "
                "fedlsg"
            )
        method = str(settings.get("method"))
        if method != AUTO and method not in strategies.names() and method not in strategies.given():
            raise SettingsError(
                f"this app knows no method {method!r}: give it as client_app(methods=[...])"
            )
        if digest != code_digest(name, method):
            raise SettingsError(
                "the server's workload or method has other code than this client's: install one "
                "version"
            )
        try:
            return from_mapping(settings)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    return make_app(read, replies_without_noise)


def _give_all(workload: Any, methods: tuple[Callable[..., Any], ...]) -> str:
    """Register methods and workload in this process; returns the workload's name."""
    for method in methods:
        strategies.give(method.__name__, method)
    return give(workload)


def give(workload: Any) -> str:
    """Register the workload in this process, under its name or its function's; returns the name."""
    name = getattr(workload, "__name__", MODEL)
    made = make(workload, name if name.isidentifier() else MODEL)
    workloads.give(made.name, made)
    return made.name


def code_digest(workload: str, method: str) -> str:
    """Digest of the code of a workload, and of a method that is not fedlsg's."""
    own, build = workloads.own(workload), strategies.given().get(method)
    digests = ["" if own is None else own.digest, "" if build is None else digest_of(build)]
    return " ".join(filter(None, digests))
