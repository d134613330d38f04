"""Check that a model and a loss treat examples independently: public rows alone and in batches.

The clip bounds what one example adds to the sum only if its gradient depends on no other example.
``check_supported`` refuses layers that mix examples by their type. Here the model runs. Each row
alone by torch.autograd is the reference: without hooks or formulas of fedlsg. In a batch a row must
have the same loss, the same outputs and the same gradient:
    checked           the gradient of each example as a step computes it
                      (``per_example_gradients``). The guarantee of a step rests on this.
    isolated, rows    the gradient of a weighted sum of losses, in an ordinary pass. A step gives
                      this code one example at a time in any case. The check is for a user whose
                      model would learn something else than he means. A batch that fails with an
                      error is no fault here.

These batches are tried:
    - ``BATCHES`` rows of the first family;
    - as many rows as a small dimension of the model has (tokens, channels): a layer that takes
      another axis for the batch would look right there;
    - ``LARGER`` rows, if that is cheap;
    - all rows of each other family, and rows of all families.
Afterwards, and after ``CALLS`` calls, the first row must still be the same alone, and no buffer may
have changed. Random draws are coupled by example, and must follow from the seed of the pass, under
two seeds (``Draws``). A model or loss that draws one number for the whole batch runs under
``SEEDS`` of them.
After a difference, a second pass names the layer where it begins: forward, loss, backward.

How weak mixing is found: in float64 on a copy of the model, where rounding leaves differences of
1e-15. ``TOLERANCE`` is 1e-9 of the length of a row's outputs, of its loss, or of its gradient. A
few units in the last place of a row's largest sum are added: a large number, such as a unix time,
is rounded wherever it goes. So rows of several scales are needed (families). Trainable weights are
moved a little, so that a branch after a weight of zero counts. Some neighbours are large, some are
duplicates.

What it cannot find:
    - mixing on a condition that no row meets: batches larger than those that are tried, other
      values, lengths or labels, other weights, the hundredth call (of a model with large
      activations, an earlier one), another device, precision or mode than that of the check;
    - mixing below ``TOLERANCE``; in a loss that computes in float32, below ``ROUNDED``; in a model
      that cannot run in float64, or computes in float32 inside, below ``COARSE``, and below
      ``KINK`` where only the gradient mixes;
    - mixing by chance, in draws other than those of the check;
    - effects of padding: all rows are padded alike, alone and in batches. Nor does it find that
      batches of other sizes are rounded differently in a coarser precision (``precision``);
    - a model or a loss that recognises the check. It finds mistakes. Nothing here helps against the
      author of the model's code: that code sees the private rows and can send them elsewhere.
It also refuses, although nothing is mixed: draws whose distribution depends on a tensor, draws from
numpy by position in the batch, a buffer or frozen parameter that every call changes, and gradients
of a registered function that are not those of torch.autograd. It needs memory for a copy of the
model in float64.
Draws no noise and reads public inputs only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import NoReturn

import torch
from torch import Tensor, nn

from fedlsg.gradients.calls.registry import STATISTICS
from fedlsg.gradients.hooked_pass.supported import (
    NOTHING,
    UnsupportedLayerError,
    check_initialized,
    check_supported,
    refusal,
    trainable,
    unsupported,
)
from fedlsg.gradients.independence.coupled_draws import Draws
from fedlsg.gradients.independence.subject import Outcome, Subject, forms, prepare
from fedlsg.gradients.independence.trace import Trace, first_difference
from fedlsg.gradients.isolation.levels import Isolation
from fedlsg.gradients.isolation.secret_seeds import FIX as NO_SEEDS
from fedlsg.gradients.isolation.secret_seeds import OwnDrawsError
from fedlsg.gradients.layer_faults import layer_fault
from fedlsg.gradients.per_example import Batch, LossFunction, batch_size
from fedlsg.tensors import fields_of
from fedlsg.user_code.failure import describe, is_own
from fedlsg.user_code.objects import same_numbers

BATCHES = (2, 7)
"""Batch sizes that are always tried."""
MAX_MODEL_SIZED_BATCH = 16
"""The largest batch that is tried because a dimension of the model has its size."""
LARGER = (64, 301)
"""Batch sizes that are tried if they are cheap: code may mix from 40 or from 256 examples on."""
SEEDS = 16
"""Seeds that are tried for a model or loss that draws one number for the whole batch."""
ALLOWED = 20
"""Rows of different kinds that a model and a loss must take together."""
CALLS = 64
"""Calls after which a model must not have changed."""
WORK = 2**19
"""A budget of numbers in sums. Dimensions of weights are tried as batch sizes if one example's pass
stays within it, a batch of ``LARGER`` if it and its gradients have at most twice as many, and the
repeated calls together have at most eight times as many."""
TOLERANCE = 1e-9
"""Relative difference above which a model in float64 mixes examples."""
ROUNDINGS = 16
"""Units in the last place of the largest sum that rounding may leave: a unix time in a sine."""
ROUNDED = 1e-5
"""Tolerance of a loss in float32 next to a model in float64, and of gradients then."""
COARSE = 1e-4
"""Tolerance of an activation or a loss of a model that computes in float32."""
KINK = 0.05
"""Tolerance of a gradient of a model that computes in float32. Rounding may flip a unit at the kink
of a ReLU, which moves a gradient of these networks by up to 0.008 of its length."""
NAMED = 4
"""Rows of a batch in which the second pass looks for the layer."""
FIX = (
    "compute every example from itself alone, without a sum, mean, sort, softmax or recurrence "
    "over dimension 0, the batch, and without numbers that a generator of its own gives by place"
)
NO_MEMORY = (
    "write to no buffer or attribute in forward (a count or a moving average), and draw from no "
    "generator of its own; what changes from step to step, change after the step"
)
WRONG = (
    "a step takes another {} of one example than torch.autograd: correct the function that "
    "register_layer got for it"
)
NO_GRADIENT = (
    "its losses have no gradient of any trained parameter, so that a step would be noise alone; "
    "compute them from the outputs without detach(), item(), argmax() or torch.no_grad()"
)


def check_model(
    model: nn.Module,
    loss: LossFunction,
    families: Sequence[tuple[Batch, Batch]],
    *,
    level: Isolation = "checked",
) -> list[int]:
    """Raise UnsupportedLayerError, naming the layer, if an example's gradient depends on others.

    ``families``: inputs and targets, each of two or more public or made-up rows as they would be
    trained on, batch first, all of one form; never private ones, because the answer depends on
    them. The first family gets most of the batches: seven rows are good, the longest first.
    ``level``: see the module docstring. The model is checked in the modes (train, eval) that its
    modules are in, on a copy in float64; it is not changed.
    Returns the numbers of the rows that model and loss take alone, counted over all families. The
    others are left out.
    Raises UnsupportedLayerError or OwnDrawsError, ValueErrors both, for random draws that model or
    loss seed themselves; ValueError for a single row; the error of row 0 if no row runs.
    """
    refuse_layers(model, level)
    if sum(batch_size(*family) for family in families) < 2:
        raise ValueError("expected two probe examples or more, to compare them in batches, got one")
    model_dtype = next(iter(trainable(model).values())).dtype
    for dtype, loss_dtype in ((torch.float64, None), (torch.float64, model_dtype), (None, None)):
        make = partial(prepare, model, loss, families, dtype, loss_dtype)
        check = Check(make=make, subject=make(), level=level)
        rows = check.run_alone(range(check.subject.families[-1].stop))
        if rows:
            break  # a loss with float32 tensors cannot read float64, some models do not run in it
    else:
        check.refuse([0], check.failed[0])
    check.run()
    subject = check.subject
    first, *_, large = subject.families
    seeds = 1
    if subject.draws.common:
        seeds = SEEDS
    elif subject.draws.first:
        seeds = 2
    for number in range(1, seeds):
        seeded = replace(subject, draws=Draws(number))
        other = replace(check, subject=seeded, alone={}, calls=0)
        if other.run_alone([row for row in rows if row in first or row in large]):
            other.run()
    return [row for row in rows if row not in large]


def refuse_layers(model: nn.Module, level: Isolation) -> None:
    """Raise UnsupportedLayerError for layers that are known to mix, or have no gradients."""
    if level == "checked":
        return check_supported(model)
    check_initialized(model)
    if not trainable(model):
        raise UnsupportedLayerError(NOTHING)
    for path, module in model.named_modules():
        if isinstance(module, STATISTICS) and (reason := refusal(module)) is not None:
            raise unsupported(path, module, reason)


@dataclass(frozen=True, kw_only=True, eq=False)
class Check:
    """One comparison of a subject's rows, alone and in batches.

    make: makes the subject again, without what earlier calls left in it.
    subject: the copy of the model, with the rows.
    level: how a step isolates examples; see the module docstring.
    alone: the pass over each row alone, by row number, for rows that run.
    failed: the error of each other row.
    calls: number of calls after which the first row is compared again.
    """

    make: Callable[[], Subject]
    subject: Subject
    level: Isolation
    alone: dict[int, Outcome] = field(default_factory=dict)
    failed: dict[int, Exception] = field(default_factory=dict)
    calls: int = CALLS

    def run_alone(self, rows: Sequence[int]) -> list[int]:
        """Fill ``alone`` and ``failed``, and return the rows that run."""
        for row in rows:
            try:
                outcome = self.subject.run([row], ones(1))
            except Exception as error:  # mostly, the model or the loss takes no such values
                if is_refusal(error):
                    self.refuse([row], error)
                self.failed[row] = error
                continue
            if bool(outcome.losses.isfinite().all() and outcome.gradient.isfinite().all()):
                self.alone[row] = outcome
            else:
                self.failed[row] = ValueError(
                    "expected a finite loss and gradient of a public probe example alone, got a "
                    f"loss of {outcome.losses.tolist()}: check inputs and weights"
                )
        if self.alone and not any(outcome.learns for outcome in self.alone.values()):
            raise UnsupportedLayerError(f"the loss function: {NO_GRADIENT}")
        return list(self.alone)

    def run(self) -> None:
        """Raise UnsupportedLayerError at the first difference."""
        model, row = self.subject.model, next(iter(self.alone))
        buffers = {name: b.detach().clone() for name, b in model.named_buffers()}
        frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
        versions = {name: p._version for name, p in frozen.items()}
        outcomes = self.run_batches()
        again = self.subject.run([row], ones(1))
        if (difference := self.difference(again)) is not None:
            fresh = replace(self, subject=replace(self.make(), draws=self.subject.draws))
            message = "depends on earlier batches: an example alone gives another {} after them"
            self.fail_at_layer(again, *difference, message, fresh)
        now = dict(model.named_buffers())
        changed = [name for name, b in buffers.items() if not same_numbers(now.get(name, b), b)]
        changed += [name for name, p in frozen.items() if p._version != versions[name]]
        for name in changed:
            path, _, attribute = name.rpartition(".")
            what = f"{'frozen parameter' if name in frozen else 'buffer'} {attribute}"
            self.fail(path, f"its forward pass changes the {what}, a memory of earlier batches")
        for outcome in outcomes:
            if (difference := self.difference(outcome)) is not None:
                size = len(outcome.members)
                message = f"mixes examples: in a batch of {size} one has another {{}} than alone"
                self.fail_at_layer(outcome, *difference, message if size > 1 else WRONG, self)

    def run_batches(self) -> list[Outcome]:
        """Run all batches, and then the model until ``calls`` calls, if these are cheap."""
        subject, rows = self.subject, [*islice(self.alone, 2)]
        work = max(1, subject.draws.work)
        recorded = len(subject.draws.first)
        # The first step runs the model more often (``survey``). These draws are no pass's.
        with suppress(Exception):
            subject.run(rows[:1], ones(1), private=self.level == "checked")
        del subject.draws.first[recorded:]
        outcomes = [self.run_batch(members) for members in self.batches(work)]
        calls = min(self.calls - len(self.alone) - len(outcomes), 8 * WORK // work)
        with suppress(Exception):
            subject.run(rows, ones(len(rows)), times=max(1, calls))
        return [outcome for outcome in outcomes if outcome is not None]

    def batches(self, work: int) -> Iterator[Sequence[int]]:
        """The rows of each batch; ``work``: numbers in the sums of one example's forward pass."""
        subject = self.subject
        running = ([row for row in family if row in self.alone] for family in subject.families)
        first, *others = running
        shapes = [t.shape[1:] for t in fields_of(subject.inputs).values()]
        shapes += [p.shape for p in subject.model.parameters() if work <= WORK]
        large = [size for size in LARGER if size * (work + subject.frame.kept) <= 2 * WORK]
        sizes = {
            *BATCHES,
            *large,
            *(n for shape in shapes for n in shape if 2 < n <= MAX_MODEL_SIZED_BATCH),
        }
        yield [next(iter(self.alone))]
        if len(first) > 1:  # the second row first, because the first one ran alone
            yield from ([first[1], *islice(cycle(first), size - 1)] for size in sorted(sizes))
        yield from (rows[::-1] for rows in others if len(rows) > 1)
        everyone = list(self.alone)
        parts = len(everyone) // ALLOWED + 1
        yield from (everyone[start::parts] for start in range(parts))

    def run_batch(self, members: Sequence[int]) -> Outcome | None:
        """The pass over a batch, as a step of this level takes it.

        None for a batch that fails, if the level allows this.
        """
        private, size = self.level == "checked", len(members)
        generator = torch.Generator().manual_seed(size)
        weights = torch.randn(size, generator=generator, dtype=torch.float64)
        try:
            return self.subject.run(members, weights, private=private)
        except Exception as error:
            if is_refusal(error) or (private and size <= ALLOWED):
                self.refuse(members, error)
            return None  # the code may allow no more rows

    @property
    def tolerance(self) -> float:
        """Relative difference that rounding may leave in the model's forward pass."""
        return TOLERANCE if self.subject.draws.coarsest < 1e-12 else COARSE

    @property
    def later_tolerance(self) -> float:
        """Relative difference that rounding may leave from the loss on."""
        eps = self.subject.draws.coarsest_later
        return max(self.tolerance, 0.0 if eps < 1e-12 else ROUNDED if eps < 1e-6 else COARSE)

    @property
    def floor(self) -> float:
        """Length below which a row is rounding only."""
        return 1e-6 if self.later_tolerance == TOLERANCE else 1e-2

    def difference(self, outcome: Outcome) -> tuple[str, Sequence[int]] | None:
        """What differs between a pass and its rows alone, and at which places of the batch.

        A row x' in the batch equals the row x alone if, with its n numbers,
            |x' - x| <= tolerance max(|x|, floor) + ROUNDINGS rounding sqrt(n).
        The gradient of the batch, weighted by w, equals the sum of the rows' gradients G_i if
            |G - sum w_i G_i| <= sum |w_i| part_i max(|G_i|, floor).
        """
        alone = [self.alone[member] for member in outcome.members]
        noise = ROUNDINGS * torch.tensor([row.rounding for row in alone], dtype=torch.float64)

        def differing(batch: Tensor, reference: Tensor, tolerance: float) -> list[int]:
            batch, reference = finite(batch), finite(reference)
            lengths = reference.norm(dim=1).clamp(min=self.floor)
            gaps = (batch - reference).norm(dim=1)
            right = gaps <= tolerance * lengths + noise * reference.shape[1] ** 0.5
            places: list[int] = (~right).nonzero().flatten().tolist()
            return places

        outputs = [row.outputs for row in alone]
        # Outputs whose size depends on the batch, such as padded texts, are not compared.
        fit = {len(row[0]) for row in outputs} == {outcome.outputs.shape[1]}
        if fit and (places := differing(outcome.outputs, torch.cat(outputs), self.tolerance)):
            return "output", places
        losses = torch.stack([row.losses for row in alone])
        if places := differing(outcome.losses.unsqueeze(1), losses, self.later_tolerance):
            return "loss", places
        part = self.later_tolerance + noise if self.later_tolerance < COARSE else KINK
        lengths = torch.stack([row.gradient.norm() for row in alone]).clamp(min=self.floor)
        if not self.gap(outcome).norm() <= (part * lengths) @ outcome.weights.abs():
            return "gradient (its backward pass mixes)", range(len(alone))
        return None

    def gap(self, outcome: Outcome) -> Tensor:
        """The gradient of a pass less the weighted sum of the gradients of its rows alone."""
        alone = torch.stack([self.alone[member].gradient for member in outcome.members])
        return outcome.gradient - outcome.weights @ alone

    def differs(self, tolerance: float, batch: Tensor, alone: Tensor) -> bool:
        """Whether an example's tensor in a batch differs from its tensor alone; see
        ``difference``.
        """
        batch, alone = finite(batch), finite(alone)
        noise = ROUNDINGS * max(row.rounding for row in self.alone.values()) * alone.numel() ** 0.5
        return bool(
            float((batch - alone).norm()) > tolerance * max(float(alone.norm()), self.floor) + noise
        )

    def trace(self, members: Sequence[int]) -> Trace:
        """The tensors that pass through the modules, under the sum of the losses."""
        trace = Trace()
        with trace.record(self.subject.model):
            self.subject.run(members, ones(len(members)))
        return trace

    def fail_at_layer(
        self,
        outcome: Outcome,
        what: str,
        places: Sequence[int],
        message: str,
        reference: "Check",
    ) -> NoReturn:
        """Raise for the first layer at which a pass differs from its rows alone.

        what, places: of ``difference``.
        message: with a place, in braces, for what differs.
        reference: a check whose subject gives the rows alone.
        """
        size = len(outcome.members)
        alone = {place: reference.trace([outcome.members[place]]) for place in places[:NAMED]}
        now = self.trace(outcome.members)
        for place, trace in alone.items():
            differs = partial(self.differs, self.tolerance)
            key = first_difference(trace.forward, now.forward, place, size, differs)
            if key is not None and key[1] == "input":
                self.fail(now.around[key], message.format(f"input of its layer {key[0]}"))
            if key is not None:
                number = now.forward[key].ndim == 0
                shape_words = " of shape (), one number for all examples," if number else ""
                self.fail(key[0], message.format(f"output{shape_words}"))
        if not what.startswith("gradient"):
            self.fail(None if what == "loss" else "", message.format(what))
        for place, trace in alone.items():
            differs = partial(self.differs, self.later_tolerance)
            key = first_difference(trace.backward, now.backward, place, size, differs)
            if key is not None:
                self.fail(now.reader_of(key), message.format(what))
        # Only the code of a step, or a registered function, gives other gradients.
        blocks = self.subject.frame.blocks
        ends = torch.tensor([block.kept for block in blocks]).cumsum(0)
        block = blocks[int((ends <= self.gap(outcome).abs().argmax()).sum())]
        self.fail(block.parameter.rpartition(".")[0], message.format(what))

    def fail(self, path: str | None, message: str) -> NoReturn:
        """Raise for the module at a path, or for the loss function."""
        fix = f"{FIX}; {NO_SEEDS}" if self.subject.draws.common else FIX
        message = f"{message}; {NO_MEMORY if 'earlier batches' in message else fix}"
        if path is None:
            raise UnsupportedLayerError(f"the loss function: {message}")
        raise unsupported(path, self.subject.model.get_submodule(path), message)

    def refuse(self, members: Sequence[int], error: Exception) -> NoReturn:
        """Raise the error of a pass, with the name of the layer that a second pass finds."""
        path = self.trace(members).running[-1:]
        if isinstance(error, UnsupportedLayerError) or (is_own(error) and not path):
            raise error
        rows = self.subject.rows(members)
        module = self.subject.model.get_submodule(path[0]) if path else None
        if module is not None and (fault := layer_fault(module, error, rows[0])):
            raise unsupported(path[0], module, fault) from error
        inputs, targets = map(forms, rows)
        batch = f"a batch of {len(members)} (inputs {inputs}, targets {targets})"
        what = f"fails with {describe(error)}, on {batch}"
        if isinstance(error, OwnDrawsError):
            what = str(error)
        elif len(members) > 1:
            what = f"{what}; {FIX}"
        if module is None:
            raise UnsupportedLayerError(f"the backward pass {what}") from error
        raise unsupported(path[0], module, what) from error


def ones(count: int) -> Tensor:
    """Weights of a plain sum."""
    return torch.ones(count, dtype=torch.float64)


def finite(t: Tensor) -> Tensor:
    """The tensor with one number in place of each NaN and infinity, so that these are equal to
    themselves: masked classes have them.
    """
    return t.nan_to_num(nan=3.0, posinf=5.0, neginf=-7.0)


def is_refusal(error: Exception) -> bool:
    """Whether an error refuses the code itself, and not only the rows that it got."""
    refused = isinstance(error, UnsupportedLayerError) and error.__cause__ is None
    return refused or isinstance(error, OwnDrawsError)
