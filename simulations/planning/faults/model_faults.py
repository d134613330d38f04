"""A run refuses a model that mixes examples, has weights of 16 bits, or differs between processes.

The model is run on public rows of the test split, never on training rows.
"""

from collections.abc import Collection, Iterable, Mapping

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from fedlsg.carriers import carried_parameters, find_classifier
from fedlsg.carriers.personal import personal_names
from fedlsg.gradients import LossFunction, check_supported, trainable
from fedlsg.gradients.independence import check_model
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.faults.row_faults import naming_failures
from fedlsg.simulations.workloads import Split, to_device
from fedlsg.training import make_optimizer
from fedlsg.user_code.objects import restored

PROBE_ROWS = 7
"""Public rows that a model is tried on."""
TOKENS = 16
"""Most tokens of a probe text, if enough texts are that short: the check of long texts is slow."""


def count_blocks(base: Base) -> int:
    """The number of blocks of every frame of the run, after all checks of the model.

    A carried weight has one block for each of ``Carrier.parts``, any other trainable parameter one.
    Raises ValueError for a model that the checks refuse, and if a user's function that makes
    carriers or masks fails, or does not make the same frame twice.
    """
    if base.method.own_functions:
        base.initial.public().check_repeatable()
    model = base.initial.model()
    if workloads.own(base.settings.workload) is not None:
        check_repeatable(model, base.initial.model())
    check_supported(model)
    check_weights(trainable(model))
    # refuses now what it cannot step
    make_optimizer(trainable(model), base.method.server, updates=1)
    if base.method.mechanism.clips:
        check_independent(
            model,
            base.workload.test,
            base.workload.loss,
            device=base.device,
            level=base.local.isolation,
        )
    else:
        check_runs(model, base.workload.test, base.workload.loss, device=base.device)
    carried = carried_parameters(model, base.method.carrier, classifier=base.workload.classifier)
    check_personal(base, trainable(model), carried)
    return len(trainable(model)) + len(carried) * (len(base.method.carrier.parts) - 1)


def check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError if all trainable weights have 16 bits: rounding would hide most updates."""
    types = {weight.dtype for weight in weights.values()}
    if types and types <= {torch.bfloat16, torch.float16}:
        raise ValueError(
            f"the model's weights are {' and '.join(sorted(map(str, types)))}, whose rounding "
            "hides most updates: give it float32 weights, model.float(), and float32 inputs; "
            "precision='bfloat16' takes passes in bfloat16"
        )


def check_repeatable(model: nn.Module, again: nn.Module) -> None:
    """Raise ValueError unless two builds of a model are equal: every process builds its own."""
    other = again.state_dict()
    changed = [
        name for name, value in model.state_dict().items() if not same_bits(value, other.get(name))
    ]
    if changed or len(other) != len(model.state_dict()):
        raise ValueError(
            "model: two calls of its function differ in "
            f"{', '.join(changed[:3]) or 'their state'}, and server and clients would not have the "
            "same model: draw from torch's default generator only, which is seeded"
        )


def same_bits(a: object, b: object) -> bool:
    """Whether two entries of a state are equal, NaN included."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
    return type(a) is type(b)


def check_independent(
    model: nn.Module, test: Split, loss: LossFunction, *, device: str, level: Isolation = "checked"
) -> None:
    """Raise ``UnsupportedLayerError``, naming the layer, if the model mixes the examples of a
    batch.

    The texts of a batch have the same padded length here, alone and together: effects of padding
    are not checked.
    """
    inputs, targets = test.batch(probes(test))
    with naming_failures(model, inputs, targets, "test"):
        rows = to_device(inputs, device), targets.to(device)
        with restored(loss):
            check_model(model, loss, [rows], level=level)


@torch.no_grad()
def check_runs(model: nn.Module, test: Split, loss: LossFunction, *, device: str) -> None:
    """Raise ValueError if model or loss fail on a few public rows; the model may mix examples."""
    inputs, targets = test.batch(probes(test))
    model.eval()
    with naming_failures(model, inputs, targets, "test"):
        inputs = to_device(inputs, device)
        loss(model(**inputs) if isinstance(inputs, dict) else model(inputs), targets.to(device))


def probes(test: Split) -> Int64[Tensor, " rows"]:
    """Numbers of PROBE_ROWS public rows from all over a test split, the longest first.

    Texts have at most ``TOKENS`` tokens, unless there are too few of these. The longest is first,
    because a batch with it is as long as that text alone.
    """
    rows = test.order(torch.arange(len(test)))
    if test.lengths is not None:
        short = int((test.lengths <= TOKENS).sum())
        rows = rows[: max(short, PROBE_ROWS)]
    return rows[torch.linspace(len(rows) - 1, 0, PROBE_ROWS).long()]


def check_personal(base: Base, names: Iterable[str], carried: Collection[str]) -> None:
    """Raise ValueError for personal parameters that the run cannot keep at clients."""
    if not base.method.personal:
        return
    workload = base.workload
    personal = personal_names(
        names, base.method.personal, find_classifier(base.initial.model(), workload.classifier)
    )
    if inside := [name for name in personal if name in carried]:
        raise ValueError(
            f"personal={base.method.personal!r} names {', '.join(inside)}, which method "
            f"{base.method.name!r} trains in carriers: name parameters that stay dense, such as "
            "the classifier, or take dpsgd"
        )
    if base.uplink.keeps_memory:
        raise ValueError(
            f"codec {base.uplink.codec.name!r} without noise needs error feedback, and personal= "
            "has none"
        )
    if workload.metrics or len(workload.tests) > 1:
        raise ValueError(
            "personal parameters are evaluated by accuracy on one test split: leave metrics out"
        )
