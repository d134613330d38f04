"""The server's public state: model, W_0, optimizer, round. It never sees an un-noised gradient.

Everything in it may be checkpointed and published; client data and secret generators are elsewhere.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fedlsg.after import make_optimizer
from fedlsg.carriers import carried_parameters
from fedlsg.frame import Frame
from fedlsg.method import Method, Schedule, aggregate, make_frame, server_step
from fedlsg.persample import check_supported, trainable
from fedlsg.randomness import public_generator


class ServerState:
    """W_t, W_0, the server optimizer, and the counters ``round`` (last finished) and ``updates`` (applied).

    The two differ where a round had no valid update. ``divisor`` is fixed for the run. Raises ValueError for a
    model with unsupported layers, or of which no layer can be carried at this rank.
    """

    def __init__(
        self, model: nn.Module, method: Method, schedule: Schedule, *, divisor: float, seed: int, classifier: str | None
    ) -> None:
        check_supported(model)
        self.model, self.method, self.schedule = model, method, schedule
        self.divisor, self.seed = divisor, seed
        self.carried = carried_parameters(model, method.carrier, classifier=classifier)
        self.initial = {name: p.detach().clone() for name, p in trainable(model).items() if name in self.carried}
        self.optimizer, self.scheduler = make_optimizer(
            trainable(model).values(), method.after, updates=schedule.rounds
        )
        self.round, self.updates = 0, 0

    def frame(self) -> Frame:
        """The frame of the round that comes next."""
        return make_frame(
            self.method,
            {name: p.detach() for name, p in trainable(self.model).items()},
            self.initial,
            carried=self.carried,
            round=self.round + 1,
            updates=self.updates,
            schedule=self.schedule,
            seed=self.seed,
        )

    @property
    def weights(self) -> Float[Tensor, " parameters"]:
        """W_t: all trainable parameters in model order, one flat vector."""
        return parameters_to_vector(trainable(self.model).values()).detach()

    def finish_round(self, frame: Frame, updates: Sequence[Float[Tensor, " kept"]]) -> None:
        """Apply the clients' values, given in client order; with none, only the round counter moves."""
        if updates:
            server_step(
                self.model,
                self.optimizer,
                self.scheduler,
                aggregate(updates),
                frame=frame,
                divisor=self.divisor,
                after=self.method.after,
            )
            self.updates += 1
        self.round += 1

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs of the server; the public generator is its seed and the round."""
        return {
            "model": self.model.state_dict(),
            "initial": self.initial,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "round": self.round,
            "updates": self.updates,
            "public_seed": self.seed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. Raises ValueError if it was made with another public seed."""
        if state["public_seed"] != self.seed:
            raise ValueError(f"the checkpoint was made with seed {state['public_seed']}, this run has {self.seed}")
        self.model.load_state_dict(state["model"])
        self.initial = {name: W.to(next(self.model.parameters()).device) for name, W in state["initial"].items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        self.round, self.updates = state["round"], state["updates"]


def load_weights(model: nn.Module, weights: Float[Tensor, " parameters"]) -> None:
    """Write a flat vector of ``ServerState.weights`` into the trainable parameters of a client's model."""
    parameters = list(trainable(model).values())
    expected = sum(p.numel() for p in parameters)
    if weights.shape != (expected,):
        raise ValueError(f"expected {expected} weights, got shape {tuple(weights.shape)}: the models differ")
    with torch.no_grad():
        vector_to_parameters(weights.to(parameters[0]), parameters)


def select_clients(clients: int, per_round: int, *, round: int, seed: int) -> list[int]:
    """Partition ids asked in ``round``, ascending: a public draw without replacement, known before the run."""
    if per_round == clients:
        return list(range(clients))
    draw = torch.randperm(clients, generator=public_generator(seed, "clients", round))
    return sorted(draw[:per_round].tolist())
