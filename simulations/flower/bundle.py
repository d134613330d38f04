"""What Flower installs for an app before a run, and fedlsg then runs with: a torch of the app's own requirements."""

from functools import cache
from importlib.metadata import distributions
from logging import WARNING

from flwr.common.logger import log

FIX = "leave torch out of the dependencies in the app's pyproject.toml, or ask for the version that fedlsg has"


def other_torch() -> str | None:
    """A sentence where there is a second torch behind the one that is imported; None where there is one.

    Flower puts the environment that it makes of an app's requirements before the one that Flower runs in.
    """
    found = list(dict.fromkeys(torch.version for torch in distributions(name="torch")))
    if len(found) < 2:
        return None
    first, second = found[:2]
    return f"the app's own requirements brought torch {first}, and torch {second} came with fedlsg: {FIX}"


@cache
def note_other_torch() -> None:
    """Log the sentence, once a process."""
    if (said := other_torch()) is not None:
        log(WARNING, "fedlsg: %s", said)
