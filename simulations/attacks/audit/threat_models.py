"""Threat models in words: what the auditor of an audit knows and sees."""

from fedlsg.attacks.audit.played.outputs import ROWS_OF_PERSON
from fedlsg.attacks.audit.played.stated import Stated
from fedlsg.config.units import EXAMPLE, Unit

EXPECTED_NOISE = (
    "How much noise there must be follows from epsilon, delta, q, the steps and who reads, in code "
    "that the planner does not use: {reader}."
)
"""The last sentence of a threat model of the unit mode."""
CHOSEN_GRADIENTS = (
    "The auditor chooses the gradients of the canaries, which are {canaries}. It knows frame, "
    "mask, clip, sigma and q, "
)
CHOSEN_UPDATES = (
    "The auditor chooses the updates of the canaries, which are clients: what their local training "
    "ends with. It knows frame, mask, clip, sigma and q, "
)
SEEN_SUM = (
    "and sees the sum of every round that the server decodes, of the fewest clients that may be in "
    "one, less the values and the noise of those who read along. "
)
SECRET_OF_EXAMPLES = "Which canaries are in, the batches and the noise are secret. "
SECRET_OF_CLIENTS = "Which canaries are in, and the noise, are secret. "
OTHERS_NOT_COVERED = "the wire, the server, and the frames of other rounds."
THREATS = {
    ("client", "example"): (
        f"{CHOSEN_GRADIENTS}and sees the noisy sum of every round of one client. "
        f"{SECRET_OF_EXAMPLES}Not covered: the backward pass, {OTHERS_NOT_COVERED}"
    ),
    ("aggregate", "example"): (
        f"{CHOSEN_GRADIENTS}and sees the sum of every round over the fewest clients that may be in "
        "one, as an ideal secure sum would give it, less the noise of one of them, who reads "
        f"along; nobody provides this sum. {SECRET_OF_EXAMPLES}Not covered: the backward pass, "
        f"{OTHERS_NOT_COVERED}"
    ),
    ("secure", "example"): (
        f"{CHOSEN_GRADIENTS}{SEEN_SUM}{SECRET_OF_EXAMPLES}Not covered: masks and keys, the "
        f"backward pass, {OTHERS_NOT_COVERED}"
    ),
    ("secure", "client"): (
        f"{CHOSEN_UPDATES}{SEEN_SUM}{SECRET_OF_CLIENTS}Not covered: masks and keys, local "
        f"training, {OTHERS_NOT_COVERED}"
    ),
    ("server", "client"): (
        f"{CHOSEN_UPDATES}and sees what the server releases of every round. Which canaries are in, "
        "which clients the server draws, and the noise, are secret. Not covered: local training, "
        "the wire, and the frames of other rounds."
    ),
}
"""Threat models of the unit mode, by trust and unit, without the words for ``{canaries}``."""
TRAINING_THREAT = (
    "Canaries are training examples with a wrong label, or images of another kind. The auditor "
    "knows every example and the public state of every round, and sees every payload of each "
    "client as it was sent. Which canaries are in, the batches and the noise are secret."
)


def threat_model(stated: Stated, unit: Unit, mode: str) -> str:
    """The threat model of a mode, and in unit mode how much noise is expected."""
    if mode == "training":
        return TRAINING_THREAT
    expected = EXPECTED_NOISE.format(reader=stated.reader)
    protected, canaries = stated.unit, "examples"
    if unit.persons:
        protected = EXAMPLE.name
        canaries = f"persons ({unit.name}) with {ROWS_OF_PERSON} rows each"
    return f"{THREATS[stated.trust, protected].format(canaries=canaries)} {expected}"
