"""A deployed client compares the settings that the server announces with its own terms, before anything is spent.

Each refusal names the setting, the run's value, and what the node config allows.
"""

from dataclasses import replace

import strategies
from simulations.client.node.data import own_path, with_own_columns
from simulations.client.node.terms import Terms
from simulations.grids.refusals import SettingsError, TermsError
from simulations.plan.plan import Base
from simulations.settings.settings import Settings


def usable(settings: Settings, terms: Terms) -> Settings:
    """The run's settings as this client uses them. Nothing is loaded yet.

    Raises TermsError for settings that no data could make acceptable, SettingsError for an unknown method.
    """
    if settings.reproducible:
        raise TermsError("reproducible=true: a deployed client never draws its noise from a known seed")
    try:
        strategies.check_name(settings.method)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    check_mechanism(
        settings.parameters.get("mechanism", strategies.default_mechanism(settings.method)), settings.method
    )
    if settings.trust == "aggregate" and terms.trust != "aggregate":
        raise TermsError(
            "trust=aggregate: alone, this client's payload would carry too little noise; it accepts trust=client "
            "(set trust='aggregate' in its node config if a secure sum is really there)"
        )
    _check_privacy(settings, terms)
    own = own_path(terms, settings.workload) is not None
    if own:
        for name in ("train_rows", "holdout"):
            if getattr(settings, name) is not None:
                raise TermsError(f"{name} chooses among training rows, and this client has data of its own")
        settings = with_own_columns(settings, terms)
    _refuse_paths(settings)
    settings = replace(settings, data_dir=None)  # the server's folders are not this client's
    return _with_clients(settings, terms, own=own)


def _refuse_paths(s: Settings) -> None:
    """Raise TermsError for a path that the server chose: the reply would reveal which files exist here."""
    for name in ("model", "pretrained"):
        value = getattr(s, name)
        if value is not None and value.startswith(("/", "~", ".", "\\")):
            raise TermsError(f"{name}={value!r} is a path: a deployed client takes models by name alone")


def check_mechanism(kind: str, method: str) -> None:
    """Raise TermsError unless the mechanism is private."""
    if kind != "dp":
        raise TermsError(
            f"mechanism={kind!r} (method {method!r}) is not private: a deployed client trains under 'dp' alone"
        )


def check_base(base: Base, terms: Terms) -> None:
    """Raise TermsError if the resolved settings, or the number of rows, do not fit the terms."""
    check_mechanism(base.method.mechanism.kind, base.method.name)
    _check_privacy(base.settings, terms)
    size = len(base.parts[terms.partition])
    for name, delta in (("delta-max", terms.delta_max), ("the run's delta", base.settings.delta)):
        if delta >= 1 / size:
            raise TermsError(
                f"{name}={delta:g} is not below 1/N_k = {1 / size:.3g}, with N_k={size} training rows here: such a "
                "delta allows a row to be published"
            )


def _check_privacy(s: Settings, terms: Terms) -> None:
    if s.delta is not None and s.delta > terms.delta_max:
        raise TermsError(f"the run's delta={s.delta:g} is weaker than this client's delta-max={terms.delta_max:g}")
    if s.epsilon is not None and s.epsilon > terms.epsilon_max:
        raise TermsError(
            f"the run's epsilon={s.epsilon:g} is more than this client's epsilon-max={terms.epsilon_max:g}: the run "
            "would claim more than this client gives; set epsilon in the run config"
        )


def _with_clients(s: Settings, terms: Terms, *, own: bool) -> Settings:
    """The settings with a number of clients.

    A client with its own data needs it only if its share of the noise, or its replica, depends on it.
    """
    if s.clients is None and terms.num_partitions is not None:
        s = replace(s, clients=terms.num_partitions)
    if s.trust == "aggregate" and (terms.num_partitions is None or (s.clients or 0) > terms.num_partitions):
        raise TermsError(
            f"trust=aggregate with clients={s.clients}: more clients are a smaller share of the noise for each, and "
            f"this client's node config says num-partitions={terms.num_partitions}; set the federation's number of "
            "clients there"
        )
    if s.clients is not None:
        if terms.partition >= s.clients:
            raise TermsError(f"the run has clients={s.clients}, and this client is partition-id={terms.partition}")
        return s
    shared = s.trust == "aggregate" and s.min_survivors is None
    if not own or (s.clients_per_round is None and (shared or s.downlink == "sparse")):
        raise TermsError(
            "the number of clients is unknown here: set clients in the run config, or num-partitions in the node config"
        )
    return replace(s, clients=max(s.clients_per_round or 1, s.min_survivors or 1, terms.partition + 1))
