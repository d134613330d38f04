"""Privacy of a client: clip and noise, batches, and the ledger of the privacy that it has spent.

mechanism                        the clip, the noise, and the noise multiplier that is charged
clip_norms, clip                 norms of gradients, and their clipped sum
sampling                         Poisson batches and shuffled ones
ledger_entry, ledger_file        one charge, its line, and the file of one client
ledger, run_ledger, ledger_copy  the ledger of a client, of a simulated run, and a copy elsewhere
totals                           what the entries of a ledger add up to, for each reader
limits                           limits that the owner of a node sets
data_record                      what this process has spent on the same rows
trained_weights, weight_digest, known_weights
                                 weights that private runs have trained
"""

from fedlsg.privacy.clip import clipped_sum
from fedlsg.privacy.clip_norms import clip_factors, norms_of
from fedlsg.privacy.ledger import Charges, Ledger
from fedlsg.privacy.ledger_copy import extend, head_of, lines_since
from fedlsg.privacy.ledger_entry import GENESIS, SERVER, BudgetError, Entry, LedgerError
from fedlsg.privacy.ledger_file import check_extends, ledger_path, load, merge, read_entries
from fedlsg.privacy.mechanism import Mechanism, add_noise, rho
from fedlsg.privacy.run_ledger import RUN, RunLedger, verify_extends
from fedlsg.privacy.sampling import (
    BernoulliDraws,
    ShuffledBatches,
    check_sample_rate,
    permutation,
    poisson_batch,
)

__all__ = [
    "GENESIS",
    "RUN",
    "SERVER",
    "BernoulliDraws",
    "BudgetError",
    "Charges",
    "Entry",
    "Ledger",
    "LedgerError",
    "Mechanism",
    "RunLedger",
    "ShuffledBatches",
    "add_noise",
    "check_extends",
    "check_sample_rate",
    "clip_factors",
    "clipped_sum",
    "extend",
    "head_of",
    "ledger_path",
    "lines_since",
    "load",
    "merge",
    "norms_of",
    "permutation",
    "poisson_batch",
    "read_entries",
    "rho",
    "verify_extends",
]
