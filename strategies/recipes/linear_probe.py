"""The private linear probe: DP-SGD on the classifier alone (Yu et al. 2021, "Linear").

A private method that does not beat it has not earned its noise.
"""

from fedlsg.carriers import Dense
from fedlsg.method import Method
from fedlsg.privacy import Mechanism
from fedlsg.training import ServerOptimizer


def recipe(*, mechanism: Mechanism, server: ServerOptimizer) -> Method:
    """Everything frozen but the classifier, which is dense."""
    return Method(
        name="linear-probe", carrier=Dense(train="classifier"), mechanism=mechanism, server=server
    )
