"""``fedlsg partition``: numbers by hand, the table of few and of many clients, the files, and what
it refuses.
"""

import numpy as np
import pytest

from fedlsg.config.partitions import SCHEMES
from fedlsg.simulations.planning.advice.balance import measure
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.settings.settings import from_mapping


@pytest.mark.parametrize("scheme", SCHEMES)
def test_measured_against_the_labels_themselves(scheme):
    """Oracle: a loop over every example of the prepared run. Negative control: another seed deals
    otherwise.
    """
    base = prepare(from_mapping({"workload": "digits", "clients": 7, "partition": scheme}))
    balance = measure(base)
    slow = np.zeros((7, 10), dtype=np.int64)
    for client, part in enumerate(base.parts):
        for row in part.tolist():
            slow[client, int(base.workload.train.labels[row])] += 1
    assert np.array_equal(balance.counts, slow)
    assert balance.counts.sum() == 1437
    assert balance.sizes.tolist() == base.clients.sizes
    other = measure(
        prepare(from_mapping({"workload": "digits", "clients": 7, "partition": scheme, "seed": 1}))
    )
    assert not np.array_equal(other.counts, slow)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--clients", "1438"), "expected clients in 1..1437"),
        (("--clients", "0"), "expected 1 <= clients=0 <="),
        (
            ("--clients", "900", "-c", "partition=dirichlet", "-c", "alpha=0.01"),
            "raise alpha or lower clients",
        ),
        (("-c", "clints=3"), "unknown setting 'clints'; did you mean 'clients'?"),
        (("-c", "augment=flip-crop"), "augment=flip-crop needs images"),
    ],
)
def test_what_cannot_be_partitioned_is_one_line(fedlsg, tmp_path, options, message):
    status, _, err = fedlsg("partition", "digits", *options, "--out", "here")
    assert status == 1
    assert message in err
    assert len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
