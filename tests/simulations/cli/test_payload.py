"""``fedlsg payload`` and the numpy reader of docs/outputs.md: arrays of one payload, on the scale
of its page.
"""

import json
import re
import shutil
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fedlsg import strategies, user_code
from fedlsg.gradients import trainable
from fedlsg.simulations.cli.payload import find, payload_command, read_payload
from fedlsg.simulations.storage.atomic_files import DamagedError
from fedlsg.simulations.storage.updates import payload_files, read_frame, round_folder
from tests.fedlsg.support.own_methods import OWN_RECIPE
from tests.places import REPOSITORY
from tests.simulations.support.outside import outside
from tests.simulations.support.runs import Run, run_local

QUIET = {"noise_multiplier": None}
CASES: dict[str, dict[str, Any]] = {
    "lsg": {"method": "lsg"},
    "convolutions": {"method": "rgp-random", "model": "conv", "rank": 2},
    "power iteration of W - W_0": {
        "method": "rgp",
        "rank": 2,
        "clients": 3,
        "clients_per_round": 2,
    },
    "clip weights": {"method": "lsg", "norms_clip_weight": 2.0, "classifier_clip_weight": 0.5},
    "local steps": {"method": "lsg", "local_steps": 2},
    "probe": {"method": "probe", "sparsity": 0.3, "probes": 30, "codec": "noise-floor"},
    "lsg-probe": {"method": "lsg-probe", "model": "conv", "rank": 2, "probes": 30},
    "lora": {"method": "lora", "rank": 2},
    "fed-sb": {"method": "fed-sb", "rank": 2},
    "gep, probed": {"method": "gep", "rank": 2, "probes": 30},
    "lsg-lora": {"method": "lsg-lora", "model": "conv", "rank": 2},
    "random": {"method": "rs", "sparsity": 0.5},
    "ranked": {"method": "rs", "ranking": "gradients", "sparsity": 0.5},
    "pruned by data": {
        "method": "dp-ssgd",
        "prune": "dp-snip",
        "epsilon": 8.0,
        "noise_multiplier": None,
    },
    "factors": {"method": "dp-powersgd", "rank": 2, "norms_clip_weight": 2.0},
    "factors, error feedback": {"method": "powersgd", "rank": 2, **QUIET},
    "chosen": {"method": "topk", **QUIET},
    "explicit": {"method": "lsg", "indices": "explicit"},
    "bfloat16": {"method": "lsg", "codec": "bfloat16"},
    "noise floor": {"method": "lsg", "codec": "noise-floor", "indices": "explicit"},
    "int8": {"method": "dpsgd", "codec": "int8"},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Recorded runs by case, each made once."""
    folder, made = tmp_path_factory.mktemp("recorded"), {}

    def of(case: str) -> Run:
        if case not in made:
            made[case] = run_local(folder / case, record_updates=True, **CASES[case])
        return made[case]

    return of


def arrays_of(run: Run, round: int, client: int) -> dict[str, np.ndarray]:
    return read_payload(run.directory, round, client, find(run.directory, round, client))


@pytest.mark.thinned(4)
@pytest.mark.parametrize("case", CASES)
def test_the_clients_gradients_make_the_server_s_step(case, runs):
    """W_2 = W_1 - lr sum(dW) / divisor: round, scale and order of every parameter, from public
    files alone.
    """
    run = runs(case)
    before, after = (np.load(round_folder(run.path, round) / "weights.npy") for round in (1, 2))
    about = read_frame(round_folder(run.path, 1))[1]
    clients = payload_files(run.path)[1]
    seen = [arrays_of(run, 1, client) for client in clients]
    assert all(one["divisor"] > 0 for one in seen)
    model = run.plan.initial.model()
    rates = run.plan.initial.server().optimizer.param_groups
    rate_of = {id(p): group["lr"] for group in rates for p in group["params"]}
    assert len(set(rate_of.values())) == 1
    total = np.concatenate(
        [sum(one[f"dW/{name}"].astype(float) for one in seen).ravel() for name in trainable(model)]
    )
    step = -next(iter(rate_of.values())) * total / about["divisor"]
    np.testing.assert_allclose(after - before, step, atol=1e-6 + 1e-5 * abs(step).max())
    assert abs(step).max() > 1e-4, "negative control: a step of nothing would agree with anything"


def test_the_command_writes_what_numpy_reads(small, tmp_path):
    payload_command(str(small.path), 2, 1, str(tmp_path / "x.npz"), Console(quiet=True))
    expected = arrays_of(small, 2, 1)
    with np.load(tmp_path / "x.npz") as found:
        assert (
            set(found)
            == set(expected)
            >= {"indices", "values", "dW/hidden.weight", "dW/classifier.bias"}
        )
        assert all(np.array_equal(found[name], array) for name, array in expected.items())
        assert (found["indices"].dtype, found["values"].dtype) == (np.int64, np.float32)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("frame.json", DamagedError),
        ("frame.npz", DamagedError),
        ("client-000000.bin", ValueError),
    ],
)
def test_a_damaged_file_is_named(name, error, small, tmp_path):
    shutil.copytree(small.path, tmp_path / "run")
    path = round_folder(tmp_path / "run", 1) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(error, match=re.escape(name)):
        arrays_of(Run(tmp_path / "run"), 1, 0)


PAGE = (REPOSITORY / "docs" / "outputs.md").read_text()
PAGE_RUNS: dict[str, dict[str, Any]] = {
    "lsg": {"method": "lsg"},
    "convolutions and weights": {
        "method": "lsg",
        "model": "conv",
        "rank": 2,
        "norms_clip_weight": 2.0,
    },
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
    user_code.permit(*(str(value) for case in PAGE_RUNS.values() for value in case.values()))
    runs = {
        case: run_local(folder / case, record_updates=True, **PAGE_RUNS[case]) for case in PAGE_RUNS
    }
    outside(reader() + SAVE, *(round_folder(run.path, 2) for run in runs.values()))
    yield runs
    strategies.forget()


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", PAGE_RUNS)
def test_the_page_s_reader_agrees_with_the_command(case, read, own_code):
    run = read[case]
    ours = read_payload(run.directory, 2, 1, find(run.directory, 2, 1))
    with np.load(round_folder(run.path, 2) / "read.npz") as theirs:
        assert {f"dW/{name}" for name in theirs} == {
            name for name in ours if name.startswith("dW/")
        }
        for name, dW in theirs.items():
            assert dW.shape == ours[f"dW/{name}"].shape
            np.testing.assert_allclose(dW, ours[f"dW/{name}"], atol=1e-5)
            assert abs(dW).max() > 1e-2, "negative control: zeros would agree"


def test_every_field_of_the_files_is_on_the_page(small):
    about = read_frame(round_folder(small.path, 1))[1]
    names = {*about, *about["blocks"][0], *about["parameters"][0], *about["clients"]["0"]}
    names |= json.loads((small.path / "config.json").read_text()).keys()
    assert [name for name in names if f"`{name}`" not in PAGE] == []
