"""Check that a model treats examples independently: run public probe inputs alone and in batches, and compare.

The clip bounds what one example adds to the sum only if its gradient depends on no other example. ``check_supported``
refuses layers that mix examples by their type. Here the model is run: activations, losses and per-example gradients of
a probe must be the same alone, in batches of ``BATCHES`` with other neighbours, and again after those batches. Batches
of the model's own small sizes (tokens, channels) are tried as well: there a layer with another first axis looks right.

How weak mixing is found: in float64 on a copy of the model, where rounding leaves differences of 1e-15. ``TOLERANCE``
is 1e-9 of a row's own length; for gradients, of the length of that of the parameter, or of ``SMALL_PART`` of the
example's whole gradient. A few units in the last place of a row's largest activation are added: a large number, such as
a unix time, is rounded wherever it goes. So rows of several scales are needed (``cast``). Random draws are coupled by
example (``Draws``). Trainable weights are moved a little, so that a branch after a weight of zero counts. Numbers of
the inputs are made a little smaller, against ties. One neighbour is ``LARGE`` times as large, one is a duplicate.

What it cannot find:
    - mixing on a condition that no probe meets: batches larger than ``LARGEST`` of a size that the code does not
      mention, other values, lengths or labels, other weights, the hundredth call, another device, precision or mode
      than that of the check;
    - mixing below ``TOLERANCE``; in a loss that computes in float32, mixing below ``ROUNDED``; in a model that cannot
      run in float64, or computes in float32 inside, mixing below ``COARSE``, and below ``KINK`` where only the gradient
      mixes;
    - mixing by chance, in draws other than those of the check. A draw of one number for the whole batch (occasional
      mixup) has ``SEEDS`` values here;
    - effects of padding: all probes are padded alike, alone and in batches. Nor does it find that batches of other
      sizes are rounded differently in a coarser precision (``precision``);
    - a model or a loss that recognises the check. It finds mistakes. Nothing here helps against the author of the
      model's code: that code sees the private rows and can send them elsewhere.
It also refuses, although nothing is mixed: draws whose distribution depends on a tensor, draws from numpy by position
in the batch, and a buffer or frozen parameter that every call changes. It needs memory for a copy of the model in
float64.
Draws no noise and reads public inputs only.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fedlsg.gradients.independence.coupled_draws import Draws
from fedlsg.gradients.independence.probe import FIX, NO_GRADIENT, Outcome, Subject, prepare
from fedlsg.gradients.independence.trace import Key, Seen, Trace
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size
from fedlsg.gradients.supported import UnsupportedLayerError, check_supported, trainable, unsupported
from fedlsg.user_code.objects import written

BATCHES = (2, 7)
LARGEST = 16
"""The largest batch that is tried because a dimension of the model has its size."""
SEEDS = 16
"""Seeds that are tried for a model or loss that draws one number for the whole batch."""
MOST, FEW = 300, 3
"""Bound of batch sizes in the user's code, and how many of them are tried: a mean from 32 examples on, say."""
WORK = 2**20
"""Activations of one example, in numbers, above which only the dimensions of the inputs are tried."""
TOLERANCE = 1e-9
SMALL_PART = 1e-3
"""Part of an example's whole gradient below which that of a parameter is compared in units of this part."""
ROUNDINGS = 16
"""Units in the last place of the largest activation that rounding may leave anywhere: a unix time in a sine, say."""
ROUNDED = 1e-5
"""Tolerance of a loss that computes in float32 next to a model in float64, and of gradients then."""
COARSE, KINK = 1e-4, 0.05
"""Tolerances for a model that computes in float32: of an activation or loss, and of a gradient. Rounding may flip a
unit at the kink of a ReLU, which moves a gradient of these networks by up to 0.008 of its length."""


def check_independent(model: nn.Module, loss_fn: LossFunction, inputs: Batch, targets: Batch) -> None:
    """Raise UnsupportedLayerError, naming the layer, if the gradient of an example depends on other examples.

    ``inputs`` and ``targets`` are two or more public examples (seven are better, the longest first) as they would be
    trained on, batch first; never private ones, because the answer depends on them. ``loss_fn`` as in
    ``per_example_gradients``. The model is checked in the modes (train, eval) that its modules are in, on a copy in
    float64; the model itself is not changed. The error names the layer where the difference begins in the order of
    computation: forward, loss, backward. The module docstring says how it is done, and what it cannot find.
    Raises ValueError for a single example, or one whose loss is not finite.
    """
    check_supported(model)
    count = batch_size(inputs, targets)
    if count < 2:
        raise ValueError(f"expected two probe examples or more, to compare them alone and in batches, got {count}")
    own = next(iter(trainable(model).values())).dtype
    for dtype, loss_dtype in ((torch.float64, None), (torch.float64, own), (None, None)):
        subject = prepare(model, loss_fn, inputs, targets, dtype, loss_dtype)
        try:
            first = subject.run([0])
        except UnsupportedLayerError as error:
            if dtype is None or error.__cause__ is None:
                raise
            continue  # a loss that holds float32 tensors cannot read float64, and some models cannot run in it
        compare(subject, first)
        for seed in range(1, SEEDS if subject.draws.common else 1):  # mixup by a coin: in some of the batches
            other = replace(subject, draws=Draws(seed))
            compare(other, other.run([0]))
        return


def sizes(subject: Subject, alone: Trace) -> list[int]:
    """Batch sizes to try: ``BATCHES``, small dimensions of the inputs and, if that is cheap, of all activations."""
    given = [x.shape[1:] for x in ([subject.inputs] if isinstance(subject.inputs, Tensor) else subject.inputs.values())]
    shapes = [seen.shape for seen in alone.forward.values()]
    if sum(shape.numel() for shape in shapes) <= WORK:
        given += shapes
    coinciding = {size for shape in given for size in shape if 2 < size <= LARGEST}
    return sorted({*BATCHES, *coinciding})


def run_sizes_of_code(subject: Subject, like: Trace) -> Iterator[Outcome]:
    """Batches one larger than numbers in the code. One that fails shows nothing: the code may allow no more rows."""
    work = sum(seen.shape.numel() for seen in like.forward.values())
    loss = getattr(subject.loss_fn, "loss", subject.loss_fn)
    found = [int(n) + 1 for n in written(subject.model, loss) if BATCHES[-1] <= n < MOST and work * n <= WORK]
    for size in found[:FEW]:
        try:
            yield subject.run_in_company(size, like)
        except UnsupportedLayerError as error:
            if error.__cause__ is None:
                raise


def compare(subject: Subject, first: Outcome) -> None:
    """Raise UnsupportedLayerError at the first difference; ``first`` is probe 0 alone."""
    if not first.losses.isfinite().all():
        raise ValueError(
            f"expected a finite loss of a public probe example, got {first.losses.tolist()}: check inputs and weights"
        )
    like = first.trace
    buffers = {name: b.detach().clone() for name, b in subject.model.named_buffers()}
    frozen = {name: p._version for name, p in subject.model.named_parameters() if not p.requires_grad}
    alone = {0: first, 1: subject.run([1])}
    together = [subject.run_in_company(size, like) for size in sizes(subject, like)]
    together += run_sizes_of_code(subject, like)
    if not any(outcome.learns for outcome in (first, *together)):
        raise UnsupportedLayerError(f"the loss function: {NO_GRADIENT}")
    again = subject.run([0], like)
    judge = Judge(subject=subject, alone=alone, buffers=buffers, frozen=frozen)
    judge.state(again)
    for outcome in together:
        judge.rows(outcome)


@dataclass(frozen=True, kw_only=True, eq=False)
class Judge:
    """Compares passes with the probes alone.

    ``buffers`` are those of the model after its first pass, ``frozen`` the in-place versions of frozen parameters then.
    """

    subject: Subject
    alone: Mapping[int, Outcome]
    buffers: Mapping[str, Tensor]
    frozen: Mapping[str, int]
    _noise: dict[int, float] = field(default_factory=dict, init=False)

    @property
    def fine(self) -> bool:
        """Whether the model computes in float64 throughout."""
        return self.subject.draws.coarsest < 1e-12

    @property
    def tolerance(self) -> float:
        """Relative difference that rounding may leave."""
        return TOLERANCE if self.fine else COARSE

    @property
    def later_tolerance(self) -> float:
        """Relative difference that rounding may leave from the loss on."""
        eps = self.subject.draws.coarsest_later
        return max(self.tolerance, 0.0 if eps < 1e-12 else ROUNDED if eps < 1e-6 else COARSE)

    @property
    def gradient_tolerance(self) -> float:
        """Relative difference that rounding may leave in an example's gradient."""
        return self.later_tolerance if self.later_tolerance < COARSE else KINK

    @property
    def floor(self) -> float:
        """Length below which a row is rounding only."""
        return 1e-6 if self.later_tolerance == TOLERANCE else 1e-2

    def state(self, again: Outcome) -> None:
        """Probe 0 alone, after all other batches: the model must not remember them."""
        self.refuse(again, f"depends on earlier batches: the same example alone gives another {{}} after them; {FIX}")
        model = self.subject.model
        changed = [name for name, now in model.named_buffers() if not torch.equal(now, self.buffers.get(name, now))]
        changed += [name for name, p in model.named_parameters() if self.frozen.get(name, p._version) != p._version]
        for name in changed:
            path, _, own = name.rpartition(".")
            what = f"{'frozen parameter' if name in self.frozen else 'buffer'} {own}"
            self.fail(path, f"its forward pass changes the {what}, a memory of earlier batches; {FIX}")

    def rows(self, outcome: Outcome) -> None:
        """Every row of probes 0 and 1 in a batch."""
        size = len(outcome.members)
        self.refuse(outcome, f"mixes examples: in a batch of {size} an example has another {{}} than alone; {FIX}")

    def refuse(self, outcome: Outcome, message: str) -> None:
        """Raise for the first tensor, loss or gradient that differs. Raises UnsupportedLayerError.

        A tensor in which no examples are found is not refused by itself; it is named if a later one differs.
        """
        places = [place for place, member in enumerate(outcome.members) if member in self.alone]
        first = None
        for key, seen in outcome.trace.forward.items():
            if self.differs("forward", key, seen, outcome, places):
                first = first or key
                if seen.by_example or len(outcome.members) == 1:
                    self.fail_at(outcome.trace, first, message)
        losses = self.losses_differ(outcome, places)
        wrong = [name for name in outcome.gradients if self.gradient_differs(name, outcome, places)]
        if first is not None and (losses or wrong):
            self.fail_at(outcome.trace, first, message)
        if losses:
            output = outcome.trace.forward.get(("", "output", 1, 0))
            self.fail("" if output is None or not output.rows else None, message.format("loss"))
        if wrong:
            self.fail(self.source(outcome, places, wrong), message.format("gradient (its backward pass mixes)"))

    def differs(self, side: str, key: Key, seen: Seen, outcome: Outcome, places: Sequence[int]) -> bool:
        """Whether a tensor's rows differ for every way to find its examples."""
        known = {m: getattr(o.trace, side).get(key) for m, o in self.alone.items()}
        first = known[next(iter(known))]
        shape = None if first is None else first.shape
        alone = {m: k for m, k in known.items() if k is not None and k.shape == shape}
        places = [p for p in places if outcome.members[p] in alone]
        if not places or shape is None:
            return False  # rows are found by the shape of probe 0; these examples have others: later tensors decide
        tolerance = self.tolerance if side == "forward" else self.later_tolerance
        verdicts = []
        for rows in seen.rows:
            wrong = False
            for p in places:
                own = alone[outcome.members[p]].rows[0][0]
                gap = float((rows[p if len(rows) > 1 else 0] - own).abs().max())
                noise = self.noise(outcome.members[p])
                wrong |= gap > tolerance * max(float(own[-1]), self.floor) + noise * shape.numel() ** 0.5
            verdicts.append(wrong)
        return bool(verdicts) and all(verdicts)

    def losses_differ(self, outcome: Outcome, places: Sequence[int]) -> bool:
        """Whether a loss differs from that of the example alone."""
        for p in places:
            alone = self.alone[outcome.members[p]]
            own = float(alone.losses.abs().max())
            gap = abs(float(outcome.losses[p] - alone.losses[0]))
            if not gap <= self.later_tolerance * max(own, self.floor) + self.noise(outcome.members[p]):
                return True
        return False

    def gradient_differs(self, name: str, outcome: Outcome, places: Sequence[int]) -> bool:
        """Whether a parameter's gradient differs, in its own units, and of at least a part of the whole gradient."""
        for p in places:
            alone = self.alone[outcome.members[p]]
            gap = float((outcome.gradients[name][p] - alone.gradients[name][0]).norm())
            own, noise = float(alone.gradients[name][0].norm()), self.noise(outcome.members[p])
            if self.gradient_tolerance < KINK:
                allowed = (self.gradient_tolerance + noise) * max(own, SMALL_PART * alone.length, self.floor)
            else:
                allowed = KINK * max(alone.length, self.floor)
            if not gap <= allowed:
                return True
        return False

    def noise(self, member: int) -> float:
        """What rounding of a probe's largest activations may leave in later ones, of any size."""
        if member not in self._noise:
            self._noise[member] = ROUNDINGS * self.subject.draws.coarsest * self.alone[member].trace.largest
        return self._noise[member]

    def source(self, outcome: Outcome, places: Sequence[int], wrong: Sequence[str]) -> str | None:
        """The module in whose backward pass the mixing begins; None for the loss function.

        Mixing begins between an output whose gradient differs and the outputs computed from it, whose gradients agree.
        """
        trace = outcome.trace
        bad = [k for k, seen in trace.backward.items() if self.differs("backward", k, seen, outcome, places)]
        if not bad:
            return wrong[-1].rpartition(".")[0]
        for key in trace.backward:
            if key not in bad and bad[0] in trace.sources.get(key, set()):
                return key[0]
        return None if bad[0] in trace.sources.get(("", "loss", 1, 0), set()) else bad[0][0]

    def fail_at(self, trace: Trace, key: Key, message: str) -> None:
        """Raise for a module's output, or for the module around it, which computed its input."""
        path, side, _, _ = key
        if side == "output":
            shape = trace.forward[key].shape
            self.fail(path, message.format("output" if shape else "output of shape (), one number for all examples,"))
        self.fail(trace.inside[key], message.format(f"input of its layer {path}"))

    def fail(self, path: str | None, message: str) -> None:
        """Raise for the module at a path, or for the loss function."""
        if path is None:
            raise UnsupportedLayerError(f"the loss function: {message}")
        raise unsupported(path, self.subject.model.get_submodule(path), message)
