"""Three groups of parameters that may have a learning rate and a weight in the clip of their own.

``classifier``: the output layer. ``norms``: biases and norm scales. ``carriers``: every other weight, carried or dense.
"""

from typing import Literal

Group = Literal["carriers", "norms", "classifier"]


def group_of(name: str, shape: tuple[int, ...], classifier: str) -> Group:
    """The group of a trainable parameter; ``classifier`` is the output layer's path."""
    if name.startswith(classifier + "."):
        return "classifier"
    return "norms" if len(shape) < 2 else "carriers"
