"""How much each client counts in the sum: a public constant made of declared sizes and rates, never of realised ones.

Symbols: N_k declared examples, q_k Poisson rate, B = q mean(N) the expected batch that the server divides by
    default     1               a client counts by its expected batch q_k N_k: by its examples under one sample_rate,
                                like any other under one batch_size
    examples    B / (q_k mean(N))     by its examples N_k, whatever its rate
    clients     B / (q_k N_k)         like any other, whatever its size
The server multiplies values that have their noise already: it is post-processing, and no epsilon changes.
"""

import math
from statistics import fmean

from simulations.plan.base import Base

SAME = 1e-9


def client_weights(base: Base) -> list[float]:
    """The factor of each client's values. Raises ValueError where the server sees a sum alone and they are not 1."""
    s, batch = base.settings, base.local.expected_batch
    if s.weighting is None:
        return [1.0] * len(base.sizes)
    mean = fmean(base.sizes)
    counted = [mean if s.weighting == "examples" else size for size in base.sizes]
    exact = [batch / (rate * size) for rate, size in zip(base.rates, counted, strict=True)]
    found = [1.0 if math.isclose(weight, 1.0, rel_tol=SAME) else weight for weight in exact]
    if s.trust != "client" and any(weight != 1 for weight in found):
        raise ValueError(
            f"weighting={s.weighting} multiplies each client's values, from {min(found):.3g} to {max(found):.3g} here, "
            f"and under trust={s.trust} the server sees their sum alone: leave weighting out, or take trust=client"
        )
    return found
