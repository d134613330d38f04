"""The parts of a private step in a user's own loop: data, noise, account, optimizer (``strategies.private_step``)."""

from fedlsg.own_loop.account import Account, Spending, check_spending, check_untrained, note_trained, terms_of
from fedlsg.own_loop.alone import check_batches, same_function
from fedlsg.own_loop.examples import (
    Independence,
    check_example,
    check_families,
    check_start,
    check_synthetic,
    first_rows,
    own_source,
    synthetic,
)
from fedlsg.own_loop.release import Rehearsals, Release, Watcher
from fedlsg.own_loop.user_inputs import Optimizers, batches_of, guarded, make_own

__all__ = [
    "Account", "Independence", "Optimizers", "Rehearsals", "Release", "Spending", "Watcher", "batches_of",
    "check_batches", "check_example", "check_families", "check_spending", "check_start", "check_synthetic",
    "check_untrained", "first_rows", "guarded", "make_own", "note_trained", "own_source", "same_function", "synthetic",
    "terms_of",
]  # fmt: skip
