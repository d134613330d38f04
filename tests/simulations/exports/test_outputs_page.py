"""The numpy reader of docs/outputs.md, as it is printed there, on recorded runs; no fedlsg is imported by it."""

import json
import re
from typing import Any

import numpy as np
import pytest

import strategies
from fedlsg import user_code
from simulations.exports.payload import find, read_payload
from simulations.rundir.updates import read_frame, round_folder
from tests.fedlsg.support.own_methods import OWN_RECIPE
from tests.places import REPOSITORY
from tests.simulations.support.outside import outside
from tests.simulations.support.runs import run_local

PAGE = (REPOSITORY / "docs" / "outputs.md").read_text()
CASES: dict[str, dict[str, Any]] = {
    "lsg": {"method": "lsg"},
    "convolutions and weights": {"method": "lsg", "model": "conv", "rank": 2, "norms_clip_weight": 2.0},
    "masked": {"method": "rs", "sparsity": 0.5, "codec": "bfloat16"},
    "core": {"method": OWN_RECIPE, "model": "conv", "rank": 3, "norms_clip_weight": 2.0},
    "factors": {"method": "dp-powersgd", "rank": 2, "codec": "float16"},
}
SAVE = """
for folder in sys.argv[1:]:
    np.savez(folder + "/read.npz", **read(Path(folder), 1))
assert "torch" not in sys.modules
"""


def reader() -> str:
    """The program of the page."""
    (found,) = re.findall(r"```python\n(import json.*?)```", PAGE, re.DOTALL)
    return found


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory):
    """By case: the round's folder, with read.npz as the page's program wrote it."""
    folder = tmp_path_factory.mktemp("page")
    user_code.permit(*(str(value) for case in CASES.values() for value in case.values()))
    runs = {case: run_local(folder / case, record_updates=True, **CASES[case]) for case in CASES}
    outside(reader() + SAVE, *(round_folder(run.path, 2) for run in runs.values()))
    yield runs
    strategies.forget()


@pytest.mark.parametrize("case", CASES)
def test_the_page_s_reader_agrees_with_the_command(case, read, own_code):
    run = read[case]
    ours = read_payload(run.directory, 2, 1, find(run.directory, 2, 1))
    with np.load(round_folder(run.path, 2) / "read.npz") as theirs:
        assert {f"dW/{name}" for name in theirs} == {name for name in ours if name.startswith("dW/")}
        for name, dW in theirs.items():
            assert dW.shape == ours[f"dW/{name}"].shape
            np.testing.assert_allclose(dW, ours[f"dW/{name}"], atol=1e-5)
            assert abs(dW).max() > 1e-2, "negative control: zeros would agree"


def test_every_field_of_the_files_is_on_the_page(small):
    about = read_frame(round_folder(small.path, 1))[1]
    names = {*about, *about["blocks"][0], *about["parameters"][0], *about["clients"]["0"]}
    names |= json.loads((small.path / "config.json").read_text()).keys()
    assert [name for name in names if f"`{name}`" not in PAGE] == []
