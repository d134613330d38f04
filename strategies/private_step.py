"""One private training step after another in a user's own loop: DP-SGD in any of the methods,
without a federation.

    step = PrivateStep(model, nn.CrossEntropyLoss(), num_examples=len(train), method="lsg", rank=8,
                       sample_rate=256 / len(train), steps=1000, epsilon=3.0, delta=1e-5,
                       learning_rate=0.5)
    batches = step.batches(train)
    for _ in range(step.steps):
        step.step(batches)

It is a federation of one client with one local step: the same frames, clip, noise, Eq. 3 and
ledger.
"""

import os
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property, partial
from inspect import signature
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from fedlsg.carriers.probe.carrier import Draw
from fedlsg.config.isolation import CHECKED, Isolation, Wanted
from fedlsg.config.units import EXAMPLE, PersonGradient
from fedlsg.gradients import Batch as Inputs
from fedlsg.gradients import Precision, per_example_loss, trainable
from fedlsg.gradients.hooked_pass.precision import Bits
from fedlsg.gradients.hooked_pass.supported import check_initialized
from fedlsg.gradients.isolation.levels import resolve
from fedlsg.method import Batch, LocalTraining, Method, Positions, Schedule
from fedlsg.privacy.data_record import places_of
from fedlsg.privacy.known_weights import WeightsRecord, learn_weights
from fedlsg.privacy.trained_weights import MAX_NOTED_PARAMETERS
from fedlsg.randomness import alone
from fedlsg.rows import OneByOne, Padding, Start
from fedlsg.rows.data_loader import dataset_of
from fedlsg.rows.padding import Fill
from fedlsg.state import ClientTerms
from fedlsg.strategies.method_settings_typed import StepSettings
from fedlsg.strategies.own_loop.examples import check_start
from fedlsg.strategies.own_loop.groups import persons_of, unit_of_groups
from fedlsg.strategies.own_loop.loop_account import (
    SAME_LEDGER,
    LoopAccount,
    Spending,
    check_spending,
    terms_of,
)
from fedlsg.strategies.own_loop.one_round import Rehearsals, Release, Watcher
from fedlsg.strategies.own_loop.other_gradients import (
    check_no_gradient,
    leave_gradients,
    public_gradients,
    refuse_gradients,
)
from fedlsg.strategies.own_loop.row_checks import check_before_charge
from fedlsg.strategies.own_loop.short_steps import warn_of_short_steps
from fedlsg.strategies.own_loop.user_inputs import (
    Data,
    Optimizers,
    Stored,
    Together,
    batches_of,
    guarded,
    of_function,
)
from fedlsg.strategies.step_method import (
    AUTO,
    is_regression,
    method_of,
    planned_steps,
    public_terms,
    state_of,
)
from fedlsg.training import Groups, together
from fedlsg.training.server_round import widest
from fedlsg.user_code.short_traceback import short_traceback, user_level

MUCH_MORE = 2.0
"""New steps with more than this multiple of the noise of earlier steps give a warning."""


class PrivateStep:
    """Private training steps of ``model`` on one data set: Poisson batch, clip, noise, ledger,
    optimizer.

    Arguments
        model            trained in place; a method with LoRA inserts its adapters, others may
                         freeze parameters
        loss             ``loss(outputs, targets)``, torch's in its usual form or one loss an
                         example (B,)
        num_examples     N, the size of the data set: public and fixed
        method           name of a recipe, or a recipe, whose settings are further keywords
                         (``rank=8``), or a Method; by default dense "dpsgd", or "lsg" where
                         settings of it are given
        sample_rate      q in (0, 1]: every example joins every batch with this probability; q N is
                         the mean batch
        steps            T: the noise for ``epsilon`` and all schedules are those of so many steps
        epochs           q T, where one of the two is not given; default 20
                         (``fedlsg.training.auto``)
        epsilon, delta   the privacy budget; ``noise_multiplier`` (noise deviation over
                         ``clip_norm``) fixes the noise, and an epsilon that is given as well stays
                         a budget
        groups           whose each row is, such as the patient's number: a column, an array or a
                         list. Epsilon then protects a person with all of its rows: batches draw
                         persons, q and delta are of persons, and each person's gradient is clipped
                         once. A row whose value is missing is a person of its own
        person_rows      at most so many rows of a person count in a step, drawn at random; 0: all.
                         ``person_gradient``: "mean" or "sum" of their gradients
        learning_rate    of SGD; ``momentum``, ``schedule`` and the other settings of the server are
                         keywords, too. By default ("auto") Adam at the rates of
                         ``fedlsg.training.auto``, which need no tuning; the average of the weights,
                         which is better than the last ones, is in ``evaluated()``
        optimizer        a torch optimizer over the model's parameters, or a function from the list
                         of parameters that are trained to one: it gets Eq. 3 of the noisy sum,
                         divided by q N, in ``.grad``, which stays there after the step; its
                         learning rate is its owner's to schedule. Or a name that the setting
                         ``optimizer`` takes, such as "adam" or "AdamW"
        ledger           path of an append-only file: one for each data set, for all runs on it.
                         Without a path the ledger is a temporary file that ends with this object,
                         so resuming elsewhere needs a path
        fresh_data       your word that the data are others than those behind the weights that
                         ``model`` starts from: by
                         default, weights that a private step or a run has trained, in this process
                         or in an earlier one of this user, are refused without its ledger
        example          (inputs, targets), two or more public rows, to check that the model does
                         not mix examples; in addition to made-up rows of these shapes and types, or
                         of those of the first two of the data
        probe            ``probe(count, generator)``: public inputs for probe carriers, or
                         (inputs, targets); it draws from the generator alone, and never reads
                         private data
        classifier       path of the head, whose last Linear stays dense; by default the model's
                         last Linear
        seed             the public seed of carriers, masks and adapters; batches and noise are
                         secret
        isolation        how passes run the model: "isolated", "rows" or "checked"
                         (``docs/privacy.md``); by default ("auto") library code is checked and your
                         own isolated. The property says which it is
        microbatch_size  rows of one pass; precision "bfloat16" runs forward under autocast
        reproducible     a test mode: batches and noise follow from ``seed``, and epsilon() is inf

    Guarantees. A step is on disk in the ledger before its batch is drawn, and stays charged if it
    fails later. A step that would pass ``epsilon`` is refused before. What the model becomes is
    private by that ledger alone: keys of noise are new in every step, and are kept nowhere. The
    divisor is q N, never the size of a batch; an empty batch is a step. Unit of privacy: one
    example, or with ``groups`` one person with all of its rows; add/remove.
    While this object exists, a gradient that ``loss.backward()`` adds to a parameter of its model
    is refused, and so is a model that was trained just before: no epsilon counts such training
    (``public_gradients``).
    Not covered: what the batch function or the user's own code releases, such as a training loss.
    Raises ValueError for settings that do not fit, UnsupportedLayerError (a ValueError) for a model
    without private per-example gradients, LedgerError for a damaged ledger, BudgetError where the
    ledger has spent the epsilon.
    """

    @short_traceback
    @alone()
    def __init__(
        self,
        model: nn.Module,
        loss: Callable[..., Any],
        *,
        num_examples: int,
        sample_rate: float | None = None,
        steps: int | None = None,
        epochs: float | None = None,
        method: str | Method | Callable[..., Method] = AUTO,
        epsilon: float | None = None,
        noise_multiplier: float | None = None,
        delta: float | None = None,
        learning_rate: float | str | None = None,
        optimizer: Optimizers | str | None = None,
        ledger: str | os.PathLike[str] | None = None,
        fresh_data: bool = False,
        groups: Any = None,
        person_rows: int = 0,
        person_gradient: PersonGradient = "mean",
        example: tuple[Inputs, Inputs] | None = None,
        probe: Draw | None = None,
        classifier: str | None = None,
        seed: int = 0,
        microbatch_size: int = 256,
        precision: Bits = "float32",
        isolation: Wanted = "auto",
        reproducible: bool = False,
        **settings: Unpack[StepSettings],
    ) -> None:
        if not isinstance(model, nn.Module):
            raise ValueError(
                f"expected a model, an nn.Module, got {type(model).__name__}: build it first"
            )
        check_initialized(model)
        check_no_gradient(model)
        rate, planned = planned_steps(sample_rate, steps, epochs)
        self.given = dict(settings)
        self.model, self._loss = model, per_example_loss(loss, model)
        self.method = method_of(
            method,
            {**settings},
            learning_rate,
            optimizer,
            model=model,
            steps=planned,
            regression=is_regression(self._loss),
            arguments=[*signature(PrivateStep).parameters],
        )
        if self.method.personal:
            raise ValueError(
                f"personal={self.method.personal!r} needs clients: one loop has one model, leave "
                "it out"
            )
        persons = persons_of(groups, num_examples, person_rows, person_gradient)
        self._spending = Spending(
            num_examples=num_examples if persons is None else persons.count,
            sample_rate=rate,
            steps=planned,
            epsilon=epsilon,
            noise_multiplier=noise_multiplier,
            delta=delta,
            unit=EXAMPLE if persons is None else unit_of_groups(groups),
        )
        check_spending(self.method, self._spending)
        local = LocalTraining(
            sample_rate=rate,
            expected_batch=rate * self._spending.num_examples,
            microbatch_size=microbatch_size,
            precision=Precision(precision=precision),
            isolation=self._first_level(isolation),
        )
        self._account = LoopAccount(
            ledger,
            num_examples=self._spending.num_examples,
            delta=delta,
            fresh_data=fresh_data,
            private=self.method.mechanism.private and not reproducible,
        )
        learn_weights()
        self._account.writer.check(model, SAME_LEDGER)
        check_start(model, self.method, example)
        self._state = state_of(
            model,
            self.method,
            Schedule(rounds=planned, sample_rate=rate),
            divisor=local.expected_batch,
            seed=seed,
            classifier=classifier,
            probe=probe,
            loss=self._loss,
            example=example,
            optimizer=optimizer,
        )
        self._rounds = Release(
            state=self._state,
            loss=self._loss,
            local=local,
            account=self._account,
            spending=self._spending,
            reproducible=reproducible,
            num_rows=num_examples,
            persons=persons,
        )
        self._account.writer.begin(trainable(model), MAX_NOTED_PARAMETERS)
        self._record = WeightsRecord(self._account.writer)
        weakref.finalize(self, self._record.end)
        self._rows: Stored | OneByOne | Together | None = None
        self._read: object = None
        self._rehearsals = Rehearsals(self._rounds, example, isolation)
        if example is not None:
            self._rehearsals.check()
        if not self._account.ledger.entries:
            # an epsilon that no noise reaches is refused at once; a resumed run has its noise
            # already
            _ = self._terms
        refuse_gradients(self, model)

    def __repr__(self) -> str:
        """Method, sigma, q, steps and epsilon so far, from the ledger."""
        spent, budget = self.epsilon(), self._spending.epsilon
        planned = "" if budget is None else f" of {budget:g}"
        at = "" if self.delta is None else f" at delta {self.delta:g}"
        return (
            f"PrivateStep(method={self.method.name!r}, sigma={self.noise_multiplier:.4g}, "
            f"q={self.sample_rate:.4g}, {self.steps_taken} of {self.steps} steps, "
            f"epsilon {spent:.4g}{planned}{at})"
        )

    @property
    def num_examples(self) -> int:
        """N: the number of rows, which is public; with ``groups``, ``num_persons`` is, and not
        this.
        """
        return self._rounds.num_rows

    @property
    def num_persons(self) -> int:
        """N_k: the number of persons, or of examples without ``groups``; public, too."""
        return self._spending.num_examples

    @property
    def ledger(self) -> Path | None:
        """The file that remembers what was spent; None where the ledger ends with this object."""
        return self._account.ledger.path if self._account.lasting else None

    @property
    def sample_rate(self) -> float:
        """q: every example joins every batch with this probability."""
        return self._spending.sample_rate

    def _first_level(self, wanted: Wanted) -> Isolation:
        """The level of isolation until the trial before the first step."""
        if wanted == "auto" and not self.method.mechanism.clips:
            return CHECKED
        return resolve(self.model, self._loss, wanted, lambda: "isolated")

    @property
    def isolation(self) -> Isolation:
        """The level at which passes run the model; before the first step ``isolated`` for own code
        of any kind.
        """
        return self._rounds.local.isolation

    @property
    def seed(self) -> int:
        """The public seed."""
        return self._state.seed

    @property
    def delta(self) -> float | None:
        """That of epsilon."""
        return self._spending.delta

    @property
    def steps(self) -> int:
        """T: the steps that were planned."""
        return self._spending.steps

    @property
    def steps_taken(self) -> int:
        """Finished steps, those before a resume included."""
        return self._state.round

    @property
    def noise_multiplier(self) -> float:
        """Noise deviation over ``clip_norm``, as given or calibrated; 0 under a mechanism without
        noise.
        """
        return self._terms.noise_multiplier

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The own optimizer, for schedulers. Raises AttributeError without one: the method
        schedules its own.
        """
        if self._state.scheduler is not None:
            raise AttributeError(
                "no own optimizer: give optimizer=..., or the setting schedule='cosine' or 'linear'"
            )
        return self._state.optimizer

    @short_traceback
    def batches(
        self,
        data: Data | DataLoader[Any],
        *,
        pad: Fill = None,
        pad_targets: Fill = None,
        lengths: Sequence[int] = (),
        mask: str | None = None,
        batched: bool = False,
        workers: int = 0,
        start: Start | None = None,
    ) -> Batch:
        """The batch function of a map-style torch Dataset of (inputs, targets), or of a pair of
        tensors or arrays.

        Inputs may be a dict of tensors by keyword; they come on the model's device. An item may be
        a dict that names its target label, labels, target or targets, as in Flower's templates. A
        batch is a Poisson sample, so of a DataLoader its Dataset is taken. fedlsg moves rows of
        tensors itself, which is the fastest. A row of a Dataset, or of a function of positions, is
        made alone, for one position (1,); its random draws are secret and its own. Rows may differ
        in length: those of one shape share a pass.
        pad          a number, or one by the name of an input: inputs grow at the end of their first
                     dimension to the next of the public ``lengths``, by default powers of two from
                     8 on. Fewer shapes make fewer passes
        pad_targets  the same for targets, such as -100
        mask         the name of an input that is added: 1 for what was there, 0 for padding
        batched      call a function of positions once for many: your word that it makes each row
                     from its own example. It is compared with rows alone before the first charge
        workers      processes that make rows of a Dataset or a function, as a DataLoader's
                     num_workers do: each row gets the key of its own draws, so rows are the same,
                     bit for bit, with any number of them
        start        how they start: "fork", the default on Linux, or "spawn"
        Raises ValueError for a data set without a length, or of another length than
        ``num_examples``, or with a row that comes more than once (Subset and ConcatDataset are
        looked through), for a DataLoader with a sampler or a collate_fn of its own; and, naming the
        row of a pair, for inputs that are not finite, targets that the loss cannot take, integers
        beyond a table.
        """
        padding = None
        if pad is not None or pad_targets is not None or lengths or mask is not None:
            padding = Padding(inputs=pad, targets=pad_targets, lengths=tuple(lengths), mask=mask)
        data = dataset_of(data, "batches") if isinstance(data, DataLoader) else data
        made = batches_of(
            data,
            num_examples=self.num_examples,
            device=self._rounds.device,
            dtype=widest(trainable(self.model).values()),
            padding=padding,
            batched=batched,
            workers=workers,
            start=start,
            check=partial(check_before_charge, self.model, self._loss),
        )
        self._account.spends.read(places_of(data))
        return made

    @short_traceback
    @alone()
    def step(self, batch: Callable[[Positions], Any], *, groups: Groups = together) -> None:
        """One private step: charge the ledger, draw the batch, clip, add noise, step the optimizer.

        ``batch``: what ``batches`` gives, or a function: int64 positions (1,) on the CPU ->
        (inputs, targets) with one row; it is called for one position at a time. ``groups``:
        positions that may share a pass, where examples have several padded shapes; rows of one
        shape are found without it. With DP-SNIP, the first step prunes before it, in a pass over
        all examples that is charged as well. Model and loss are checked and rehearsed before the
        charge: in the first step, and in each one before which they changed (a layer, a hook, a
        forward, a mode, an attribute: ``fedlsg.user_code.fingerprint``).
        Raises BudgetError if the step would pass epsilon, ValueError for what the check refuses and
        for trainable parameters that are not those of the start: nothing was charged or drawn.
        """
        self._account.writer.check(self.model, SAME_LEDGER)
        rows = self._rows = self._made_by(batch)
        self._rounds.batched = self.batched
        self._rehearsals.before(rows, groups, self._terms)
        if self._state.round == 0 and self._state.scheduler is not None:
            warn_of_short_steps(
                self.method,
                self._spending,
                self._terms.noise_multiplier,
                trainable(self.model).values(),
            )
        if batch is not self._read:
            self._account.spends.read(places_of(batch, self.num_examples))
            self._read = batch
        if isinstance(rows, OneByOne):
            groups = rows.groups if groups is together else rows.within(groups)
        rows.draw_from(self._rounds.stream("rows"))
        try:
            if self._state.awaits_pruning:
                self._rounds.run(guarded(rows), groups, self._terms)
            self._rounds.run(guarded(rows), groups, self._terms)
        finally:
            rows.draw_from(None)
            self._note()  # also what was interrupted has moved weights
            if self._state.scheduler is None:
                leave_gradients(self.model.parameters())
            self._record.draft()
        self._rehearsals.passed()
        self._record.now_and_then()

    def _note(self) -> None:
        """Record the present weights as trained on these data."""
        self._account.writer.note(dict(self.model.named_parameters()))

    def _made_by(self, batch: Any) -> Stored | OneByOne | Together:
        """The batch function of a user's own function; what ``batches`` gave stays as it is."""
        if isinstance(batch, Stored | OneByOne | Together):
            return batch
        if isinstance(self._rows, OneByOne) and self._rows.source is batch:
            return self._rows
        if not callable(batch):
            raise ValueError(
                f"expected what step.batches(data) gives, or a function of positions, got a "
                f"{type(batch).__name__}: write step.step(step.batches(data)) with the whole data "
                "set (inputs, targets) or a Dataset, of which each step draws a Poisson batch"
            )
        return of_function(batch, device=self._rounds.device, own_lengths=False)

    @property
    def batched(self) -> bool:
        """Whether the last step had its rows from a function of many positions, by the word
        ``batched=True``.
        """
        return isinstance(self._rows, Together)

    @staticmethod
    def public_gradients() -> AbstractContextManager[None]:
        """A block in which ``loss.backward()`` may train the model: your word that its rows are
        public.

        Elsewhere a gradient that autograd adds to a parameter of it is a ValueError, while this
        object exists: epsilon would not count the training.
        """
        return public_gradients()

    def watch(self, note: Watcher) -> None:
        """Call ``note(plan, rows, values)`` before the model moves: what leaves, of SECRET rows;
        pruning is a phase.
        """
        self._rounds.watchers.append(note)

    def other_changes(self, received: Mapping[str, Tensor]) -> list[str]:
        """Names of trained parameters that code outside of private steps has changed.

        Before the first step since they were ``received``, as in a message of a server; then
        between steps and after the last one. Weights that ``evaluated()`` puts back are no change.
        """
        return self._account.writer.changes(trainable(self.model), received)

    def epsilon(self, delta: float | None = None) -> float:
        """Epsilon spent, from the ledger alone: of all its entries, those of earlier runs on the
        same file included.

        At the ``delta`` of the run unless another is given. ``math.inf`` if an entry has no noise
        that counts.
        """
        return self._account.epsilon(self._spending.delta if delta is None else delta)

    @contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """Inside, the model is in eval mode, and has the moving average of its weights under the
        setting ``ema``. On exit it is as before.
        """
        self._account.writer.look(dict(self.model.named_parameters()))
        try:
            with self._state.evaluated() as model:
                self._note()
                self._record.add()
                yield model
        finally:
            if self._state.average is None:  # else what the block wrote is gone
                self._account.writer.look(dict(self.model.named_parameters()))
            self._note()
            self._record.draft()

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run needs next to ``model.state_dict()``: counters, optimizer, W_0, noise,
        ledger position.

        Plain values and tensors, nothing secret. To resume: make the model and this object as at
        the start, with the same ``ledger``, then load the model's state and this one.
        """
        self._record.write()
        server = self._state.state_dict()
        del server["model"]
        terms: ClientTerms | None = vars(self).get("_terms")
        noise = None if terms is None else [terms.noise_multiplier, terms.prune_noise_multiplier]
        return {
            "server": server,
            "ledger": self._account.state_dict(),
            "noise": noise,
            "terms": self._public_terms,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``. The model's own state is loaded by its owner.

        Raises ValueError for a state of other terms, LedgerError for a ledger without the entries
        that the state saw.
        """
        for name, value in self._public_terms.items():
            if state["terms"][name] != value:
                further = (
                    "; to train further, leave the state out: load the model alone into a new "
                    "step with the same ledger=, and epsilon= for both together"
                )
                raise ValueError(
                    f"the state was made with {name}={state['terms'][name]}, this object has "
                    f"{value}{further * (name in ('steps', 'sample_rate'))}"
                )
        self._account.load_state_dict(state["ledger"])
        self._state.load_state_dict({**state["server"], "model": self._state.public.parameters})
        if state["noise"] is not None:
            sigma, pruning = state["noise"]
            vars(self)["_terms"] = self._spending.terms(sigma, pruning)

    @cached_property
    def _terms(self) -> ClientTerms:
        parameters, carried = trainable(self.model), self._state.public.carried
        blocks = len(parameters) + len(carried) * (len(self.method.carrier.parts) - 1)
        spent = self._account.ledger.events()
        terms = terms_of(self.method, self._spending, blocks=blocks, spent=spent)
        before = max((event.noise_multiplier for event in spent), default=0.0)
        if 0 < MUCH_MORE * before < terms.noise_multiplier:
            warnings.warn(
                f"the ledger holds {sum(event.steps for event in spent)} steps at noise multiplier "
                f"{before:.3g}, and the rest of epsilon buys {self.steps} new steps at "
                f"{terms.noise_multiplier:.3g}: to go on with the old steps, call load_state_dict "
                "with their state; for new ones, give a larger epsilon, or fewer steps",
                RuntimeWarning,
                stacklevel=user_level(),
            )
        return terms

    @property
    def _public_terms(self) -> dict[str, Any]:
        return public_terms(self._spending, self._state, self.method)
