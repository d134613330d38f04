"""One round of a loop: charge the ledger, draw the batch, clip, add noise, update the model.

Before a charge the round is rehearsed on made-up rows, so that an error there costs no epsilon.
"""

import logging
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.carriers.powersgd import decode, encode
from fedlsg.config.isolation import Wanted
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import LossFunction, batch_size, trainable
from fedlsg.gradients.hooked_pass.model_facts import forget
from fedlsg.gradients.hooked_pass.supported import UnsupportedLayerError
from fedlsg.gradients.isolation.levels import Isolation, resolve
from fedlsg.gradients.isolation.passes import forget_loss
from fedlsg.gradients.isolation.trial import level_of_own_code, word_on
from fedlsg.method import Batch, LocalTraining, Positions, client_step
from fedlsg.privacy import BudgetError, Entry, LedgerError
from fedlsg.randomness import (
    SecretStream,
    own_draws,
    public_generator,
    reproducible_stream,
    secret_stream,
    seed_draws,
)
from fedlsg.state import ClientTerms, Phase, RoundPlan, ServerState
from fedlsg.strategies.own_loop.eval_mode import warn_of_eval_mode
from fedlsg.strategies.own_loop.examples import (
    GIVE_EXAMPLE,
    accepted,
    check_example,
    check_synthetic,
    made_up,
)
from fedlsg.strategies.own_loop.function_checks import check_batches, same_function
from fedlsg.strategies.own_loop.loop_account import CLIENT, LoopAccount, Spending
from fedlsg.strategies.own_loop.row_layout import Layout, laid_out, layout_of
from fedlsg.strategies.own_loop.user_inputs import first_rows, guarded, named, other_types, types_of
from fedlsg.tensors import fields_of, of_fields
from fedlsg.training import Groups, Persons, together
from fedlsg.training.local_training import Shape, runs_of, shape_of
from fedlsg.user_code.failure import depends_on_values, describe
from fedlsg.user_code.fingerprint import Fingerprint, Followed
from fedlsg.user_code.library import own_code
from fedlsg.user_code.objects import restored

Pair = tuple[Inputs, Inputs]

TIMED = set[tuple[str, Isolation]]()
"""Own code, and its level, that this process has timed: a Flower app has a PrivateStep a round."""
OPTION = "PrivateStep(..., isolation='checked')"
"""How a user of PrivateStep trusts the check of own code."""
MAX_STATES = 16
"""Rehearsed states of a model and forms of the data that are remembered at most."""
SHAPES_WARNING = (
    "rows have several shapes, and each shape takes a pass of its own: where lengths differ, "
    "step.batches(data, pad=0, mask=NAME) makes few of them"
)
"""The warning about rows of several shapes."""
Watcher = Callable[[RoundPlan, Positions, Tensor], None]
"""Called with the plan of a round, the positions of its batch and the payload's values, after noise
was added.
"""


def sizes_of(local: LocalTraining, shape: Shape, num_examples: int) -> list[int]:
    """Batch sizes of a rehearsal: 0, and one more than a microbatch, or the largest batch.

    A batch has a mean of b and a standard deviation of at most sqrt(b): more than b + 6 sqrt(b)
    does not occur.
    """
    mean = local.expected_batch
    largest = min(num_examples, math.ceil(mean + 6 * math.sqrt(mean)))
    return [0, min(largest, shape.size + 1)]


def made_up_persons(persons: Persons | None, count: int) -> Persons | None:
    """``count`` persons with two rows each, for a rehearsal.

    None if examples are clipped, and for an empty batch.
    """
    if persons is None or not count:
        return None
    return Persons(
        torch.arange(count).repeat(2), most_rows=persons.most_rows, gradient=persons.gradient
    )


def check_moved(model: nn.Module) -> None:
    """Raise ValueError for infinite or NaN weights after a step, as averages in float16 can be."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and not parameter.isfinite().all():
            raise ValueError(
                f"one step leaves weights that are not finite ({name}, {parameter.dtype}): keep "
                "weights in float32 (precision='bfloat16' runs the pass in fewer bits), or take a "
                "smaller learning_rate"
            )


def repeat_rows(inputs: Inputs, targets: Inputs, like: Pair | None = None) -> Batch:
    """A batch function that repeats some rows, in the layout of those of ``like`` in memory."""
    count = batch_size(inputs, targets)
    input_layouts, target_layouts = (layouts_of(part) for part in like or (inputs, targets))

    def batch(positions: Positions) -> tuple[Any, Any]:
        rows = positions % count
        return (
            rows_in_layout(inputs, rows, input_layouts),
            rows_in_layout(targets, rows, target_layouts),
        )

    return batch


def layouts_of(part: Inputs) -> dict[str, Layout]:
    """The layout in memory of each field."""
    return {name: layout_of(field) for name, field in fields_of(part).items()}


def rows_in_layout(part: Inputs, rows: Positions, layouts: Mapping[str, Layout]) -> Any:
    """Some rows of each field, in these layouts."""
    fields = {
        name: laid_out(field[rows.to(field.device)], layouts[name])
        for name, field in fields_of(part).items()
    }
    return of_fields(fields)


def form_of(part: Inputs) -> tuple[tuple[str, torch.dtype, tuple[int, ...], Layout], ...]:
    """Names, types, shapes and layouts in memory of one example."""
    return tuple(
        (name, value.dtype, tuple(value.shape[1:]), layout_of(value))
        for name, value in fields_of(part).items()
    )


def check_trained(start: Mapping[str, tuple[nn.Parameter, torch.Size]], model: nn.Module) -> None:
    """Raise ValueError unless the model trains the parameters of the start, in their shapes.

    start: parameter and shape by name.
    """
    now = trainable(model)
    kept = now.keys() & start.keys()
    changes = {
        "new": now.keys() - start.keys(),
        "gone or frozen": start.keys() - now.keys(),
        "replaced": {name for name in kept if now[name] is not start[name][0]},
        "of another shape": {name for name in kept if now[name].shape != start[name][1]},
    }
    words = "; ".join(
        f"{what}: {', '.join(sorted(names))}" for what, names in changes.items() if names
    )
    if words:
        raise ValueError(
            f"the trainable parameters are not those that PrivateStep was made with ({words}): its "
            "optimizer and carriers have the old ones, so the new ones would be charged for and "
            "not trained. Nothing was charged: undo the change, or make a new PrivateStep on the "
            "same ledger (ledger=PATH). A ledger without a path ends with its PrivateStep: give "
            "ledger=PATH from the start if you will unfreeze later"
        )


def in_words(error: Exception, model: nn.Module, inputs: Inputs, targets: Inputs) -> Exception:
    """The error of a rehearsal in words; a refusal of fedlsg stays as it is.

    The message has the cause, the line of the user's code, and types and shapes of the rows. It has
    no values of rows, unless the user's own code puts them there.
    """
    if isinstance(error, UnsupportedLayerError | BudgetError | LedgerError):
        return error
    fields = [*named("inputs", inputs), *named("targets", targets)]
    forms = ", ".join(f"{name} {value.dtype} {tuple(value.shape[1:])}" for name, value in fields)
    cause = describe(error)
    if types := other_types(model, inputs):
        cause = f"{types} ({cause})"
    if scattered := [name for name, value in fields if not value.is_contiguous()]:
        cause += (
            f" (in memory, {', '.join(scattered)} are not contiguous: where that is the cause, "
            "give them as .contiguous(), or use reshape in place of view)"
        )
    return ValueError(
        f"{cause}; nothing was charged: a step on made-up rows failed (for one example: {forms}; "
        f"weights {', '.join(sorted(map(str, types_of(model))))})"
    )


@dataclass(kw_only=True, eq=False)
class Release:
    """Runs and rehearses the rounds of a loop. It keeps no secret: streams are new in each round.

    state: model, optimizer and public state.
    loss: one loss an example.
    local: the local step; its level of isolation is chosen before the first step.
    account: the run and its ledger.
    spending: the public terms of the run.
    reproducible: whether batches and noise follow from the public seed; nothing is private then.
    num_rows: of the data.
    persons: of the rows; None if examples are drawn and clipped.
    batched: whether a user's function makes many rows in one call, which the ledger notes.
    watchers: called in each round before the model moves; the rows that they get are secret.
    """

    state: ServerState
    loss: LossFunction
    local: LocalTraining
    account: LoopAccount
    spending: Spending
    reproducible: bool
    num_rows: int
    persons: Persons | None = None
    batched: bool = False
    watchers: list[Watcher] = field(default_factory=list)

    def run(self, batch: Batch, groups: Groups, terms: ClientTerms) -> None:
        """The next round of the state: training, or the pruning before it.

        Raises BudgetError or LedgerError before a batch is drawn. An error after that leaves the
        round charged.
        """
        plan = self._plan(terms)
        entry = self._entry(plan)
        charge = partial(self.account.ledger.charge, entry, within=self.spending.budget)
        rows: list[Positions] = []

        def record_rows(positions: Positions) -> Any:
            rows.append(positions)
            return batch(positions)

        with self._explain_last_step(), self.draws():
            values = self._values(
                plan,
                record_rows if self.watchers else batch,
                groups,
                self.spending.num_examples,
                "",
                charge,
                self.persons,
            )
        for watch in self.watchers:
            watch(plan, torch.cat([torch.empty(0, dtype=torch.int64), *rows]), values)
        self._apply(values, plan)

    def rehearse(
        self,
        inputs: Inputs,
        targets: Inputs,
        terms: ClientTerms,
        like: Pair | None = None,
    ) -> None:
        """Run the next rounds on made-up rows, so that their errors occur before a charge.

        It runs the code of ``run`` without the ledger, at the sizes of ``sizes_of``. Afterwards
        model, optimizer, loss, state and generators are as before. ``like``: rows of the data, for
        the layout in memory. Raises ValueError with the cause.
        """
        batch = guarded(repeat_rows(inputs, targets, like))
        try:
            self._plan(terms)  # carriers of a probe stay: the round takes them as well
            with restored(self.state, self.loss), self.draws():
                while True:
                    plan = self._plan(terms)
                    shape = shape_of(
                        plan.local,
                        self.state.public.parameters.values(),
                        one_shape=plan.frame.one_shape,
                    )
                    every_row = replace(plan, local=plan.local.at_rate(1.0))
                    for size in sizes_of(plan.local, shape, self.spending.num_examples):
                        values = self._values(
                            every_row,
                            batch,
                            together,
                            size,
                            "rehearsal",
                            lambda: None,
                            made_up_persons(self.persons, size),
                        )
                    self._apply(values, plan)
                    if plan.phase is Phase.TRAINING:
                        break
                with self.state.evaluated() as model:
                    check_moved(model)
        except Exception as error:
            raise in_words(error, self.state.model, *(like or (inputs, targets))) from error

    def check_budget(self, terms: ClientTerms) -> None:
        """Raise BudgetError if the next round would pass the budget."""
        with self._explain_last_step():
            self.account.ledger.check_within(self._entry(self._plan(terms)), self.spending.budget)

    @contextmanager
    def _explain_last_step(self) -> Iterator[None]:
        """Inside, a BudgetError right after the last planned step says that this was the last one.

        After further steps, which were within the budget, the budget alone is the reason.
        """
        try:
            yield
        except BudgetError as error:
            planned = self.spending.steps
            if self.state.round != planned:
                raise
            raise BudgetError(
                f"all steps={planned} that the noise was planned for are taken; for more give a "
                f"larger steps= or epochs= at the start: {error}"
            ) from error

    def _entry(self, plan: RoundPlan) -> Entry:
        return self.account.entry(
            plan,
            self.spending.num_examples,
            reproducible=self.reproducible,
            batched=self.batched,
        )

    def _plan(self, terms: ClientTerms) -> RoundPlan:
        common = self.state.plan(self.local, unit=self.spending.unit)
        return common.for_client(terms.of(common.phase))

    def _values(
        self,
        plan: RoundPlan,
        batch: Batch,
        groups: Groups,
        num_examples: int,
        label: str,
        charge: Callable[[], None],
        persons: Persons | None,
    ) -> Tensor:
        state = self.state
        # Dropout draws from torch's own generators, by place in the batch: as in a client, these
        # draws are secret.
        seed = secrets.randbits(63)
        if self.reproducible:
            generator = public_generator(state.seed, f"{label}dropout", CLIENT, plan.round)
            seed = generator.initial_seed()
        seed_draws(seed, self.device.type)
        return client_step(
            state.model,
            batch,
            self.loss,
            frame=plan.frame,
            mechanism=plan.mechanism,
            local=plan.local,
            num_examples=num_examples,
            sampler=self._stream(f"{label}sampler", plan.round),
            noise=self._stream(f"{label}noise", plan.round),
            charge=charge,
            groups=groups,
            scale=plan.scale(state.public.parameters),
            persons=persons,
        )

    def _apply(self, values: Tensor, plan: RoundPlan) -> None:
        if plan.phase is Phase.PRUNING:
            self.state.prune(plan.frame, [values], num_examples=self.spending.num_examples)
            return
        # as after a transmission: under dp-powersgd a rank-r product
        received = decode(encode(values, plan.frame), plan.frame)
        self.state.finish_round(plan.frame, [received], noise_std=plan.noise_std)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.state.model.parameters()).device

    @contextmanager
    def draws(self) -> Iterator[None]:
        """Inside, torch's own generators may be seeded and used; afterwards they are as before."""
        cuda = self.device.type == "cuda"
        with (
            torch.cuda.device(self.device) if cuda else nullcontext(),
            own_draws("cuda" if cuda else "cpu"),
        ):
            yield

    def stream(self, purpose: str) -> SecretStream:
        """A new secret stream for the next round; if ``reproducible``, from the public seed."""
        return self._stream(purpose, self.state.round)

    def _stream(self, purpose: str, round: int) -> SecretStream:
        if self.reproducible:
            return reproducible_stream(self.state.seed, purpose, CLIENT, round)
        return secret_stream()


class Rehearsals:
    """Checks before a charge: that no examples are mixed, and that a step works.

    A batch function is checked once; a model and a loss once in a state, which is their
    ``fingerprint``; each form of the data is rehearsed once in a state.

    release: runs the rounds.
    example: public rows of the owner; None: rows are made up.
    wanted: the level of isolation, or "auto" for that of the rule.
    """

    def __init__(self, release: Release, example: Pair | None, wanted: Wanted = "auto") -> None:
        model = release.state.model
        self._release, self._example, self._wanted = release, example, wanted
        self._trained = {
            name: (parameter, parameter.shape) for name, parameter in trainable(model).items()
        }
        self._followed = Followed(model, release.loss)
        self._batch: Any = None
        self._checked: dict[Fingerprint, Isolation] = {}
        self._done: set[object] = set()
        self._last: object = None

    def before(self, batch: Callable[[Positions], Any], groups: Groups, terms: ClientTerms) -> None:
        """Check and rehearse a step, unless function and state are those of the last step.

        Nothing is charged. Two rows of ``batch`` are read, and only their shapes, types and strides
        are used. Raises BudgetError if the step would pass the budget, ValueError for other
        trainable parameters than at the start, the errors of ``check`` and ``Release.rehearse``,
        and those of ``batch`` and ``groups``.
        """
        now = self._followed.now()
        if self._last == (batch, groups, now):
            return
        self._last = None  # a refused state must be checked again
        check_trained(self._trained, self._release.state.model)
        self._release.check_budget(terms)
        if len(self._done) >= MAX_STATES:
            self._done.clear()
            self._checked.clear()
        model, loss = self._release.state.model, self._release.loss
        with restored(model, loss, generators_of=(batch, groups)):
            self.check(batch, now)
            first = torch.arange(min(2, self._release.num_rows))
            rows = first_rows(batch, self._release.num_rows)
            runs_of(first, groups, Shape(size=len(first)))
            form = (now, *map(form_of, rows))
            if form not in self._done:
                unpadded = groups is together and getattr(batch, "padding", None) is None
                if unpadded and batch_size(*rows) < len(first):
                    logging.getLogger("fedlsg").warning(SHAPES_WARNING)
                self._rehearse(rows, terms)
                warn_of_eval_mode(model)
                self._done.add(form)
        self._followed.accept(now)
        self._last = batch, groups, now

    def passed(self) -> None:
        """End a step: attributes that its passes wrote are no change of the model."""
        self._followed.passed()

    def check(
        self, batch: Callable[[Positions], Any] | None = None, now: Fingerprint | None = None
    ) -> None:
        """Raise ValueError, or UnsupportedLayerError, if batch function or model mix examples.

        Without a clip, which mixing would make useless, nothing is checked. ``now``: the state of
        model and loss.
        """
        release, now = self._release, now or self._followed.now()
        model, count = release.state.model, release.num_rows
        if not release.state.method.mechanism.clips:
            return
        if batch is not None and not same_function(batch, self._batch):
            with release.draws(), restored(generators_of=(batch,)):
                check_batches(batch, count, release.device.type)
            self._batch = batch
        forget(model)
        forget_loss(release.loss)
        if now in self._checked:
            release.local = replace(release.local, isolation=self._checked[now])
            return
        with release.draws():
            rows = self._example if batch is None else first_rows(batch, count)
            if rows is not None:
                self._choose_level(rows)
            level = release.local.isolation
            if self._example is not None:
                check_example(model, release.loss, *self._example, level=level)
            elif rows is not None:
                check_synthetic(model, release.loss, *rows, level=level)
        if batch is not None:
            self._checked[now] = level

    def _choose_level(self, rows: Pair) -> None:
        """Set the level of isolation for model and loss, by a trial on rows of this form.

        If own code takes no such rows the level is "rows", and the rehearsal says what fails.
        """
        release = self._release
        model, loss = release.state.model, release.loss

        def trial() -> Isolation:
            for trial_rows in (self._like(rows), accepted(model, loss, *rows)):
                with suppress(Exception):
                    if trial_rows is not None:
                        return self._level_by_trial(*trial_rows)
            return "rows"

        level = resolve(model, loss, self._wanted, trial)
        release.local = replace(release.local, isolation=level)

    def _level_by_trial(self, inputs: Inputs, targets: Inputs) -> Isolation:
        """The level at which own code runs on these rows; may log a warning about its speed."""
        release = self._release
        code_and_rows = release.state.model, release.loss, inputs, targets
        level = level_of_own_code(*code_and_rows)
        rows = min(round(release.local.expected_batch), release.local.microbatch_size)
        own = own_code(release.state.model) or own_code(release.loss) or ""
        if (own, level) in TIMED:
            return level
        TIMED.add((own, level))
        if warning := word_on(*code_and_rows, level, rows, OPTION):
            logging.getLogger("fedlsg").warning("isolation=%s: %s", level, warning)
        return level

    def _like(self, rows: Pair) -> Pair:
        """The owner's example if it has the names and types of the data; else made-up rows."""
        example = self._example
        if example is not None and list(map(names_of, example)) == list(map(names_of, rows)):
            return example
        return made_up(*rows)

    def _rehearse(self, rows: Pair, terms: ClientTerms) -> None:
        """Rehearse a step on the rows of ``_like``.

        If it fails on made-up rows, perhaps because of their values, it is rehearsed on plain rows
        that model and loss take.
        """
        release, example = self._release, self._like(rows)
        try:
            release.rehearse(*example, terms, rows)
        except Exception as error:
            if example is self._example or not depends_on_values(error):
                raise
            other = accepted(release.state.model, release.loss, *rows)
            if other is None:
                raise ValueError(f"{error}; if real rows would not fail, {GIVE_EXAMPLE}") from error
            release.rehearse(*other, terms, rows)


def names_of(part: Inputs) -> list[tuple[str, torch.dtype]]:
    """Names and types of the tensors of a part."""
    return [(name, value.dtype) for name, value in fields_of(part).items()]
