"""The public test split in parts like the clients' own data: which rows a client's model is evaluated on."""

from collections.abc import Collection, Iterable

from jaxtyping import Int64
from torch import Tensor

from fedlsg.carriers import find_classifier
from fedlsg.carriers.personal import personal_names
from fedlsg.payload import keeps_memory
from simulations.plan.base import Base
from simulations.workloads.partition import matching_parts


def parts_of_test(base: Base) -> list[Int64[Tensor, " n"]]:
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
