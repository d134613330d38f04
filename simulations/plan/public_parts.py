"""The public test split in parts like the clients' own data: which rows a client's model is evaluated on."""

from jaxtyping import Int64
from torch import Tensor

from simulations.plan.base import Base
from simulations.workloads.partition import SCHEMES, matching_parts


def check_parts(base: Base) -> None:
    """Raise ValueError where the test split has no parts like the clients', or is not public."""
    s, why = base.settings, None
    if base.declared is not None:
        why = "in a deployment the clients hold data of their own, of which nobody knows the class mix"
    elif s.partition not in SCHEMES:
        why = f"partition={s.partition} says nothing about test rows; it needs one of {', '.join(SCHEMES)}"
    elif s.holdout is not None:
        why = "holdout tests on training rows, which are private"
    elif base.workload.num_classes is None:
        why = f"workload {base.workload.name} has no classes"
    if why is not None:
        raise ValueError(f"evaluate_clients evaluates parts of the public test split that are like the clients': {why}")


def parts_of_test(base: Base) -> list[Int64[Tensor, " n"]]:
    """Rows of the test split for each client; the first test split where there are several."""
    s = base.settings
    return matching_parts(
        base.workload.test.labels, base.workload.train.labels, num_clients=s.clients, scheme=s.partition, seed=s.seed,
        alpha=s.alpha, shards_per_client=s.shards_per_client,
    )  # fmt: skip
