"""The checks of a deployed client: announced settings against its own terms, before any charge.

Each refusal names the setting, the run's value, and what the node config allows.
"""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import cast

from fedlsg import strategies
from fedlsg.config.isolation import Isolation
from fedlsg.config.mechanisms import DP, KINDS
from fedlsg.secure_sum.discrete.sum_release import MOST_EXAMPLES
from fedlsg.simulations.client.node.node_config import TRUST, NodeConfig, own_path, with_own_columns
from fedlsg.simulations.client.node.refusals import (
    RefusedRunError,
    SettingsError,
    TermsError,
)
from fedlsg.simulations.models.pretrained import digest_of, find_on_hub, is_on_hub
from fedlsg.simulations.planning.base.isolation_level import at_level
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import RANDOM
from fedlsg.simulations.settings.own_epsilons import budget_of
from fedlsg.simulations.settings.settings import AUTO, Settings
from fedlsg.simulations.workloads.features.encoders import BUILT_IN
from fedlsg.user_code.library import own_code


def usable(settings: Settings, terms: NodeConfig) -> Settings:
    """The run's settings as this client uses them: with its own budget, columns, files and level.

    No data are loaded yet. Raises TermsError for settings that violate the client's terms,
    SettingsError for an unknown method.
    """
    if settings.reproducible:
        raise RefusedRunError(
            "reproducible=true: a deployed client never draws its noise from a known seed"
        )
    _check_method(settings)
    _check_trust(settings, terms)
    settings = _with_own_budget(settings, terms)
    _check_privacy(settings, terms)
    if settings.public_rows is not None:
        raise TermsError(
            "public_rows replaces the training rows of a simulation: this client trains on its own"
        )
    own = own_path(terms, settings.workload) is not None
    if own:
        for name in ("train_rows", "holdout"):
            if getattr(settings, name) is not None:
                raise TermsError(
                    f"{name} chooses among training rows, and this client has data of its own"
                )
        settings = with_own_columns(settings, terms)
    _refuse_paths(settings)
    settings = _own_weights(settings, terms)
    # the server's level is in its announcements, and its folders are not this client's
    settings = replace(settings, isolation=terms.isolation, data_dir=None, data_root=None)
    return _with_clients(settings, terms, own=own)


def _check_method(settings: Settings) -> None:
    """Raise SettingsError for an unknown method, TermsError for one without privacy."""
    default = DP.name  # the mechanism of all methods that fedlsg may choose
    if settings.method != AUTO:
        try:
            strategies.check_name(settings.method)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        default = strategies.default_mechanism(settings.method)
    check_mechanism(settings.parameters.get("mechanism", default), settings.method)


def _check_trust(settings: Settings, terms: NodeConfig) -> None:
    """Raise TermsError if the client's payload would be less protected than its terms require."""
    if settings.trust == "server":
        raise RefusedRunError(
            "trust=server: the server would get this client's update without noise; a deployed "
            "client never sends one. Take trust=secure"
        )
    if settings.trust == "secure" and settings.colluders == 0:
        raise RefusedRunError(
            "colluders=0: the run would count the noise of every other client, and each of them "
            "knows its own; leave colluders out of the run config, or give 1 or more"
        )
    if settings.unit != terms.unit:
        raise TermsError(
            f"unit={settings.unit}: this client's ledger and its epsilon-max protect one "
            f"{terms.unit} (set unit={settings.unit!r} in its node config, with a ledger-dir of "
            "its own)"
        )
    if TRUST.index(settings.trust) > TRUST.index(terms.trust):
        assumed = " if a secure sum is really there" if settings.trust == "aggregate" else ""
        raise TermsError(
            f"trust={settings.trust}: alone, this client's payload would carry too little noise; "
            f"it accepts trust={terms.trust} (set trust={settings.trust!r} in its node "
            f"config{assumed})"
        )


def _with_own_budget(s: Settings, terms: NodeConfig) -> Settings:
    """The settings with this client's epsilon and delta for the run.

    They are those of its node config, or of the run's settings for this client.
    """
    epsilon, delta = budget_of(s, terms.partition)
    for name in ("epsilon", "delta"):
        if getattr(terms, name) is not None and s.trust != "client":
            raise TermsError(
                f"trust={s.trust}: the clients share their noise, so this client cannot have its "
                f"own {name}: leave {name} out of its node config"
            )
    return replace(
        s,
        epsilon=epsilon if terms.epsilon is None else terms.epsilon,
        delta=delta if terms.delta is None else terms.delta,
        client_epsilons=None,
        client_deltas=None,
    )


def _refuse_paths(s: Settings) -> None:
    """Raise TermsError for a path of the server: the reply would reveal which files exist here."""
    if s.model is not None and s.model.startswith(("/", "~", ".", "\\")):
        raise TermsError(
            f"model={s.model!r} is a path: a deployed client takes models by name alone"
        )
    if s.features not in (None, *BUILT_IN):
        raise TermsError(
            f"features={s.features!r}: a deployed client makes features by {', '.join(BUILT_IN)} "
            "alone"
        )


def _own_weights(s: Settings, terms: NodeConfig) -> Settings:
    """The settings with this client's own copy of the weights that training starts from.

    No file that the server names is opened, nor a local folder with the name of a hub repository. A
    copy must have the digest that the run announces: layers that are never sent must have equal
    weights everywhere. Raises TermsError, whose text names no file of this client.
    """
    if s.pretrained in (None, RANDOM):
        return s
    if is_on_hub(str(s.pretrained)):
        try:
            return replace(s, pretrained=str(find_on_hub(str(s.pretrained))))
        except (OSError, ImportError) as error:
            raise TermsError(str(error)) from None
    if terms.pretrained is None or s.pretrained_sha256 is None:
        raise TermsError(
            f"pretrained={s.pretrained!r} is a file: this client needs a copy of its own "
            "(pretrained in its node config), and the run config its digest (pretrained-sha256)"
        )
    try:
        same = _digest(terms.pretrained) == s.pretrained_sha256
    except OSError:
        same = False
    if not same:
        raise TermsError(
            "this client's copy of the pretrained weights is missing, or is not the run's file"
        )
    return replace(s, pretrained=str(terms.pretrained))


@lru_cache(maxsize=4)  # a process reads the weights once, too
def _digest(file: Path) -> str:
    return digest_of(str(file))


def check_mechanism(kind: str, method: str) -> None:
    """Raise TermsError unless the mechanism is private."""
    if kind not in KINDS or not KINDS[kind].private:
        raise RefusedRunError(
            f"mechanism={kind!r} (method {method!r}) is not private: a deployed client trains "
            "under 'dp' alone"
        )


def check_base(base: Base, terms: NodeConfig) -> None:
    """Raise TermsError if the resolved settings, or the number of rows, do not fit the terms."""
    check_mechanism(base.method.mechanism.kind, base.method.name)
    _check_privacy(base.settings, terms)
    size = base.rows.size_of(terms.partition)
    if base.sums is not None and base.sums.colluders < terms.colluders:
        raise TermsError(
            f"colluders={base.sums.colluders}: the run's noise survives so many colluding clients, "
            f"and this client's node config asks for {terms.colluders}, one at least; set "
            "colluders in the run config"
        )
    if base.sums is not None and not base.unit.whole and size > MOST_EXAMPLES:
        raise TermsError(
            f"trust=secure is planned for clients of {MOST_EXAMPLES:,} training rows at most"
        )
    number, clients = size, base.settings.clients
    units, unit = ("training rows", "a row") if base.person is None else ("persons", "one of them")
    bound = f"1/N_k = {1 / size:.3g}, with N_k={size} {units} here: such a delta allows {unit}"
    if base.unit.whole:
        number = clients
        bound = (
            f"1/K = {1 / clients:.3g} of K={clients} clients: such a delta allows all data of one "
            "client"
        )
    of_run = "the run's delta" if terms.delta is None else "delta"
    for name, delta in (("delta-max", terms.delta_max), (of_run, base.settings.delta)):
        if delta >= 1 / number:
            raise TermsError(f"{name}={delta:g} is not below {bound} to be published")


def agreed_level(base: Base, announced: str | None, terms: NodeConfig) -> Base:
    """The base at the announced level of isolation, unless that is weaker than the rule here.

    announced: None before the first announcement. A level of the node config is kept; it is
    compared in ``check_level``.
    """
    free = terms.isolation == "auto" and base.local.isolation != "rows"
    if free and announced in ("isolated", "rows"):
        return at_level(base, cast(Isolation, announced))
    return base


def check_level(base: Base, announced: str) -> None:
    """Raise TermsError unless the announced level of isolation is the one of this client."""
    if announced != base.local.isolation:
        code = own_code(base.initial.model()) or "library code alone"
        raise TermsError(
            f"isolation={announced}: the server runs the model so, and here it is "
            f"{base.local.isolation} ({code}); set "
            f"isolation={base.local.isolation!r} in the run config, or {announced!r} in this "
            "client's node config"
        )


def check_features(base: Base, announced: str) -> None:
    """Raise TermsError unless filters, axes and normalisation of features equal the server's."""
    if announced != base.workload.features_digest:
        raise TermsError(
            f"features={base.settings.features}: filters, axes or normalisation here differ from "
            "the server's, because torch or its linear algebra has another version: install the "
            "server's, or copy the entries patches-* and features-* of its cache folder"
        )


def _check_privacy(s: Settings, terms: NodeConfig) -> None:
    """Raise TermsError if the run may spend more than the client's budget."""
    if s.delta is not None and s.delta > terms.delta_max:
        raise RefusedRunError(
            f"the run's delta={s.delta:g} is weaker than this client's "
            f"delta-max={terms.delta_max:g}: set delta in the run config, or a delta of its own in "
            "this client's node config"
        )
    if s.epsilon is not None and s.epsilon > terms.epsilon_max:
        raise RefusedRunError(
            f"the run's epsilon={s.epsilon:g} is more than this client's "
            f"epsilon-max={terms.epsilon_max:g}: the run would claim more than this client gives; "
            "set epsilon in the run config"
        )


def _with_clients(s: Settings, terms: NodeConfig, *, own: bool) -> Settings:
    """The settings with a number of clients, K.

    A client with its own data (``own``) needs the true K only if its share of the noise, or its
    replica, depends on it. Otherwise, and without a K in settings or terms, the least possible one
    is taken.
    """
    if s.clients is None and terms.num_partitions is not None:
        s = replace(s, clients=terms.num_partitions)
    if s.trust != "client" and (
        terms.num_partitions is None or (s.clients or 0) > terms.num_partitions
    ):
        raise TermsError(
            f"trust={s.trust} with clients={s.clients}: more clients are a smaller share of the "
            "noise for each, and this client's node config says "
            f"num-partitions={terms.num_partitions}; set the federation's number of clients there"
        )
    if s.clients is not None:
        if terms.partition >= s.clients:
            raise TermsError(
                f"the run has clients={s.clients}, and this client is "
                f"partition-id={terms.partition}"
            )
        return s
    shared = s.trust != "client" and s.min_survivors is None
    if not own or (s.clients_per_round is None and (shared or s.downlink == "sparse")):
        raise TermsError(
            "the number of clients is unknown here: set clients in the run config, or "
            "num-partitions in the node config"
        )
    return replace(
        s, clients=max(s.clients_per_round or 1, s.min_survivors or 1, terms.partition + 1)
    )
