"""``fedlsg export``: folders that torch and transformers load without fedlsg, and one line for
every wrong use.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedlsg import load_run
from fedlsg.simulations.cli.export import export_command
from tests.simulations.support.made_texts import make_bert, write_sst2
from tests.simulations.support.outside import outside
from tests.simulations.support.runs import Run, run_local

LORA = {"method": "lora", "rank": 2, "lora_alpha": 6.0, "learning_rate": 0.5}
TRANSFORMERS = """
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer
for folder in sys.argv[2:]:
    model = AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code="pooled" in folder)
    inputs = torch.load(sys.argv[1], weights_only=True)
    torch.save(model.eval()(**inputs).logits.detach(), folder + "/logits.pt")
    AutoTokenizer.from_pretrained(folder)("a good film")
"""


def export(run: Path, out: Path | None = None, *, merge_lora: bool = False) -> Path:
    """The folder that the command wrote."""
    export_command(str(run), None if out is None else str(out), merge_lora, Console(quiet=True))
    return run / "export" if out is None else out


def logits_of(run: Run, inputs: object) -> torch.Tensor:
    """Of the model that the run evaluated."""
    state = run.plan.initial.server()
    state.load_state_dict(run.checkpoint["server"])
    with state.evaluated() as model, torch.no_grad():
        return model.eval()(**inputs) if isinstance(inputs, dict) else model(inputs)


def some_inputs(run: Run, folder: Path) -> tuple[object, Path]:
    """Public inputs, and the file that holds them."""
    inputs = run.plan.workload.test.batch(torch.arange(8))[0]
    torch.save(inputs, folder / "inputs.pt")
    return inputs, folder / "inputs.pt"


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_local(tmp_path_factory.mktemp("runs") / "lora", **LORA)


def test_a_run_without_its_model_is_named_and_an_unfinished_one_has_that_of_its_checkpoint(
    lora, tmp_path
):
    old = tmp_path / "old"
    shutil.copytree(
        lora.path, old, ignore=shutil.ignore_patterns("model.safetensors", "manifest.*", "export")
    )
    with pytest.raises(ValueError, match=r"holds no model.safetensors: restore it from a copy"):
        export(old, tmp_path / "out")
    whole, left = (load_run(path).model.state_dict() for path in (lora.path, old))
    assert all(torch.equal(left[name], value) for name, value in whole.items())


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of tiny encoders; their exported folders, each with ``logits.pt`` by a process without
    fedlsg.
    """
    pytest.importorskip("transformers", reason="text models need the text extra")
    folder = tmp_path_factory.mktemp("texts")
    write_sst2(folder / "data", train=40, validation=20)
    bert = make_bert(folder / "bert", layers=1)
    pooled = make_bert(folder / "mean", layers=1, base_only=True)
    (pooled / "1_Pooling").mkdir()
    (pooled / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    common = {
        "workload": "glue-sst2",
        "data_dir": str(folder / "data"),
        "max_length": 16,
        "rounds": 1,
    }
    runs = {
        "lora": run_local(folder / "lora", **common, **LORA, model=str(bert)),
        "pooled": run_local(
            folder / "pooled", **common, model=str(pooled), method="dpsgd", learning_rate=1.0
        ),
    }
    _, file = some_inputs(runs["lora"], folder)
    folders = [export(run.path, merge_lora=kind == "lora") for kind, run in runs.items()]
    outside(TRANSFORMERS, file, *folders)
    return runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "pooled"])
def test_transformers_computes_the_logits_of_the_evaluated_model(kind, texts):
    run = texts[kind]
    inputs, _ = some_inputs(run, run.path.parent)
    torch.testing.assert_close(
        torch.load(run.path / "export" / "logits.pt"), logits_of(run, inputs)
    )
    said = json.loads((run.path / "export" / "fedlsg-run.json").read_text())
    assert said["method"] == run.plan.method.name
