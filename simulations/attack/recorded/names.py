"""Names of attacks for readers, and the form that each attack has: closed, adaptive or naive."""

NAIVE = "-naive"
CLOSED = frozenset({"first-layer", "relu-batch", "span"})
"""Attacks that solve equations; the others search."""
FORMS = (
    "closed: solves equations. adaptive: searches, and sends its candidates through the client's own projection, mask "
    "and clip. naive: searches without them."
)


def split_name(attack: str) -> tuple[str, str]:
    """An attack's name, and its form: closed, adaptive or naive."""
    if attack.endswith(NAIVE):
        return attack.removesuffix(NAIVE), "naive"
    return attack, "closed" if attack in CLOSED else "adaptive"


def shown_name(attack: str) -> str:
    """An attack's name in a sentence."""
    name, form = split_name(attack)
    return f"naive {name}" if form == "naive" else name
