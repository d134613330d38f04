"""Runs that the attacks cannot replay, and payloads that nobody sees: refused, with the remedy."""

from fedlsg.attacks.observation import ThreatModel
from fedlsg.config.units import unit_named
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.any_run import Settings


def check_replayed(base: Base) -> None:
    """Raise ValueError for a run whose clients or data the attacks cannot replay.

    Public features are refused if no gradient leads from them back to pixels.
    """
    if base.workload.features is not None and base.workload.encode is None:
        normalised = "" if base.workload.normalised is None else " with normalise=public"
        raise ValueError(
            f"features={base.settings.features}{normalised}: the run trains a head on features, "
            "and no gradient leads from these back to pixels or words, which the attacks rebuild: "
            "attack a run on features=patches or without features, or use --membership"
        )
    if base.rows.augment is not None:
        raise ValueError(
            "attacks replay a client without augmentation: record a run with -c augment=none"
        )
    if base.uplink.keeps_memory:
        raise ValueError(
            f"attacks replay a client without memory, but {base.method.name!r} with codec "
            f"{base.settings.codec!r} sends what earlier rounds left out: attack method sgd with "
            "another codec, which hides nothing either"
        )


def refuse_unseen(trust: str, threat: ThreatModel) -> None:
    """Raise ValueError if the adversary would see single payloads that nobody sees."""
    if trust != "client" and threat.view == "client":
        unseen = "is assumed to see a single payload" if trust == "aggregate" else "can unmask one"
        raise ValueError(
            f"this run has trust={trust}: one payload has too small a share of the noise, "
            f"and nobody {unseen}; attack the sum with --view aggregate"
        )


def refuse_client_unit(settings: Settings) -> None:
    """Raise ValueError for a run whose unit of privacy is a client, or a person."""
    unit = unit_named(settings.unit)
    if unit.persons:
        raise ValueError(
            f"this run has unit={unit.name}: each {unit.name} is clipped whole, and these attacks "
            "replay batches of examples; fedlsg attack --membership attacks persons"
        )
    if unit.whole:
        raise ValueError(
            "this run has unit=client: its payloads are whole updates, and these attacks replay "
            "batches of examples; fedlsg attack --membership attacks clients"
        )
