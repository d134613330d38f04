"""Reports say whom epsilon protects against, if not each payload is private on its own."""

import pytest

from simulations.report.facts import TRUST, epsilon_section, trust_words
from simulations.report.page import Text
from simulations.rundir.results import read_run
from tests.simulations.support.runs import run_local


@pytest.mark.parametrize(
    ("used", "said"),
    [
        (["client"], []),
        (["secure"], ["secure"]),
        (["aggregate", "aggregate"], ["aggregate"]),
        (["secure", "client", "aggregate"], ["client", "secure", "aggregate"]),
    ],
)
def test_whom_epsilon_protects_against(used, said):
    assert trust_words(used) == [TRUST[trust] for trust in said]


def test_a_report_of_a_secure_sum_says_it(tmp_path):
    run = run_local(tmp_path / "run", trust="secure", clients=4)
    texts = [part.words for part in epsilon_section([read_run(run.path)]).parts if isinstance(part, Text)]
    assert TRUST["secure"] in texts
