"""What a replica needs in addition to the weights to continue: memory of the optimizer and of ranked masks, carriers.

The rest of ``ServerState`` follows from settings, round and number of updates: W_0, schedules, pruned weights.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlsg.carriers.probe import flatten, refresh_of
from fedlsg.gradients import trainable
from fedlsg.masks import Memory
from fedlsg.state.round_plan import Phase, finished_before, phase_of
from fedlsg.state.server_state import ServerState, load_weights

STEP = "step"
"""The one number that every optimizer but SGD keeps of each parameter: it counts updates."""


def extra_vectors(state: ServerState) -> dict[str, Tensor]:
    """Vectors by name: the optimizer's in model order, as long as the weights; the memory's sums and counters; the
    basis of a probe, unless the next round makes another one.
    """
    kept = [state.optimizer.state[p] for p in trainable(state.model).values() if p in state.optimizer.state]
    names = [] if not kept else [name for name, value in kept[0].items() if name != STEP and value is not None]
    found = {name: torch.cat([each[name].flatten() for each in kept]) for name in names}
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
    parameters = list(trainable(state.model).values())
    sizes = [p.numel() for p in parameters]
    state.optimizer.state.clear()
    for name in [name for name in extra if name != "basis" and not name.startswith("memory-")]:
        if extra[name].shape != (sum(sizes),):
            raise ValueError(f"expected {sum(sizes)} numbers of {name}, got shape {tuple(extra[name].shape)}")
        for p, part in zip(parameters, extra[name].to(parameters[0]).split(sizes), strict=True):
            state.optimizer.state[p][name] = part.reshape(p.shape).clone()
    if state.method.server.counts_updates and updates:
        for p in parameters:
            state.optimizer.state[p][STEP] = torch.tensor(float(updates))
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
