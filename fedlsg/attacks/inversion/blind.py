"""The blind baseline: the adversary's best guess before any payload, with the same prior and the same labels.

What an attack scores above it was in the payload; a PSNR without it says nothing (a grey image has 10 dB).
"""

from fedlsg.attacks.guess import Guess
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.observation import Knowledge


def blind(prior: Prior, knowledge: Knowledge, *, examples: int | None = None) -> Guess:
    """The expected image of the prior for every example: of its class where labels are granted and classes have one.

    The expected image has the least mean squared error of all guesses without a payload, so nothing blind does better.
    ``examples`` is their number where none is granted. Raises ValueError where neither says how many.
    """
    count = knowledge.examples or examples
    if count is None or count < 1:
        raise ValueError("expected the number of examples, granted or given as examples=...: none is known")
    by_class = prior.mean is not None and prior.mean.shape != prior.shape and knowledge.labels is not None
    note = "expected image of the class" if by_class else "expected image of the prior"
    return Guess(inputs=prior.expected(count, knowledge.labels), labels=knowledge.labels, note=f"no payload: {note}")
