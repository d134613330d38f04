"""Before anything is written, a source of probes is drawn from: what the model does not take is refused by name."""

import pytest
import torch

from fedlsg import user_code
from simulations.plan.plan import make_plan
from simulations.settings.settings import from_mapping
from tests.simulations.support.runs import SMALL

SOURCES = """
import torch

def good(count, generator):
    return torch.randn(count, 1, 8, 8, generator=generator)

def other_form(count, generator):
    return torch.randn(count, 3, 9, generator=generator)

def unseeded(count, generator):
    return torch.randn(count, 1, 8, 8)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "other_form",
            r"source=own_source.py:other_form gives inputs .*\(3, 9\).*and the model fails on them .*\(1, 8, 8\)",
        ),
        ("unseeded", "source=own_source.py:unseeded gives other inputs when it is called again"),
        ("good", None),
    ],
)
def test_a_function_is_tried_when_the_run_is_planned(name, words, tmp_path):
    file = tmp_path / "own_source.py"
    file.write_text(SOURCES)
    user_code.permit(f"{file}:{name}")
    settings = from_mapping({**SMALL, "workload": "digits", "method": "probe", "source": f"{file}:{name}"})
    if words is None:
        assert torch.equal(*(make_plan(settings).probe_source.draw(2, torch.Generator()) for _ in range(2)))
        return
    with pytest.raises(ValueError, match=words):
        make_plan(settings)
