"""The public state that server, clients, attacks and benchmarks derive the frame of a round from.

# before the first round
state = PublicState.start(model, method, schedule, seed=..., classifier=...)
# after loading W_t into the model
frame = state.frame(round, updates=...)
# that of an average round: how many coordinates a run keeps, without its carriers
frame = mean_frame(state)
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor, nn

from fedlsg.carriers import carried_parameters, carried_sizes, find_classifier, frozen_bases
from fedlsg.carriers.probe import Basis, Probe, ProbeSource, probe_basis, refresh_of
from fedlsg.carriers.probe.basis import Pair
from fedlsg.frame import Frame
from fedlsg.frame.public import Public, name_of
from fedlsg.gradients import check_supported, trainable
from fedlsg.masks import saliency_frame
from fedlsg.method import LocalTraining, Method, Positions, Schedule, initial_needed, make_frame
from fedlsg.state.round_plan import Phase, phase_of


@dataclass(frozen=True, kw_only=True, eq=False)
class PublicState:
    """What is public of a run: the model at W_t, W_0 where frames need it, and what stays the same
    in all rounds.

    ``initial``: W_0 by parameter, of frozen weights under LoRA too.
    ``carried``: names of the weights that travel as carriers.
    ``classifier``: path of the head.
    ``seed``: the public seed.
    ``built``: a copy of the model as it was built, where functions of the user or probes make
        frames.
    ``source``: what a probe pushes through it.
    """

    model: nn.Module
    method: Method
    schedule: Schedule
    seed: int
    classifier: str
    carried: tuple[str, ...]
    initial: Mapping[str, Tensor]
    built: nn.Module | None = field(default=None, repr=False)
    source: ProbeSource | None = field(default=None, repr=False)

    def local_training(self, local: LocalTraining, updates: int) -> LocalTraining:
        """``local`` in a round after so many server updates: its rate follows the schedule of the
        server's. After the last round of the schedule it is that of the last one.
        """
        rounds = self.schedule.rounds
        factor = self.method.server.factor(min(updates, rounds - 1), rounds)
        return replace(local, learning_rate=local.learning_rate * factor)

    @classmethod
    def start(
        cls,
        model: nn.Module,
        method: Method,
        schedule: Schedule,
        *,
        seed: int,
        classifier: str | None,
        source: ProbeSource | None = None,
    ) -> "PublicState":
        """The state before the first round: the weights of ``model`` are W_0, and are copied where
        frames need them.

        Raises ValueError for unsupported layers, a model of which no layer can be carried at this
        rank, or carriers of kind ``probe`` without a ``source``.
        """
        check_supported(model)
        probes = method.carrier.source is not None
        if probes and source is None:
            raise ValueError(
                f"method {method.name!r} probes the model: it needs a source of public inputs, "
                "give probe=, a function (count, generator)"
            )
        parameters = trainable(model)
        carried = carried_parameters(model, method.carrier, classifier=classifier)
        needed = initial_needed(method, parameters, carried)
        return cls(
            model=model,
            method=method,
            schedule=schedule,
            seed=seed,
            classifier=find_classifier(model, classifier),
            carried=carried,
            initial={name: parameters[name].detach().clone() for name in needed}
            | frozen_bases(model),
            built=deepcopy(model) if method.own_functions or probes else None,
            source=source if probes else None,
        )

    @property
    def parameters(self) -> dict[str, Tensor]:
        """W_t: the trainable parameters as they are now, by name."""
        return {name: p.detach() for name, p in trainable(self.model).items()}

    def frame(
        self, round: int, *, updates: int, kept: Positions | None = None, basis: Basis | None = None
    ) -> Frame:
        """The frame of ``round`` after ``updates`` server updates, the same in every process.

        ``kept``: kept positions that the server chose by its memory of noisy gradients (ranked
        masks).
        ``basis``: the carriers of the last refresh; without it they are probed, which needs a round
        of a refresh.
        Raises ValueError for a pruning round of a method that has none, and without a basis in
        between two refreshes.
        """
        if phase_of(round) is Phase.PRUNING:
            if not self.method.prune.reads_data:
                raise ValueError(
                    f"expected a training round: pruning of method {self.method.name!r} reads no "
                    "data"
                )
            return saliency_frame(self.parameters)
        if self.source is not None and basis is None:
            if refresh_of(round, self.method.carrier) != round:
                raise ValueError(
                    f"round {round} is no refresh: its frame needs the basis of the last one"
                )
            basis = self.probe(round, updates=updates)
        return make_frame(
            self.method,
            self.parameters,
            self.initial,
            carried=self.carried,
            round=round,
            updates=updates,
            schedule=self.schedule,
            seed=self.seed,
            classifier=self.classifier,
            kept=kept,
            model=self._make_model,
            basis=basis,
        )

    def probe(self, round: int, *, updates: int) -> Basis:
        """The carriers of ``round``, a refresh, and of the rounds up to the next one, probed from
        the weights of now.

        Raises ValueError where there is no source.
        """
        if self.source is None:
            raise ValueError(f"method {self.method.name!r} probes nothing")
        weights, carrier = self.parameters, self.method.carrier
        public = Public(
            weights=weights,
            carried=carried_sizes(carrier, weights, self.carried),
            time=self.schedule.time(round),
            updates=updates,
            seed=self.seed,
            make_model=self._make_model,
        )
        assert isinstance(carrier, Probe), "the only one with a source"
        return probe_basis(carrier, public, self.source)

    @property
    def _make_model(self) -> Callable[[], nn.Module] | None:
        return None if self.built is None else partial(deepcopy, self.built)

    def check_repeatable(self) -> None:
        """Raise ValueError, naming them, if the user's functions give another first frame when they
        are called again.

        Server and clients could then never agree: each of them derives the frame, and compares
        digests.
        """
        functions = self.method.own_functions
        if functions and self.frame(1, updates=0).digest != self.frame(1, updates=0).digest:
            raise ValueError(
                f"{' or '.join(map(name_of, functions))} gives other values for the same public "
                "ones, so that server and clients would not have the same frame (another digest): "
                "draw from public.generator(...) only"
            )


def mean_frame(public: PublicState) -> Frame:
    """A training frame with as many blocks and kept coordinates as the mean round of the run, up to
    rounding.

    Only these numbers mean something: carriers are unit vectors, and where a mask changes its rate
    over the rounds, it has the mean rate. A mask of the user's is that of the first round. Factors
    (PowerSGD) are left out: the step is dense.
    """
    method, schedule = public.method, public.schedule
    carrier, mask = method.carrier.in_sizes(), method.mask
    if mask.choose is not None and method.carrier.adds_up:
        carrier = method.carrier
    basis = unit_basis(public) if carrier.source is not None and mask.choose is None else None
    if mask.choose is None and mask.sparsity:
        rate = fmean(mask.rate(schedule.time(round)) for round in range(1, schedule.rounds + 1))
        mask = replace(mask, sparsity=rate, cooling=False, sparsity_from=0.0)
    public = replace(public, carried=() if carrier.dense else public.carried)
    return replace(public, method=replace(method, carrier=carrier, mask=mask)).frame(
        1, updates=0, basis=basis
    )


def unit_basis(public: PublicState) -> Basis:
    """A basis of unit vectors in place of a probe's."""
    carrier, weights = public.method.carrier, public.parameters
    pairs = {}
    for name, sizes in carried_sizes(carrier, weights, public.carried).items():
        rows, columns = carrier.form.energies(sizes, weights[name])
        pairs[name] = Pair(
            torch.eye(sizes.m, sizes.r),
            torch.eye(sizes.s, sizes.n),
            torch.ones(rows),
            torch.ones(columns),
        )
    return Basis(round=1, pairs=pairs)
