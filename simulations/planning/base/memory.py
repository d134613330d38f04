"""The memory that an example of a microbatch takes, and how many examples fit.

    bytes of an example = saved activations + 2 * its largest output + its own gradients

A carried weight has r (m + n) numbers of gradient for each example, a dense one all m n of them,
unless ghost clipping forms none: then the gradient at the layer's output is kept. So a dense method
fits fewer examples than a low-rank one. All of it is public: the model, the method, and the form of
a test row.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.bounded import ram
from fedlsg.carriers import layer_table
from fedlsg.gradients.formulas.ghost import ghost_is_cheaper
from fedlsg.randomness import own_draws
from fedlsg.simulations.planning.base.run_base import Base, SomeBase
from fedlsg.simulations.workloads.base.made_ahead import opens_files, processors
from fedlsg.strategies.own_loop.row_checks import model_outputs
from fedlsg.tensors import fields_of
from fedlsg.user_code.objects import restored

DEFAULT_MICROBATCH = 256
"""Examples of a microbatch until it is sized, or if the memory of an example is not known.

A processor takes no more, because its caches gain nothing; a GPU no more than these or a batch.
"""
PARTS_OF_BATCH = 32
"""Microbatches of a batch of images in files: workers decode the next one while a step computes."""
SHARE_OF_RAM = 0.5
"""A process takes at most this share of a processor's memory: all memory / processors."""
SHARE_OF_GPU = 0.8
"""A process takes at most this share of the memory of its GPU."""
COPIES = 6
"""Float32 copies of all parameters at once: weights, noise, float64 sum (two), optimizer (two)."""
FLOAT_BYTES = 4
SLACK = 1.2
"""A factor for memory that an allocator cannot use."""
BATCH_MARGIN = 1.1
"""A Poisson batch is hardly ever larger than expected by more than a tenth."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """The memory of a process, in bytes.

    activations: of one example, saved for backward, with its inputs.
    gradients: of one example, with what backward passes on.
    fixed: of the model and its sums.
    budget: what the process may take.
    """

    activations: int
    gradients: int
    fixed: int
    budget: int

    @property
    def each(self) -> int:
        """Bytes of one example."""
        return int(SLACK * (self.activations + self.gradients))

    @property
    def fits(self) -> int:
        """How many examples fit, at least one."""
        return max(1, (self.budget - self.fixed) // max(1, self.each))


def with_microbatch(base: SomeBase) -> SomeBase:
    """The base with the microbatch size that fits into memory, unless the settings give one."""
    if base.settings.microbatch_size:
        return base
    size = microbatch_of(base)
    return replace(
        base,
        settings=replace(base.settings, microbatch_size=size),
        local=replace(base.local, microbatch_size=size),
    )


def microbatch_of(base: Base) -> int:
    """The size of a microbatch: as many examples as fit into memory, and as help.

    It is a multiple of 8 above 8, unless the multiplicity is larger: an example's copies are
    together. It is DEFAULT_MICROBATCH at most if the memory of an example is not known.
    """
    try:
        size = memory_of(base).fits
    except Exception:  # the check of the model, which comes later, says why it does not run
        size = DEFAULT_MICROBATCH
    if base.device == "cpu":
        size = min(size, DEFAULT_MICROBATCH)
    else:
        largest_batch = int(BATCH_MARGIN * base.local.expected_batch) + 1
        size = min(size, max(DEFAULT_MICROBATCH, largest_batch))
    if opens_files(base.workload.train.inputs):
        size = min(size, max(8, int(base.local.expected_batch) // PARTS_OF_BATCH))
    if size > 8:
        size = size // 8 * 8
    return max(base.local.multiplicity, size)


def memory_of(base: Base) -> Memory:
    """The memory of the run, measured with one public row that passes the initial model."""
    model = base.initial.model().cpu()
    workload, carrier = base.workload, base.method.carrier
    values = {r.name: r.count * r.values for r in layer_table(model, carrier, workload.classifier)}
    parameters = sum(p.numel() for p in model.parameters())
    inputs = workload.test.batch(torch.zeros(1, dtype=torch.int64))[0]
    with own_draws("cpu"), restored(workload.loss, model), _outputs(model) as outputs:
        activations = _saved_bytes(model, inputs)
    # backward holds the gradients at the output and at the input of a layer
    largest = max((out.nbytes for out in outputs.values()), default=0)
    gradients = 2 * largest + _gradient_bytes(base, model, values, outputs)
    if base.local.precision.mixed:  # 16 bits in place of 32
        activations //= 2
    return Memory(
        activations=activations + sum(t.nbytes for t in fields_of(inputs).values()),
        gradients=gradients,
        fixed=COPIES * FLOAT_BYTES * parameters,
        budget=memory_limit(base),
    )


def memory_limit(base: Base) -> int:
    """Bytes that one process of the run may take: of a GPU, or of a processor's part of the memory.

    On processors every engine takes the same.
    """
    s = base.settings
    if base.device == "cuda":
        share = 1.0 if s.engine == "local" else min(1.0, s.client_gpus or 1.0)
        return int(SHARE_OF_GPU * share * torch.cuda.mem_get_info()[1])
    return int(SHARE_OF_RAM * ram()) // processors()


@contextmanager
def _outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """The output of each layer with parameters of its own, by its path."""
    outputs: dict[str, Tensor] = {}

    def keep_output(path: str, module: nn.Module, arguments: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            outputs[path] = output.detach()

    hooks = [
        module.register_forward_hook(partial(keep_output, path))
        for path, module in model.named_modules()
        if list(module.parameters(recurse=False))
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _saved_bytes(model: nn.Module, inputs: Any) -> int:
    """Bytes that autograd keeps of one example for backward; parameters are not counted."""
    owned = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, int] = {}
    kept: list[Tensor] = []  # so that no storage is freed, and its address used again

    def keep(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if t.layout == torch.strided and storage.data_ptr() not in owned:
            seen[storage.data_ptr()] = storage.nbytes()
            kept.append(t)
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        output = model_outputs(model, inputs)
        del output
    return sum(seen.values())


def _gradient_bytes(
    base: Base, model: nn.Module, values: dict[str, int], outputs: dict[str, Tensor]
) -> int:
    """Bytes of one example's gradients.

    They are those of every block that the clip forms, and of the outputs of layers whose gradients
    ghost clipping does not form. Without a clip of examples, the gradient is one for a microbatch,
    of DEFAULT_MICROBATCH examples while ``microbatch_of`` looks for its size.
    ``values``: numbers of each block's gradient, by the name of its parameter.
    """
    clips_examples = base.method.mechanism.clips and not base.unit.whole
    if not clips_examples:
        return FLOAT_BYTES * sum(values.values()) // max(1, base.local.microbatch_size)
    may_be_ghost = (
        base.method.mechanism.clip == "joint"
        and base.local.multiplicity == 1
        and base.local.isolation == "checked"
        and not base.unit.persons
    )
    total = 0
    for name, count in values.items():
        path, _, attribute = name.rpartition(".")
        output, layer = outputs.get(path), model.get_submodule(path)
        is_dense_weight = attribute == "weight" and count == _size(model, name)
        # a GPU has no fast convolutions in float64 (``ghost_is_cheaper``, which sees the CPU here)
        is_formed = isinstance(layer, nn.Conv2d) and base.device != "cpu"
        if (
            may_be_ghost
            and is_dense_weight
            and not is_formed
            and output is not None
            and ghost_is_cheaper(layer, output)
        ):
            total += output.nbytes
        else:
            total += FLOAT_BYTES * count
    return total


def _size(model: nn.Module, name: str) -> int:
    """The numbers of a parameter; 0 for a name that is none."""
    with suppress(AttributeError):
        return model.get_parameter(name).numel()
    return 0
