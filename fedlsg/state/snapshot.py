"""What a replica needs in addition to the weights to continue: memory of the optimizer and of ranked masks, carriers.

The rest of ``ServerState`` follows from settings, round and number of updates: W_0, schedules, pruned weights.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.carriers.probe import flatten, refresh_of
from fedlsg.gradients import trainable
from fedlsg.masks import Memory
from fedlsg.state.round_plan import Phase, finished_before, phase_of
from fedlsg.state.server_state import ServerState, load_weights
from fedlsg.training import make_optimizer

STEP = "step"
"""The number that most optimizers keep of each parameter: it counts updates, and is not sent."""


def extra_vectors(state: ServerState) -> dict[str, Tensor]:
    """Vectors by name: the optimizer's, one parameter after the other in model order; the memory's sums and counters;
    the basis of a probe, unless the next round makes another one.
    """
    kept = [state.optimizer.state[p] for p in trainable(state.model).values() if p in state.optimizer.state]
    names = _sent(kept) if state.updates else []  # before the first update they follow from the settings
    found = {name: torch.cat([each[name].flatten() for each in kept if name in each]) for name in names}
    basis, round = state.basis, state.next_round
    if basis is not None and basis.round == refresh_of(round, state.method.carrier) < round:
        found["basis"] = flatten(basis)
    if state.memory is not None:
        found["memory-counters"] = torch.tensor([state.memory.epoch, state.memory.updates])
        sums = {"memory-current": state.memory.current, "memory-last": state.memory.last}
        found |= {name: value for name, value in sums.items() if value is not None}
    return found


def restart(state: ServerState, weights: Tensor, extra: Mapping[str, Tensor], *, round: int, updates: int) -> None:
    """Make a replica that of the server as ``round`` begins, after ``updates`` updates.

    Raises ValueError for vectors that do not fit the model.
    """
    load_weights(state.model, weights)
    memory = _first_memory(state, stepped=updates > 0)
    for name in _sent(memory) if updates else []:
        places = [each for each in memory if name in each]
        sizes = [each[name].numel() for each in places]
        if name not in extra or extra[name].shape != (sum(sizes),):
            got = f"shape {tuple(extra[name].shape)}" if name in extra else "none"
            raise ValueError(f"expected {sum(sizes)} numbers of {name}, got {got}")
        for each, part in zip(places, extra[name].split(sizes), strict=True):
            each[name] = part.to(each[name], copy=True).reshape(each[name].shape)
    state.optimizer.state.clear()
    for p, own in zip(trainable(state.model).values(), memory, strict=True):
        if STEP in own:
            own[STEP] = torch.full_like(own[STEP], updates)
        if own:
            state.optimizer.state[p] = own
    if state.memory is not None:
        epoch, counted = (int(number) for number in extra["memory-counters"])
        sums = (extra.get("memory-current"), extra.get("memory-last"))
        state.memory = Memory(epoch=epoch, updates=counted, current=sums[0], last=sums[1])
    state.take_basis(extra.get("basis"), round=round)
    schedule(state, updates)
    state.round, state.updates = finished_before(round), updates
    state.pruned = phase_of(round) is Phase.TRAINING


def schedule(state: ServerState, updates: int) -> None:
    """Set the learning rates to those after ``updates`` updates: the schedule is a closed form of it."""
    scheduler = state.scheduler
    assert scheduler is not None, "a replica has the method's own optimizer"
    scheduler.last_epoch, scheduler._step_count = updates, updates + 1
    for group, base, factor in zip(state.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
        group["lr"] = base * factor(updates)
    scheduler._last_lr = [group["lr"] for group in state.optimizer.param_groups]


def _first_memory(state: ServerState, *, stepped: bool) -> list[dict[str, Any]]:
    """What the method's optimizer remembers of each parameter before its first step, or after one of zeros.

    After any number of steps it remembers as many numbers, under the same names.
    """
    copies = {name: nn.Parameter(torch.zeros_like(p)) for name, p in trainable(state.model).items()}
    optimizer, _ = make_optimizer(copies, state.method.server, updates=1, classifier=state.public.classifier)
    if stepped:
        for p in copies.values():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    return [dict(optimizer.state.get(p, {})) for p in copies.values()]


def _sent(memory: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of what is sent of an optimizer's memory, each once."""
    return list({name: None for each in memory for name, value in each.items() if name != STEP and value is not None})
