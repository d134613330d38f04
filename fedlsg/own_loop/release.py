"""One round of a federation of one: charge the ledger, draw the batch, clip, add noise, update the model."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlsg.carriers.powersgd import decode, encode
from fedlsg.gradients import LossFunction
from fedlsg.method import Batch, LocalTraining, client_step
from fedlsg.own_loop.account import CLIENT, Account
from fedlsg.own_loop.noise import Spending
from fedlsg.randomness import (
    SecretStream,
    own_draws,
    public_generator,
    reproducible_stream,
    secret_stream,
    seed_draws,
)
from fedlsg.state import ClientTerms, Phase, RoundPlan, ServerState
from fedlsg.training import Groups


@dataclass(frozen=True, kw_only=True, eq=False)
class Release:
    """What every round reads. ``reproducible``: batches and noise follow from the public seed, and nothing is private.

    No secret is kept here: the streams of batches and noise are new in every round.
    """

    state: ServerState
    loss: LossFunction
    local: LocalTraining
    account: Account
    spending: Spending
    reproducible: bool

    def run(self, batch: Batch, groups: Groups, terms: ClientTerms) -> None:
        """The next round of the state: training, or the pruning before it.

        Raises BudgetError or LedgerError before a batch is drawn. An error after that leaves the round charged.
        """
        state, s = self.state, self.spending
        common = state.plan(self.local)
        plan = common.for_client(terms.of(common.phase))
        entry = self.account.entry(plan, s.num_examples, reproducible=self.reproducible)
        with self.draws():
            # Dropout draws from torch's own generators, by place in the batch: as in a client, these draws are secret.
            known = public_generator(state.seed, "dropout", CLIENT, plan.round).initial_seed()
            seed_draws(known if self.reproducible else secrets.randbits(63), self.device.type)
            values = client_step(
                state.model,
                batch,
                self.loss,
                frame=plan.frame,
                mechanism=plan.mechanism,
                local=plan.local,
                num_examples=s.num_examples,
                sampler=self._stream("sampler", plan.round),
                noise=self._stream("noise", plan.round),
                charge=lambda: self.account.charge(entry, s.budget),
                groups=groups,
                scale=plan.scale(state.public.parameters),
            )
        self._apply(values, plan)

    def check_budget(self, terms: ClientTerms) -> None:
        """Raise BudgetError if the next round would pass the budget."""
        common = self.state.plan(self.local)
        plan = common.for_client(terms.of(common.phase))
        entry = self.account.entry(plan, self.spending.num_examples, reproducible=self.reproducible)
        self.account.check(entry, self.spending.budget)

    def _apply(self, values: Tensor, plan: RoundPlan) -> None:
        if plan.phase is Phase.PRUNING:
            self.state.prune(plan.frame, [values], num_examples=self.spending.num_examples)
            return
        received = decode(encode(values, plan.frame), plan.frame)  # the rank-r product under dp-powersgd
        self.state.finish_round(plan.frame, [received], noise_std=plan.noise_std)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.state.model.parameters()).device

    @contextmanager
    def draws(self) -> Iterator[None]:
        """Inside, torch's own generators may be seeded and drawn from: those outside stay as they were."""
        cuda = self.device.type == "cuda"
        with torch.cuda.device(self.device) if cuda else nullcontext(), own_draws("cuda" if cuda else "cpu"):
            yield

    def _stream(self, purpose: str, round: int) -> SecretStream:
        seed = self.state.seed
        return reproducible_stream(seed, purpose, CLIENT, round) if self.reproducible else secret_stream()
