"""The server's public state: model, W_0, optimizer and round.

It gets no gradient without noise. Everything in it may be checkpointed and published; client data
and secret generators are elsewhere.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from fedlsg.carriers import frozen_bases
from fedlsg.carriers.probe import Basis, flatten, refresh_of, unflatten
from fedlsg.config.units import EXAMPLE, Unit
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.masks import Memory, keep_public, keep_snip, noisy_everywhere, prune_in_place
from fedlsg.method import LocalTraining, aggregate, server_step
from fedlsg.randomness import public_generator
from fedlsg.secure_sum.discrete.sum_release import SumTerms
from fedlsg.state.public_state import PublicState
from fedlsg.state.round_plan import PRUNING_ROUND, RoundPlan, plan_round
from fedlsg.tensors import at_once, to_device
from fedlsg.training import make_optimizer
from fedlsg.training.server_round import widest


class ServerState:
    """The public state with the server optimizer.

    public: model, method, schedule and W_0.
    divisor: by which sums are divided; fixed for the run.
    pruning_inputs: a batch of public inputs, of which pruning without data reads the shape. The
        model is pruned at once.
    optimizer: any torch optimizer over the trainable parameters, in place of the method's. Its
        owner schedules it: ``scheduler`` is None then.
    round: the last finished round.
    updates: server updates so far; fewer than rounds if some had no valid update.
    average: the average of the weights (``ServerOptimizer.ema``); None without one.
    pruned: whether the pruning round is over, or there is none.
    basis: the carriers of a probe's last refresh; None without one.
    memory: of ranked sparsification; None without it.
    """

    def __init__(
        self,
        public: PublicState,
        *,
        divisor: float,
        pruning_inputs: object = None,
        optimizer: Optimizer | None = None,
    ) -> None:
        self.public, self.divisor = public, divisor
        self.model = public.model
        self.method = public.method
        self.schedule = public.schedule
        self.seed = public.seed
        parameters, method = trainable(self.model), self.method
        self.optimizer: Optimizer
        self.scheduler: LambdaLR | None
        if optimizer is None:
            self.optimizer, self.scheduler = make_optimizer(
                parameters,
                method.server,
                updates=self.schedule.rounds,
                classifier=public.classifier,
            )
        else:
            self.optimizer, self.scheduler = optimizer, None
        if method.prune.active and not method.prune.reads_data:
            kept = keep_public(self.model, method.prune, pruning_inputs, seed=self.seed)
            prune_in_place(parameters, kept)
        self.average = self.weights if method.server.ema else None
        self.round, self.updates = 0, 0
        self.pruned = not method.prune.reads_data
        self.basis: Basis | None = None
        self.memory = Memory() if method.mask.ranking == "gradients" else None
        self.clip_norm: float | None = None
        """Clip norm of the next round, if an adaptive clip has changed it; None: the method's."""

    @property
    def awaits_pruning(self) -> bool:
        """Whether the pruning round is still to come."""
        return not self.pruned

    @property
    def next_round(self) -> int:
        """Number of the next round, which may be the pruning round."""
        return PRUNING_ROUND if self.awaits_pruning else self.round + 1

    def frame(self, round: int | None = None) -> Frame:
        """The frame of ``round`` at the current weights; None means the next round."""
        round = self.next_round if round is None else round
        kept = None
        if self.memory is not None:
            time = self.schedule.time(round)
            kept = self.memory.kept(self.method.mask.rate(time), time.epoch)
        return self.public.frame(round, updates=self.updates, kept=kept, basis=self.basis_of(round))

    def basis_of(self, round: int) -> Basis | None:
        """The carriers of a probe for ``round``, probed now if those of its refresh are not kept.

        None without a probe, and in the pruning round.
        Guarantee: equal in all copies of a state that ask for the frame of every round with an
        update. A refresh without an update does not change the weights, so the next round probes
        the same ones.
        """
        if self.public.source is None or round == PRUNING_ROUND:
            return None
        refresh = refresh_of(round, self.method.carrier)
        if self.basis is None or self.basis.round != refresh:
            self.basis = self.public.probe(refresh, updates=self.updates)
        return self.basis

    def plan(
        self, local: LocalTraining, sums: SumTerms | None = None, unit: Unit = EXAMPLE
    ) -> RoundPlan:
        """The plan of the next round, at the current clip norm; see ``plan_round``."""
        local = self.public.local_training(local, self.updates)
        plan = plan_round(self.method, self.next_round, self.frame(), local, sums, unit)
        return plan if self.clip_norm is None else plan.at_clip_norm(self.clip_norm)

    def prune(
        self, frame: Frame, client_values: Sequence[Float[Tensor, " kept"]], *, num_examples: int
    ) -> None:
        """Set the weights of smallest noisy saliency to 0; ``client_values`` in client order."""
        kept = keep_snip(
            aggregate(client_values),
            frame,
            self.public.parameters,
            self.method.prune.rate,
            num_examples=num_examples,
        )
        prune_in_place(trainable(self.model), kept)
        self.average = self.weights if self.method.server.ema else None
        self.pruned = True

    @property
    def weights(self) -> Float[Tensor, " parameters"]:
        """W_t: all trainable parameters in model order, one flat vector."""
        return parameters_to_vector(trainable(self.model).values()).detach()

    def finish_round(
        self,
        frame: Frame,
        client_values: Sequence[Float[Tensor, " kept"]],
        *,
        noise_std: float = 0.0,
    ) -> None:
        """Apply the clients' values and end the round; without values only its counter changes.

        client_values: in client order.
        noise_std: deviation of the noise in their sum, which ranked sparsification also adds to
            frozen coordinates.
        """
        if client_values:
            self.step(aggregate(client_values), frame, noise_std=noise_std)
        self.round += 1

    def step(self, total: Float[Tensor, " kept"], frame: Frame, *, noise_std: float = 0.0) -> None:
        """One server update by the clients' sum.

        Guarantee: it depends on ``total`` only through (total / divisor) in the weights' widest
        type. So a replica that receives these numbers and ``noise_std`` (``server_update.Step``)
        gets exactly the same state.
        """
        total = _as_sent(total, self.divisor, widest(trainable(self.model).values()))
        self._remember(total, frame, noise_std)
        personal = {name: trainable(self.model)[name].detach().clone() for name in frame.personal}
        server_step(
            self.model,
            self.optimizer,
            self.scheduler,
            total,
            frame=frame,
            divisor=self.divisor,
            server=self.method.server,
        )
        with torch.no_grad():  # undo weight decay of parameters that clients keep
            for name, value in personal.items():
                trainable(self.model)[name].copy_(value)
        self.updates += 1
        self._average()
        self.truncate()

    def _remember(self, total: Float[Tensor, " kept"], frame: Frame, noise_std: float) -> None:
        """Add the sum to the memory of ranked sparsification."""
        if self.memory is not None:
            round = self.round + 1
            generator = public_generator(self.seed, "memory", round)
            gradient = noisy_everywhere(total, frame, noise_std, generator=generator)
            self.memory = self.memory.add(gradient.float(), self.schedule.epoch(round))

    def _average(self) -> None:
        """Move the average of the weights; with few updates it follows them faster."""
        if self.average is not None:
            decay = min(self.method.server.ema, (1 + self.updates) / (10 + self.updates))
            self.average = decay * self.average + (1 - decay) * self.weights

    def truncate(self) -> None:
        """Replace W by its part in the span of its carriers, if the carrier has no residual (Yu et
        al. 2021, App. C).
        """
        if self.method.carrier.residual:
            return
        for name in self.public.carried:
            W = trainable(self.model)[name].detach()
            W.copy_(self.method.carrier.without_residual(W, self.seed, self.updates, name))

    @contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """The model in eval mode, with the average of the weights if there is one.

        On exit weights and modes are as before.
        """
        current = None if self.average is None else self.weights
        modes = {module: module.training for module in self.model.modules()}
        if self.average is not None:
            load_weights(self.model, self.average)
        try:
            yield self.model.eval()
        finally:
            if current is not None:
                load_weights(self.model, current)
            for module, training in modes.items():
                module.training = training

    def state_dict(self) -> dict[str, Any]:
        """Everything that a resumed run needs of the server.

        Public generators follow from seed and round, and frozen parameters from the initial model:
        they are not in it.
        """
        frozen = frozen_bases(self.model)
        return {
            "model": self.public.parameters,
            "average": self.average,
            "pruned": self.pruned,
            "memory": None if self.memory is None else self.memory.state_dict(),
            "basis": None
            if self.basis is None
            else {"round": self.basis.round, "flat": flatten(self.basis)},
            "initial": {name: W for name, W in self.public.initial.items() if name not in frozen},
            "clip_norm": self.clip_norm,
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "round": self.round,
            "updates": self.updates,
            "public_seed": self.seed,
            "carried": list(self.public.carried),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``.

        Raises ValueError if it was made with another public seed, other parameters or other carried
        weights.
        """
        if state["public_seed"] != self.seed:
            raise ValueError(
                f"the checkpoint was made with seed {state['public_seed']}, this run has "
                f"{self.seed}"
            )
        parameters = trainable(self.model)
        if state["model"].keys() != parameters.keys():
            raise ValueError(
                "the checkpoint holds other parameters than this run trains: restore its settings"
            )
        self._check_carried(state)
        with torch.no_grad():
            for name, value in state["model"].items():
                parameters[name].copy_(value)
        self.average = None if state["average"] is None else state["average"].to(self.weights)
        device = next(self.model.parameters()).device
        initial = {name: W.to(device) for name, W in state["initial"].items()}
        self.public = replace(self.public, initial={**self.public.initial, **initial})
        self.pruned = state["pruned"]
        self.memory = None if state["memory"] is None else Memory(**state["memory"])
        self.clip_norm = state["clip_norm"]
        self.basis = None
        if (basis := state.get("basis")) is not None:  # absent from older checkpoints
            self.load_basis(**basis)
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
            self._set_rates(self.scheduler)
        self.round, self.updates = state["round"], state["updates"]

    def _set_rates(self, scheduler: LambdaLR) -> None:
        """Give the optimizer the rates of the next update.

        They are those of the current schedule: a run for more rounds has another one than its
        checkpoint.
        """
        parts = zip(
            self.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        )
        for group, rate, factor in parts:
            group["lr"] = rate * factor(scheduler.last_epoch)

    def _check_carried(self, state: dict[str, Any]) -> None:
        """Refuse a checkpoint with other carried weights.

        A run that changed midway would have rounds of two sizes and two learning behaviours in one
        table.
        """
        others = set(state["carried"]) ^ set(self.public.carried)
        if others:
            raise ValueError(
                "this checkpoint was written with another carrier or version of fedlsg, which "
                f"sends {', '.join(sorted(others))} in another form: continue with that one, or "
                "start a new run"
            )

    def load_basis(self, flat: Float[Tensor, " numbers"] | None, *, round: int) -> None:
        """Continue with the carriers of another process, by the refresh of ``round``; None: with
        none.

        Raises ValueError for numbers that are not a basis of this model.
        """
        self.basis = None
        if flat is not None:
            carrier = self.method.carrier
            weights = self.public.parameters
            carried = self.public.carried
            self.basis = unflatten(
                flat, carrier, weights, carried, round=refresh_of(round, carrier)
            )


def load_weights(model: nn.Module, weights: Float[Tensor, " parameters"]) -> None:
    """Write a flat vector of ``ServerState.weights`` into the trainable parameters of a model."""
    parameters: list[Tensor] = list(trainable(model).values())
    expected = sum(p.numel() for p in parameters)
    if weights.shape != (expected,):
        raise ValueError(
            f"expected {expected} weights, got shape {tuple(weights.shape)}: the models differ"
        )
    # Copied into the parameters' own memory: products round by alignment, and views of one vector
    # would have other addresses.
    (on_device,) = to_device([weights], parameters[0].device)
    parts = on_device.split([p.numel() for p in parameters])
    with torch.no_grad():
        torch._foreach_copy_(
            parameters, [part.reshape(p.shape) for p, part in zip(parameters, parts, strict=True)]
        )


def _as_sent(
    total: Float[Tensor, " kept"], divisor: float, dtype: torch.dtype
) -> Float[Tensor, " kept"]:
    """divisor times (total / divisor), rounded as replicas get it: see ``server_update.Step``.

    It is computed in pieces: whole vectors would be the server's largest.
    """
    rounded = torch.empty_like(total, dtype=torch.float64)
    piece_size = at_once(total.device.type)
    for piece, part in zip(rounded.split(piece_size), total.split(piece_size), strict=True):
        piece.copy_((part / divisor).to(dtype).double() * divisor)
    return rounded
