"""What each client is to the server: how much it counts in the sum, and the public test rows that are like its data.

A weight is a public constant made of declared sizes and rates, never of realised ones.

Symbols: N_k declared examples, q_k Poisson rate, B = q mean(N) the expected batch that the server divides by
    default     1               a client counts by its expected batch q_k N_k: by its examples under one sample_rate,
                                like any other under one batch_size
    examples    B / (q_k mean(N))     by its examples N_k, whatever its rate
    clients     B / (q_k N_k)         like any other, whatever its size
The server multiplies values that have their noise already: it is post-processing, and no epsilon changes.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from statistics import fmean

from jaxtyping import Int64
from torch import Tensor

from fedlsg.carriers import find_classifier
from fedlsg.carriers.personal import personal_names
from fedlsg.payload import keeps_memory
from simulations.plan.base import Base
from simulations.workloads.partition import matching_parts

SAME = 1e-9


def client_weights(base: Base) -> dict[int, float]:
    """The factor of the values of clients, by their declared size.

    Raises ValueError where the server sees a sum alone and factors are not 1.
    """
    s, sizes = base.settings, dict.fromkeys(base.sizes)
    if s.weighting is None:
        return dict.fromkeys(sizes, 1.0)
    mean, batch = fmean(base.sizes), base.local.expected_batch
    exact = {size: batch / (base.rate_of(size) * (mean if s.weighting == "examples" else size)) for size in sizes}
    found = {size: 1.0 if math.isclose(weight, 1.0, rel_tol=SAME) else weight for size, weight in exact.items()}
    if s.trust != "client" and any(weight != 1 for weight in found.values()):
        least, most = min(found.values()), max(found.values())
        raise ValueError(
            f"weighting={s.weighting} multiplies each client's values, from {least:.3g} to {most:.3g} here, "
            f"and under trust={s.trust} the server sees their sum alone: leave weighting out, or take trust=client"
        )
    return found


def parts_of_test(base: Base) -> Sequence[Int64[Tensor, " n"]]:
    """Rows of the test split for each client; the first test split where there are several."""
    s = base.settings
    return matching_parts(
        base.workload.test.labels, base.workload.train.labels, num_clients=s.clients, scheme=s.partition, seed=s.seed,
        alpha=s.alpha, shards_per_client=s.shards_per_client,
    )  # fmt: skip


def check_personal(base: Base, names: Iterable[str], carried: Collection[str]) -> None:
    """Raise ValueError for personal parameters that are none of the model's, or would travel in carriers."""
    if not base.method.personal:
        return
    workload = base.workload
    found = personal_names(names, base.method.personal, find_classifier(base.build_model(), workload.classifier))
    if inside := [name for name in found if name in carried]:
        raise ValueError(
            f"personal={base.method.personal!r} names {', '.join(inside)}, which method {base.method.name!r} trains in "
            "carriers: name parameters that stay dense, such as the classifier, or take dpsgd"
        )
    if keeps_memory(base.method, base.codec):
        raise ValueError(f"codec {base.codec.name!r} without noise needs error feedback, and personal= has none")
    if workload.metrics or len(workload.tests) > 1:
        raise ValueError("personal parameters are evaluated by accuracy on one test split: leave metrics out")
