"""Top-k with error feedback, not private: each client sends the k largest of its gradients and its
memory.

Stich et al. 2018 (Mem-SGD) and Alistarh et al. 2018; with several local steps Basu et al. 2019
(Qsparse-local-SGD).
Differs from the sources: the memory is in units of gradient, not of the step, so that a learning
rate that falls applies to what is sent late, too; the server's momentum acts behind the sum; k is a
share of all coordinates together, not of each layer; a client that is not selected keeps its
memory; values of a lost or rejected payload are lost.
"""

from fedlsg.method import Compression, Method, TopkRate
from fedlsg.privacy import Mechanism
from fedlsg.strategies.recipes.sgd import NON_PRIVATE
from fedlsg.training import ServerOptimizer


def recipe(
    *, topk_rate: TopkRate = 0.01, mechanism: Mechanism = NON_PRIVATE, server: ServerOptimizer
) -> Method:
    """floor(topk_rate d) of the d trainable coordinates, one at least, with their positions."""
    compression = Compression(topk_rate=topk_rate, error_feedback=True)
    return Method(name="topk", compression=compression, mechanism=mechanism, server=server)
