"""PowerSGD with error feedback, not private (Vogels et al. 2019, Algorithms 1 and 2).

Differs from the source: a client sends both of its factors in one message, where the source
averages P before Q is
made: the server adds the clients' products, whose sum may have more than rank r; the power step
starts from the history W - W_0 that everyone knows, not from the last Q; memory and lost payloads
are as for ``topk``.
"""

from fedlsg.carriers import Factors, PowerSteps, Rank, Warmup
from fedlsg.method import Compression, Method
from fedlsg.privacy import Mechanism
from fedlsg.strategies.recipes.sgd import NON_PRIVATE
from fedlsg.training import ServerOptimizer


def recipe(
    *,
    rank: Rank = 4,
    power_steps: PowerSteps = 1,
    warmup: Warmup = 1,
    mechanism: Mechanism = NON_PRIVATE,
    server: ServerOptimizer,
) -> Method:
    """Rank-r factors of gradients plus memory; ``dp-powersgd`` is the private one, without
    memory.
    """
    return Method(
        name="powersgd",
        carrier=Factors(rank=rank, power_steps=power_steps, warmup=warmup),
        compression=Compression(error_feedback=True),
        mechanism=mechanism,
        server=server,
    )
