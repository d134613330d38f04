"""A client's part in a secure sum. Its secrets stay in the state of its own Flower Context.

The privacy claim rests on this order: every check that may refuse, the charge to the ledger,
clipping of the batch, noise on the grid, masking of the sum, writing of the state. Only then do
masked values leave. A stage that is asked for again gets the same answer; a later attempt gets
fresh noise and is charged again. A client makes secrets once for an attempt: one that is over does
not begin again.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor

from fedlsg.config.selection import selection_of
from fedlsg.randomness import SecretStream
from fedlsg.secure_sum import Client, SecureSumError, Terms, reproducible_root, secret_root
from fedlsg.secure_sum.discrete import Release
from fedlsg.simulations.client.node.refusals import SecureSumRefusedError
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.stages import (
    AGREE,
    KEYS,
    MASKED,
    SHARES,
    UNMASK,
    Stage,
    read_stage,
)
from fedlsg.training.client_round import AddNoise

RECORD = "secure sum"
"""The record in a client's state with the client of the protocol."""
Train = Callable[[AddNoise], Tensor]
"""Charges the ledger and trains; calls its argument with (clipped sum, mechanism, random stream),
and returns the integers with noise that this makes.
"""


def answer_stage(base: Base, partition: int, content: RecordDict, state: RecordDict) -> bytes:
    """The answer of a client of a run to a stage without values. Raises as ``answer``."""
    stage = asked_stage(base, content)
    s = base.settings

    def root() -> bytes:
        labels = (*base.stream, "secure sum", partition, stage.round, stage.attempt)
        return reproducible_root(s.seed, *labels) if s.reproducible else secret_root()

    return answer(stage, lambda: _terms(base, stage, partition), partition, state, root)


def masked_values(
    base: Base,
    plan: RoundPlan,
    partition: int,
    content: RecordDict,
    state: RecordDict,
    train: Train,
) -> bytes:
    """The masked values of a client of a run. Raises as ``answer``, before anything is charged."""
    stage = asked_stage(base, content)
    assert plan.release is not None
    return masked(
        stage,
        partial(_terms, base, stage, partition),
        partition,
        state,
        plan.release,
        round=plan.round,
        seed=base.settings.seed,
        train=train,
    )


def answer(
    stage: Stage,
    terms: Callable[[], Terms],
    number: int,
    state: RecordDict,
    make_root: Callable[[], bytes],
) -> bytes:
    """The answer to a stage without values: keys, shares, tags, or shares for the survivors.

    The stage with values, MASKED, is for ``masked``.
    terms: makes the terms of the attempt, or raises SecureSumError.
    number: of the client.
    make_root: makes the secret from which the client's keys follow.

    Raises SecureSumRefusedError for invalid terms, and for a stage that the protocol forbids.
    """
    with refusing(stage):
        if stage.name == KEYS:
            client = begin(terms(), number, state, make_root)
            message = client.keys()
        else:
            client = restore(terms(), number, state)
            answers = {SHARES: client.shares, AGREE: client.agree, UNMASK: client.unmask}
            message = answers[stage.name](stage.message)
    store(client, state)
    return message


def masked(
    stage: Stage,
    terms: Callable[[], Terms],
    number: int,
    state: RecordDict,
    release: Release,
    *,
    round: int,
    seed: int,
    train: Train,
) -> bytes:
    """The masked values of a round: integers of the noisy sum, as ``train`` returns them.

    An attempt that was answered gets the same answer, and nothing is charged. Raises
    SecureSumRefusedError before anything is charged.
    """
    with refusing(stage):
        if (stage.name, stage.round) != (MASKED, round):
            raise SecureSumError(
                f"expected stage {MASKED!r} of round {round}, got {stage.name!r} of {stage.round}"
            )
        if (stage.length, stage.bits) != (release.values, release.grid.bits):
            raise SecureSumError(
                f"expected {release.values} values of {release.grid.bits} bits, the server says "
                f"{stage.length} of {stage.bits}"
            )
        check_noise(stage, release)
        client = restore(terms(), number, state)
        client.accept(stage.message)
        if client.stage != MASKED:  # it returns its stored answer, and ignores the values
            return client.masked(np.zeros(stage.length, dtype=np.int64))

    def to_noisy_integers(total: Tensor, mechanism: object, stream: SecretStream) -> Tensor:
        return release.encode(total, stream, seed=seed, round=round)

    message = client.masked(train(to_noisy_integers).numpy())
    store(client, state)
    return message


@contextmanager
def refusing(stage: Stage) -> Iterator[None]:
    """Turn a SecureSumError of the block into a SecureSumRefusedError."""
    try:
        yield
    except SecureSumError as error:
        raise SecureSumRefusedError(f"secure sum, stage {stage.name}: {error}") from None


def check_noise(stage: Stage, release: Release) -> None:
    """Raise SecureSumError if the clients agreed on another share of the noise than this round's.

    The last digits may differ between machines; 1e-6 is far above that rounding.
    """
    if not math.isclose(stage.noise, release.noise_std(1), rel_tol=1e-6):
        raise SecureSumError(
            f"expected noise of deviation {release.noise_std(1):g} from each client, the server "
            f"says {stage.noise:g}"
        )


def asked_stage(base: Base, content: RecordDict) -> Stage:
    """The stage of a message. Raises SecureSumRefusedError without a stage or secure sums."""
    if base.sums is None:
        raise SecureSumRefusedError(
            f"secure sum: this run has trust={base.settings.trust}, and no secure sum"
        )
    return stage_in(content)


def stage_in(content: RecordDict) -> Stage:
    """The stage of a message. Raises SecureSumRefusedError for a record that is no stage."""
    try:
        return read_stage(content)
    except ValueError as error:
        raise SecureSumRefusedError(f"secure sum: {error}") from None


def _terms(base: Base, stage: Stage, partition: int) -> Terms:
    """The terms of an attempt.

    Raises SecureSumError for other clients than the public schedule selects, for a client that it
    does not select, and for terms that no graph fits.
    """
    sums, s = base.sums, base.settings
    assert sums is not None
    rule = selection_of(s.selection, secret=base.unit.at_server)
    selected = rule.select(s.clients, s.clients_per_round, round=stage.round, seed=s.seed)
    if stage.clients != tuple(sorted(selected)):
        raise SecureSumError(
            f"expected the clients that round {stage.round} selects, got {list(stage.clients)}"
        )
    if partition not in stage.clients:
        raise SecureSumError(f"round {stage.round} does not select this client, number {partition}")
    try:
        return stage.terms(sums)
    except ValueError as error:
        raise SecureSumError(str(error)) from None


def begin(terms: Terms, number: int, state: RecordDict, make_root: Callable[[], bytes]) -> Client:
    """The client of an attempt, with new secrets unless the attempt has begun.

    Secrets of an earlier attempt are forgotten. Raises SecureSumError for an attempt that is not
    later than the last one of its run: it may have been answered with other keys.
    """
    record = state.config_records.get(RECORD, ConfigRecord())
    if record.get("terms") == terms.digest:
        return restore(terms, number, state)
    stored = record.get(_last_attempt_key(terms))
    last = tuple(int(value) for value in stored) if isinstance(stored, list) else ()
    if (terms.round, terms.attempt) <= last:
        raise SecureSumError(
            f"expected a later attempt than the last one of this run, number {last[1]} of round "
            f"{last[0]}, got number {terms.attempt} of round {terms.round}"
        )
    return Client(terms, number, make_root())


def restore(terms: Terms, number: int, state: RecordDict) -> Client:
    """The client of an attempt that has begun. Raises SecureSumError for another one."""
    record = state.config_records.get(RECORD)
    if record is None or record["terms"] != terms.digest:
        raise SecureSumError(
            "this client has not announced keys for this attempt, or has restarted since"
        )
    stored = record["state"]
    assert isinstance(stored, bytes)
    return Client.restore(terms, number, stored)


def store(client: Client, state: RecordDict) -> None:
    """Keep the client, and note that its attempt is the last one of its run."""
    terms = client.terms
    record = state.config_records.get(RECORD, ConfigRecord())
    state[RECORD] = ConfigRecord(
        {
            **record,  # with the last attempts of other runs
            "terms": terms.digest,
            "state": client.export(),
            _last_attempt_key(terms): [terms.round, terms.attempt],
        }
    )


def _last_attempt_key(terms: Terms) -> str:
    """The key of a run's last attempt, [round, number], in the record."""
    return f"last of run {terms.run.hex()}"
