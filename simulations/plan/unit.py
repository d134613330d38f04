"""Client-level privacy of a run: whether its settings are true at that level, and what the ledger is charged with."""

from fedlsg.client_level import AdaptiveClip, ClientUnit
from fedlsg.forms import EMBEDDING
from fedlsg.method import Method
from fedlsg.payload import Codec, keeps_memory
from simulations.settings.participation import availability_of
from simulations.settings.run import Resolved, Settings

RATE = 0.2
"""eta of Andrew et al. 2021."""
COUNT_SHARE = 20
"""sigma_b is the expected number of clients over this (Andrew et al. 2021)."""


def client_unit(s: Resolved, method: Method) -> ClientUnit | None:
    """How a round releases whole clients; None at example level, and for methods without privacy."""
    if s.unit == "example" or not method.mechanism.private:
        return None
    if s.trust == "server":
        return ClientUnit(sample_rate=s.clients_per_round / s.clients, at_server=True)
    return ClientUnit(sample_rate=1.0, at_server=False)


def adaptive_clip(s: Resolved, noise_multiplier: float) -> AdaptiveClip | None:
    """The adaptive clip that the settings ask for; ``noise_multiplier``: z, of count and sum together.

    By default the count has the noise of the paper or, in a small federation, of z clients: then the sum has 4/3 of the
    variance that it would have alone. Raises ValueError for a given noise that leaves nothing for the sum.
    """
    if s.clip_quantile is None:
        return None
    made = AdaptiveClip(
        quantile=s.clip_quantile,
        rate=RATE if s.clip_learning_rate is None else s.clip_learning_rate,
        count_noise=s.clip_count_noise or max(s.clients_per_round / COUNT_SHARE, noise_multiplier),
        expected_clients=s.clients_per_round,
    )
    made.sum_multiplier(noise_multiplier)
    return made


def check_unit(s: Resolved, method: Method, codec: Codec) -> None:
    """Raise ValueError, naming the setting and the fix, where epsilon would not be true for the unit."""
    _check_adaptive(s, method)
    private = method.mechanism.private
    if s.trust == "server" and private and s.unit == "example":
        raise ValueError(
            "trust=server adds noise to a sum of whole updates: it needs unit=client; for noise on examples take "
            "trust=client, secure or aggregate"
        )
    if s.unit == "example" or not private:
        return
    if s.trust in ("client", "aggregate"):
        raise ValueError(
            f"unit=client hides a client in a real sum, got trust={s.trust}: take trust=server (simulation: the server "
            "is trusted with updates that have no noise, and adds it) or trust=secure (clients add shares of it in a "
            "secure sum)"
        )
    if s.batch_size is None:
        raise ValueError(
            f"unit=client with sample_rate={s.sample_rate:g}: a client's expected batch would depend on which other "
            "clients there are; give batch_size, a public number of examples"
        )
    if method.prune.reads_data:
        raise ValueError(f"{method.name!r} prunes by saliencies of single examples: take unit=example, or no pruning")
    if method.personal:
        raise ValueError(
            f"personal={method.personal!r} keeps a part of each update with its client, and unit=client hides an "
            "update in the sum of all: take unit=example"
        )
    if method.carrier.form is EMBEDDING:
        raise ValueError(
            f"{method.name!r} clips the embedding of each example apart from what it leaves, and unit=client clips "
            "whole updates: take unit=example, or biased=true"
        )
    if not method.carrier.adds_up:
        raise ValueError(f"unit=client adds updates up, and factors do not add up: {method.name!r} needs unit=example")
    if method.compression.chooses or keeps_memory(method, codec):
        raise ValueError(
            f"{method.name!r} keeps what it did not send for later rounds, or sends positions of its own choice: a "
            "client would then act on a round that it is not charged for; take unit=example"
        )
    if s.trust == "server" and s.over_selection:
        raise ValueError(
            f"over_selection={s.over_selection:g} under trust=server: only the first replies would count: one client "
            "would decide whether another one counts; raise clients_per_round, which costs what the ledger says"
        )
    if s.trust == "server" and isinstance(availability_of(s), str):
        raise ValueError(
            "availability as a trace under trust=server: who is there next would depend on who took part, which is a "
            "secret of the server; give availability as a share"
        )
    if s.trust == "server" and s.client_timeout is not None:
        raise ValueError(
            f"client_timeout={s.client_timeout:g} under trust=server: a client that slows the machine down would "
            "decide whether others reply in time, and so count; leave it out: round_timeout ends the run instead, with "
            "nothing released of that round"
        )
    if s.trust == "server" and codec.grid_from_noise:
        raise ValueError(
            f"codec={s.codec!r} takes its grid from the client's noise, and under trust=server it adds none: choose "
            "float32, bfloat16 or int8"
        )
    if s.trust == "server" and s.min_survivors > 1:
        raise ValueError(
            f"min_survivors={s.min_survivors} under trust=server: whether a round counts would show how many clients "
            "were drawn; leave it out (a round without any client is noise alone)"
        )


def refuse_client_level(s: Settings, what: str) -> None:
    """Raise ValueError for client-level settings where ``what`` is made for single examples."""
    if s.unit == "client":
        raise ValueError(f"{what} works on single examples: it needs unit=example, got unit=client")


def _check_adaptive(s: Resolved, method: Method) -> None:
    for name in ("clip_learning_rate", "clip_count_noise"):
        if s.clip_quantile is None and getattr(s, name) is not None:
            raise ValueError(f"{name}={getattr(s, name):g} is a setting of an adaptive clip: give clip_quantile, too")
    if s.clip_quantile is None:
        return
    if s.unit != "client" or s.trust != "server":
        raise ValueError(
            f"clip_quantile={s.clip_quantile:g} counts clients at a trusted server: it needs unit=client and "
            "trust=server"
        )
    if method.mechanism.clip != "joint":
        raise ValueError("clip_quantile moves one clip norm: it needs clip=joint")
