"""SGD: the non-private dense baseline. Its epsilon is infinite."""

from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer

NON_PRIVATE = Mechanism(kind="none")


def recipe(*, mechanism: Mechanism = NON_PRIVATE, server: ServerOptimizer) -> Method:
    """Every trainable coordinate, no clip, no noise. Raises ValueError under a mechanism that adds
    noise.
    """
    if mechanism.adds_noise:
        raise ValueError(
            f"method 'sgd' adds no noise, got mechanism {mechanism.kind!r}; choose method 'dpsgd'"
        )
    return Method(name="sgd", mechanism=mechanism, server=server)
