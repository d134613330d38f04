"""What each kind of process imports before it has anything to do: seconds of every start depend on it."""

import json
import os
import subprocess
import sys

import pytest

from tests.places import REPOSITORY

HEAVY = (
    "torch", "flwr", "ray", "numpy", "scipy", "dp_accounting", "prv_accountant", "sklearn", "pandas", "matplotlib",
    "tensorboard", "jinja2", "datasets", "transformers", "pyarrow", "constriction", "cryptography", "torch._dynamo",
    "sympy", "sqlalchemy", "fastapi",
)  # fmt: skip
ACCOUNTANTS = {"scipy", "dp_accounting", "prv_accountant"}
ALWAYS_LATER = {"sklearn", "pandas", "matplotlib", "tensorboard", "jinja2", "datasets", "transformers", "pyarrow",
                "constriction", "torch._dynamo", "sympy", "ray", *ACCOUNTANTS}  # fmt: skip


def imported(code: str) -> set[str]:
    """The heavy modules that a fresh process has after running ``code``."""
    code += f"\nimport json, sys; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import fedlsg",
        "import simulations.cli.app",
        "import simulations.engines.runtime.superlink",
        "from simulations.engines import ahead, engine_of; ahead('local'); engine_of('nowhere')",
        "from simulations.settings import published, settings; settings.from_mapping(published.resolve({}))",
        "import sys; sys.argv = ['fedlsg', '--help']\nfrom simulations.cli.app import app\napp(standalone_mode=False)",
    ],
)
def test_before_a_command_runs_nothing_heavy_is_imported(code):
    assert imported(code) == set()


def test_flowers_simulation_process_loads_the_client_without_torch():
    """Ray starts once the ClientApp is loaded."""
    assert not imported("import simulations.engines.runtime.deferred_client") & {"torch", *ALWAYS_LATER}


@pytest.mark.parametrize(
    "module", ["client_app", "client", "commands", "server_app", "engines.local", "engines.flower"]
)
def test_apps_leave_to_later_what_they_may_not_need(module):
    found = imported(f"import simulations.{module}")
    assert "torch" in found  # negative control: what is imported shows
    assert not found & ALWAYS_LATER


def test_a_planted_import_is_found():
    assert imported("import simulations.cli.app, scipy.special") >= {"scipy", "numpy"}


FIRST_ROUND = """
import torch
from simulations import workloads
workload = workloads.load("digits")
from fedlsg.privacy.ledger import Entry, Ledger
def entry(steps):
    return Entry(client=0, round=1, attempt=0, steps=steps, sample_rate=0.5, noise_multiplier=3.0, clip_norm=1.0,
                 num_examples=100, mechanism="dp", reproducible=False)
assert Ledger({path!r}, client=0).would_exceed(entry({steps}), 8.0, 1e-5) is {exceeds}
"""


def test_a_client_far_from_its_budget_needs_no_accountant(tmp_path):
    code = FIRST_ROUND.format(path=str(tmp_path / "ledger"), steps=1, exceeds=False)
    assert not imported(code) & ALWAYS_LATER


def test_a_client_beyond_its_budget_asks_both(tmp_path):
    code = FIRST_ROUND.format(path=str(tmp_path / "ledger"), steps=400, exceeds=True)
    assert imported(code) >= ACCOUNTANTS


def test_a_private_step_needs_no_sympy():
    """Half a second of each actor's start: torch imports it to compare the shapes of gradients that it is handed."""
    step = (
        "from fedlsg.gradients.per_example import per_example_gradients\n"
        "from tests.fedlsg.support.step_oracle import problem\n"
        "p = problem()\n"
        "per_example_gradients(p.model, p.loss_fn, p.inputs, p.targets, p.frame)"
    )
    assert "sympy" not in imported(step)
    handed = "import torch; x = torch.ones(2, requires_grad=True); torch.autograd.grad(2 * x, x, torch.ones(2))"
    assert "sympy" in imported(handed), "negative control; where torch no longer does, the detour can go"
