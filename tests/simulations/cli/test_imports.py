"""What each kind of process imports before it has anything to do: seconds of every start depend on
it.
"""

import json
import os
import subprocess
import sys

import pytest

from tests.places import REPOSITORY

HEAVY = (
    "torch",
    "flwr",
    "ray",
    "numpy",
    "scipy",
    "dp_accounting",
    "prv_accountant",
    "sklearn",
    "pandas",
    "matplotlib",
    "tensorboard",
    "jinja2",
    "datasets",
    "transformers",
    "pyarrow",
    "constriction",
    "cryptography",
    "torch._dynamo",
    "sympy",
    "sqlalchemy",
    "fastapi",
    "safetensors",
)
ACCOUNTANTS = {"scipy", "prv_accountant"}
ALWAYS_LATER = {
    "sklearn",
    "pandas",
    "matplotlib",
    "tensorboard",
    "jinja2",
    "datasets",
    "transformers",
    "pyarrow",
    "constriction",
    "torch._dynamo",
    "sympy",
    "ray",
    "safetensors",
    "dp_accounting",
    *ACCOUNTANTS,
}


PROBE = """
import json, sys
heavy, codes, found = *json.loads(sys.argv[1]), []
for code in codes:
    exec(code, {"__name__": "probe"})
    found.append([name for name in heavy if name in sys.modules])
print(json.dumps(found))
"""


def imported(*codes: str) -> list[set[str]]:
    """The heavy modules that a fresh process has after running each of ``codes``, one after
    another.
    """
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-P", "-c", PROBE, json.dumps([HEAVY, codes])]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [set(found) for found in json.loads(done.stdout.splitlines()[-1])]


def test_before_a_command_runs_nothing_heavy_is_imported():
    codes = (
        "import fedlsg",
        "import fedlsg.simulations.cli.command_line",
        "import fedlsg.simulations.engines.cluster",
        "from fedlsg.simulations.engines import ahead, engine_of; ahead('local'); engine_of('nowhere')",
        "from fedlsg.simulations.settings import with_preset, settings; with_preset.resolve({})",
        "import sys; sys.argv = ['fedlsg', '--help']\nfrom fedlsg.simulations.cli.command_line import app\n"
        "app(standalone_mode=False)",
    )
    *nothing, planted = imported(*codes, "import scipy.special")
    assert dict(zip(codes, nothing, strict=True)) == {code: set() for code in codes}
    assert planted >= {"scipy", "numpy"}, "negative control"


APPS = (
    "client.client_app",
    "client.train",
    "run",
    "server.server_app",
    "engines.local",
    "engines.ray",
)
FIRST_ROUND = """
import torch
from fedlsg.simulations import workloads
workload = workloads.load("digits")
from fedlsg.privacy.ledger import Entry, Ledger
def entry(steps):
    return Entry(client=0, round=1, attempt=0, steps=steps, sample_rate=0.5, noise_multiplier=3.0, clip_norm=1.0,
                 num_examples=100, mechanism="dp", reproducible=False)
assert Ledger({path!r}, client=0).would_exceed(entry({steps}), 8.0, 1e-5) is {exceeds}
"""
STEP = """
from fedlsg.gradients.isolation import per_example_gradients
from tests.fedlsg.support.step_oracle import problem
p = problem()
per_example_gradients(p.model, p.loss_fn, p.inputs, p.targets, p.frame)
"""
HANDED = (
    "import torch; x = torch.ones(2, requires_grad=True); torch.autograd.grad(2 * x, x, "
    "torch.ones(2))"
)


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What one process has imported after each part of a run, in the order of these parts."""
    path = str(tmp_path_factory.mktemp("probed") / "ledger")
    parts = {
        "a new worker": "import fedlsg.simulations.engines.ray_worker",
        **{app: f"import fedlsg.simulations.{app}" for app in APPS},
        "far from the budget": FIRST_ROUND.format(path=path, steps=1, exceeds=False),
        "a private step": STEP,
        "a gradient handed to torch": HANDED,
        "beyond the budget": FIRST_ROUND.format(path=path, steps=400, exceeds=True),
    }
    return dict(zip(parts, imported(*parts.values()), strict=True))


@pytest.mark.slow
def test_the_driver_describes_a_worker_without_torch(life):
    """Ray starts while torch is imported."""
    assert not life["a new worker"] & {"torch", *ALWAYS_LATER}


@pytest.mark.thinned(1)
@pytest.mark.parametrize("app", APPS)
def test_apps_leave_to_later_what_they_may_not_need(app, life):
    assert "torch" in life[app]  # negative control: what is imported shows
    assert not life[app] & ALWAYS_LATER


def test_accountants_are_imported_by_a_client_beyond_its_budget_only(life):
    assert not life["far from the budget"] & ALWAYS_LATER
    assert life["beyond the budget"] >= ACCOUNTANTS


def test_a_private_step_needs_no_sympy(life):
    """Half a second of each worker's start: torch imports it to compare the shapes of gradients
    that it is handed.
    """
    assert "sympy" not in life["a private step"]
    assert "sympy" in life["a gradient handed to torch"], (
        "where torch no longer does, the detour can go"
    )
