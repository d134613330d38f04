"""How much memory an example of a microbatch takes, and how many fit.

    bytes of an example = saved activations + what its layers pass on + its own gradients
A carried weight has r (m + n) numbers of gradient for each example, a dense one all m n of them,
unless ghost clipping forms none: then the gradient at the layer's output is kept. So a dense method
fits fewer examples than a low-rank one. All of it is public: the model, the method, and the form of
a test row.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
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

MOST_ON_CPU = 256
"""Examples of a microbatch on a processor, whose caches gain nothing from more."""
PARTS_OF_BATCH = 32
"""Microbatches of a batch of images in files: workers decode the next one while a step computes."""
SHARE_OF_RAM, SHARE_OF_GPU = 0.5, 0.8
"""Of the memory of a processor (all memory over the number of processors), or of a GPU."""
COPIES = 6
"""Times that all parameters are in memory at once: weights, sum in float64, noise, optimizer."""
SLACK = 1.2
"""Room for what an allocator cannot use."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes. ``activations`` and ``gradients`` of one example; ``fixed``: of the model and its
    sums; ``budget``: what a process may take.
    """

    activations: int
    gradients: int
    fixed: int
    budget: int

    @property
    def each(self) -> int:
        """Of one example."""
        return int(SLACK * (self.activations + self.gradients))

    @property
    def fits(self) -> int:
        """Examples that fit, one at least."""
        return max(1, (self.budget - self.fixed) // max(1, self.each))


def with_microbatch(base: SomeBase) -> SomeBase:
    """The base with the microbatch size that fits into memory, where the settings give none."""
    if base.settings.microbatch_size:
        return base
    size = microbatch_of(base)
    return replace(
        base,
        settings=replace(base.settings, microbatch_size=size),
        local=replace(base.local, microbatch_size=size),
    )


def microbatch_of(base: Base) -> int:
    """Examples of a microbatch that fit into memory; MOST_ON_CPU if that is unknown."""
    try:
        most = memory_of(base).fits
    except Exception:  # the check of the model says why it does not run
        most = MOST_ON_CPU
    if base.device == "cpu":
        most = min(most, MOST_ON_CPU)
    else:  # a Poisson batch is hardly ever larger than by a tenth
        most = min(most, max(MOST_ON_CPU, int(1.1 * base.local.expected_batch) + 1))
    if opens_files(base.workload.train.inputs):
        most = min(most, max(8, int(base.local.expected_batch) // PARTS_OF_BATCH))
    copies = base.local.multiplicity
    return max(copies, most // 8 * 8 if most > 8 else most)


def memory_of(base: Base) -> Memory:
    """What an example of the run takes, from one public row that passes the initial model."""
    model = base.initial.model().cpu()
    workload, carrier = base.workload, base.method.carrier
    values = {r.name: r.count * r.values for r in layer_table(model, carrier, workload.classifier)}
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    inputs = workload.test.batch(torch.zeros(1, dtype=torch.int64))[0]
    with own_draws("cpu"), restored(workload.loss, model), _outputs(model) as outputs:
        activations = _saved_bytes(model, inputs)
    largest = max((out.nbytes for out in outputs.values()), default=0)
    gradients = 2 * largest + _gradient_bytes(base, model, values, outputs)
    if base.local.precision.mixed:
        activations //= 2
    return Memory(
        activations=activations + sum(t.nbytes for t in fields_of(inputs).values()),
        gradients=gradients,
        fixed=COPIES * 4 * sum(sizes.values()),
        budget=budget_of(base),
    )


def budget_of(base: Base) -> int:
    """Bytes that one process of the run may take: of a GPU, or of a processor's part of the memory,
    so that every engine takes the same.
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
    hooks = [
        module.register_forward_hook(
            lambda _module, _args, output, path=path: (
                outputs.__setitem__(path, output.detach()) if isinstance(output, Tensor) else None
            )
        )
        for path, module in model.named_modules()
        if any(True for _ in module.parameters(recurse=False))
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
    """Bytes of one example's gradients: of every block that the clip forms, and of the outputs of
    layers whose gradients it does not form.
    """
    clips = base.method.mechanism.clips and not base.unit.whole
    if not clips:
        return 4 * sum(values.values()) // max(1, base.local.microbatch_size)
    ghosts = (
        base.method.mechanism.clip == "joint"
        and base.local.multiplicity == 1
        and base.local.isolation == "checked"
        and not base.unit.persons
    )
    total = 0
    for name, count in values.items():
        path, _, attribute = name.rpartition(".")
        output = outputs.get(path)
        whole = attribute == "weight" and output is not None and count == _size(model, name)
        layer = model.get_submodule(path)
        formed = isinstance(layer, nn.Conv2d) and base.device != "cpu"
        if whole and output is not None and not formed and ghosts:
            total += output.nbytes if ghost_is_cheaper(layer, output) else 4 * count
        else:
            total += 4 * count
    return total


def _size(model: nn.Module, name: str) -> int:
    with suppress(AttributeError):
        return model.get_parameter(name).numel()
    return 0
