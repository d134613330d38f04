"""What pages say of the privacy of an observed update: sigma, epsilon, membership in a batch."""

from fedlsg import bounded
from fedlsg.attacks.observation import Observation
from fedlsg.simulations.attacks.observations import Record
from fedlsg.simulations.report.words import REPRODUCIBLE

FPR = 0.01
"""Rate of false alarms at which the rate of recognised members of one batch is reported."""
TWO_QUESTIONS = (
    "Two questions about membership have two numbers. One batch: who has an example, and knows "
    "that it was in this one batch or nowhere, is right at the rate that is reported for one "
    "update. "
    "The whole run: nobody knows which batch an example may be in, because batches are drawn in "
    "secret; epsilon bounds this, and fedlsg attack --membership measures it. The first is the "
    "larger one where batches are small."
)
"""The note on the pages of both questions."""


def sigma_of(observation: Observation) -> float:
    """Noise over the sensitivity of an observed update; over the clip norm without a clip.

    0 without noise.
    """
    if not observation.mechanism.clips:
        return observation.noise_std / observation.mechanism.clip_norm
    return observation.noise_std / observation.mechanism.sensitivity(len(observation.frame.blocks))


def privacy_facts(
    record: Record, observation: Observation, membership: float | None
) -> dict[str, str]:
    """Facts for people, by name: run, model, sigma, epsilon, rate of membership in one batch."""
    settings, steps = record.base.settings, observation.local.steps
    features = "" if settings.features is None else f" by features={settings.features}"
    facts = {
        "run": record.run.path.name,
        "trains": f"{settings.model} on {settings.workload}{features}, {steps} local "
        f"step{'' if steps == 1 else 's'}",
    }
    if observation.mechanism.private:
        clients = len(observation.clients)
        where = "per payload" if clients == 1 else f"of the sum of {clients} payloads"
        facts["sigma"] = f"{sigma_of(observation):.3g} {where}"
        facts["epsilon"] = epsilon_words(record)
    else:
        facts["epsilon"] = f"none: mechanism {observation.mechanism.kind!r}"
    if settings.reproducible:
        facts["privacy"] = REPRODUCIBLE
    if membership is not None:
        facts["one batch"] = (
            f"an attacker recognises {100 * membership:.1f} % of examples that are known to be "
            f"either in this batch or nowhere, at {100 * FPR:g} % false alarms (closed form). "
            "Epsilon counts that nobody knows who is in which batch"
        )
    return facts


def epsilon_words(record: Record) -> str:
    """The epsilon of the recorded rounds in words, and that of the whole run with this noise.

    Rounds whose noise anybody can repeat have no epsilon.
    """
    settings, whole = record.base.settings, record.whole_epsilon
    at_delta = f"at delta {settings.delta:g}, of the"
    if settings.reproducible:
        of_rounds = "none of the recorded rounds, whose noise anybody can repeat"
    else:
        of_rounds = f"{epsilon_of(record)} {at_delta} recorded rounds"
    if whole is None:
        return of_rounds
    return f"{whole:.3g} {at_delta} whole run that has this noise; {of_rounds}"


def epsilon_of(record: Record) -> str:
    """The largest epsilon of a client, from the summary or, without one, from the ledger.

    "unknown" if there is a summary, but a damaged one.
    """
    try:
        value: str | float = bounded.read_json(record.run.summary)["epsilon_max"]  # or words
        return value if isinstance(value, str) else f"{value:.3f}"
    except FileNotFoundError:
        charges, delta = record.run.charges, record.base.settings.delta
        epsilons = [charges.of(client).epsilon(delta) for client in charges.clients()]
        largest = max(value if isinstance(value, float) else value.upper for value in epsilons)
        return f"{largest:.3f}"
    except (OSError, ValueError, KeyError, TypeError):
        return "unknown (the run has no summary that can be read)"
