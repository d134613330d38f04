"""model.safetensors and config.json of a run: read by plain torch, equal to the model that was
evaluated.
"""

import pytest
import torch
from torch import Tensor

from fedlsg.simulations.server.evaluate import evaluate
from fedlsg.simulations.storage.updates import read_model
from tests.simulations.support.outside import outside
from tests.simulations.support.runs import Run, run_local

CASES = {
    "mlp": {"method": "lsg"},
    "average": {"method": "dpsgd", "ema": 0.9, "rounds": 3},
    "conv": {"method": "sparse-dpsgd", "model": "conv"},
    "lora": {"method": "lora", "model": "conv", "rank": 2, "lora_alpha": 6.0, "learning_rate": 0.5},
    "fed-sb": {
        "method": "fed-sb",
        "model": "conv",
        "rank": 2,
        "lora_alpha": 6.0,
        "learning_rate": 0.5,
    },
}
PLAIN_TORCH = """
import json
from collections import OrderedDict
import torch
from safetensors.torch import load_file
from torch import nn

def mlp():
    return nn.Sequential(
        OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(64, 64), tanh=nn.Tanh(), classifier=nn.Linear(64, 10)))

def block(c, m):
    return nn.Sequential(nn.Conv2d(c, m, 3, padding=1), nn.GroupNorm(1, m), nn.Tanh(), nn.AvgPool2d(2))

def conv():
    return nn.Sequential(OrderedDict(
        conv1=block(1, 16), conv2=block(16, 32), flatten=nn.Flatten(), classifier=nn.Linear(128, 10)))

def merged(tensors, lora):
    for path in lora["layers"]:
        W, A, B = (tensors.pop(f"{path}.{part}.weight") for part in ("base", "down", "up"))
        C = tensors.pop(f"{path}.core.weight", torch.eye(len(A)))
        tensors[path + ".weight"] = W + lora["scale"] * (B.flatten(1) @ C.flatten(1) @ A.flatten(1)).reshape(W.shape)
        tensors[path + ".bias"] = tensors.pop(path + ".base.bias")
    return tensors

inputs = torch.load(sys.argv[1], weights_only=True)
for run in sys.argv[2:]:
    about, tensors = json.load(open(run + "/config.json")), load_file(run + "/model.safetensors")
    model = {"mlp": mlp, "conv": conv}[about["model"]]()
    model.load_state_dict(merged(tensors, about["lora"]) if about["lora"] else tensors)
    torch.save(model(inputs).detach(), run + "/logits.pt")
"""


def evaluated(run: Run, inputs: Tensor) -> Tensor:
    """Logits of the model that the server evaluated, from the checkpoint."""
    state = run.plan.initial.server()
    state.load_state_dict(run.checkpoint["server"])
    with state.evaluated() as model, torch.no_grad():
        return model(inputs)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Finished runs; in each folder ``logits.pt`` of the first 50 test rows, by a process without
    fedlsg.
    """
    folder = tmp_path_factory.mktemp("models")
    made = {case: run_local(folder / case, **settings) for case, settings in CASES.items()}
    torch.save(inputs_of(made["mlp"]), folder / "inputs.pt")
    outside(PLAIN_TORCH, folder / "inputs.pt", *(run.path for run in made.values()))
    return made


def inputs_of(run: Run) -> Tensor:
    return run.plan.workload.test.batch(torch.arange(50))[0]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_plain_torch_computes_the_logits_of_the_evaluated_model(case, runs):
    run = runs[case]
    torch.testing.assert_close(torch.load(run.path / "logits.pt"), evaluated(run, inputs_of(run)))


@pytest.mark.parametrize("case", CASES)
def test_the_accuracy_of_the_summary_comes_back(case, runs):
    run = runs[case]
    tensors, _ = read_model(run.path)
    model = run.plan.initial.model()
    model.load_state_dict(tensors)
    found = evaluate(model, run.plan.workload.test, device="cpu")
    assert (found.accuracy, found.loss) == (run.summary["accuracy"], run.summary["loss"])
