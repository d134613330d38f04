"""The public state of a run, from which server, clients and attacks derive the frame of a round.

    # before the first round
    state = PublicState.start(model, method, schedule, seed=..., classifier=...)
    # after loading W_t into the model
    frame = state.frame(round, updates=...)
    # a frame with the sizes of an average round, to estimate traffic and time
    frame = mean_frame(state)

A frame is the coordinates of a round: carriers, and what a mask keeps. Nothing private is in it,
and each process computes the same one from the public state.
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
    """The public values of a run. The weights W_t of ``model`` change, all else stays the same.

    model: the model with the weights W_t of the round.
    method: carriers, mask, mechanism and training.
    schedule: the number of rounds, and where a round is among them.
    seed: the public seed.
    classifier: path of the head.
    carried: names of the weights whose gradients have low-rank carriers.
    initial: W_0 of the parameters of which frames need it, and of frozen weights under LoRA.
    built: a copy of the model as it was built, for user functions and probes; else None.
    source: public inputs that a probe pushes through the model; None without a probe.
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
        """The state before the first round, when the weights of ``model`` are W_0.

        Raises ValueError for unsupported layers, for a model of which no layer can be carried at
        this rank, and for carriers of kind ``probe`` without a ``source``.
        """
        check_supported(model)
        has_probe = method.carrier.source is not None
        if has_probe and source is None:
            raise ValueError(
                f"method {method.name!r} probes the model: it needs a source of public inputs, "
                "give probe=, a function (count, generator)"
            )
        parameters = trainable(model)
        carried = carried_parameters(model, method.carrier, classifier=classifier)
        needed = initial_needed(method, parameters, carried)
        initial = {name: parameters[name].detach().clone() for name in needed}
        return cls(
            model=model,
            method=method,
            schedule=schedule,
            seed=seed,
            classifier=find_classifier(model, classifier),
            carried=carried,
            initial=initial | frozen_bases(model),
            built=deepcopy(model) if method.own_functions or has_probe else None,
            source=source if has_probe else None,
        )

    def local_training(self, local: LocalTraining, updates: int) -> LocalTraining:
        """``local`` with its learning rate after ``updates`` server updates.

        The rate follows the schedule of the server's learning rate. After the last round of the
        schedule it stays as in that round.
        """
        rounds = self.schedule.rounds
        factor = self.method.server.factor(min(updates, rounds - 1), rounds)
        return replace(local, learning_rate=local.learning_rate * factor)

    @property
    def parameters(self) -> dict[str, Tensor]:
        """W_t: the trainable parameters as they are now, by name."""
        return {name: p.detach() for name, p in trainable(self.model).items()}

    def frame(
        self, round: int, *, updates: int, kept: Positions | None = None, basis: Basis | None = None
    ) -> Frame:
        """The frame of ``round`` after ``updates`` server updates, the same in every process.

        kept: for ranked masks: positions that the server chose by its memory of noisy gradients.
        basis: for probes: the carriers of the last refresh. If ``round`` is a refresh it may be
            left out, and the carriers are probed.
        Raises ValueError for a pruning round of a method that has none, and for a probe without a
        basis in a round that is not a refresh.
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
        """The carriers from ``round``, a refresh, up to the next one: probed at the weights of now.

        Raises ValueError for a method without a probe.
        """
        if self.source is None:
            raise ValueError(f"method {self.method.name!r} probes nothing")
        weights = self.parameters
        carrier = self.method.carrier
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
        """Makes models that user functions and probes may change."""
        return None if self.built is None else partial(deepcopy, self.built)

    def check_repeatable(self) -> None:
        """Raise ValueError if the user's functions give another first frame when called again.

        Server and clients could then never agree: each of them derives the frame, and they compare
        its digest.
        """
        functions = self.method.own_functions
        if functions and self.frame(1, updates=0).digest != self.frame(1, updates=0).digest:
            raise ValueError(
                f"{' or '.join(map(name_of, functions))} gives other values for the same public "
                "ones, so that server and clients would not have the same frame (another digest): "
                "draw from public.generator(...) only"
            )


def mean_frame(public: PublicState) -> Frame:
    """A training frame with as many blocks and kept coordinates as a mean round of the run.

    Nothing else of it has a meaning: to spare time, carriers are unit vectors. A mask whose
    sparsity changes over the rounds has the mean one. A mask by a function of the user is that of
    the first round, with the method's own carriers, which the function may look at. PowerSGD's
    factors are left out: its steps are dense.
    """
    method = public.method
    carrier = method.carrier.in_sizes()
    mask = method.mask
    basis = None
    if mask.choose is not None:
        if method.carrier.adds_up:
            carrier = method.carrier
    else:
        if carrier.source is not None:
            basis = unit_basis(public)
        if mask.sparsity:
            mask = replace(mask, sparsity=mean_sparsity(public), cooling=False, sparsity_from=0.0)
    carried = () if carrier.dense else public.carried
    in_sizes = replace(public, method=replace(method, carrier=carrier, mask=mask), carried=carried)
    return in_sizes.frame(1, updates=0, basis=basis)


def mean_sparsity(public: PublicState) -> float:
    """The mean over the rounds of the share that the mask drops."""
    schedule, mask = public.schedule, public.method.mask
    return fmean(mask.rate(schedule.time(round)) for round in range(1, schedule.rounds + 1))


def unit_basis(public: PublicState) -> Basis:
    """Unit vectors in place of the carriers of a probe."""
    carrier, weights = public.method.carrier, public.parameters
    pairs = {}
    for name, sizes in carried_sizes(carrier, weights, public.carried).items():
        rows, columns = carrier.form.energies(sizes, weights[name])
        L, R = torch.eye(sizes.m, sizes.r), torch.eye(sizes.s, sizes.n)
        pairs[name] = Pair(L, R, torch.ones(rows), torch.ones(columns))
    return Basis(round=1, pairs=pairs)
