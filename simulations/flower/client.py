"""``fedlsg.flower.client_app``: a ClientApp that trains a workload of the app's own, each update private."""

from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

import strategies
from fedlsg.code_digest import digest_of
from simulations import workloads
from simulations.client.app import make_app
from simulations.flower.announced import announced
from simulations.flower.bundle import note_other_torch
from simulations.grids.virtual import SettingsError
from simulations.settings.settings import AUTO, Settings, from_mapping
from simulations.workloads import Workload
from simulations.workloads.own import MODEL, make

OWN_CODE = "own-code"
"""Key of an announcement: digest of the code of the workload and the method."""


def client_app(
    workload: Workload | Callable[[], Workload], *, methods: tuple[Callable[..., Any], ...] = ()
) -> ClientApp:
    """A Flower ClientApp whose clients train ``workload`` under the settings of ``fedlsg.flower.Strategy``.

    workload: a ``fedlsg.Workload`` or a function that returns one; the one that the Strategy has. Its ``train`` holds
        the rows of all simulated clients, which the Strategy's settings partition. A deployed client takes its own rows
        from its node config (``data="NAME:PATH"``, where NAME is the workload's), and charges its own ledger there.
    methods: recipes of the app's own that the Strategy may name.

    More handlers may be added to the app (``@app.evaluate()``); its run config is not read. The client refuses a server
    that names another workload, a method that is neither fedlsg's, installed, nor in ``methods``, or other code.
    Raises ValueError for what is no workload or recipe.
    """
    note_other_torch()
    name = _give_all(workload, methods)

    def read(message: Message, context: Context) -> Settings:
        if workloads.own(name) is None:  # another process than the one that made the app
            _give_all(workload, methods)
        given = announced(message.content)
        digest = given.pop(OWN_CODE, "")
        if given.get("workload") != name:
            raise SettingsError(f"the server trains workload {given.get('workload')!r}, this app has {name!r}")
        if "preset" in given:
            raise SettingsError("the server announces a preset and not its settings: it has another version of fedlsg")
        method = str(given.get("method"))
        if method != AUTO and method not in strategies.names() and method not in strategies.given():
            raise SettingsError(f"this app knows no method {method!r}: give it as client_app(methods=[...])")
        if digest != code_digest(name, method):
            raise SettingsError(
                "the server's workload or method has other code than this client's: install one version"
            )
        try:
            return from_mapping(given)
        except ValueError as error:
            raise SettingsError(str(error)) from None

    return make_app(read)


def _give_all(workload: Any, methods: tuple[Callable[..., Any], ...]) -> str:
    for method in methods:
        strategies.give(method.__name__, method)
    return give(workload)


def give(workload: Any) -> str:
    """Let this process find the workload under its name, or that of the function that made it; returns the name."""
    name = getattr(workload, "__name__", MODEL)
    made = make(workload, name if name.isidentifier() else MODEL)
    workloads.give(made.name, made)
    return made.name


def code_digest(workload: str, method: str) -> str:
    """Digest of the code of a workload, and of a method that is not fedlsg's."""
    found, build = workloads.own(workload), strategies.given().get(method)
    parts = [found.digest if found is not None else "", "" if build is None else digest_of(build)]
    return " ".join(part for part in parts if part)
