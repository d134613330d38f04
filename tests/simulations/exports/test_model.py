"""``fedlsg export``: folders that torch and transformers load without fedlsg, and one line for every wrong use."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from rich.console import Console

from fedlsg.carriers import Lora
from simulations.exports.model import export_command
from simulations.models.encoder import build_encoder, describe, save_pretrained
from simulations.models.encoder_source import find_encoder
from tests.simulations.support.made_texts import make_bert, write_sst2
from tests.simulations.support.outside import outside
from tests.simulations.support.runs import Run, run_local

LORA = {"method": "lora", "rank": 2, "lora_alpha": 6.0, "learning_rate": 0.5}
PLAIN_TORCH = """
import torch
from collections import OrderedDict
from safetensors.torch import load_file
from torch import nn
model = nn.Sequential(
    OrderedDict(flatten=nn.Flatten(), hidden=nn.Linear(64, 64), tanh=nn.Tanh(), classifier=nn.Linear(64, 10)))
model.load_state_dict(load_file(sys.argv[1] + "/model.safetensors"))
torch.save(model(torch.load(sys.argv[2], weights_only=True)).detach(), sys.argv[3])
"""
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
    state = run.plan.server_state()
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


def test_merged_lora_is_the_plain_module(lora, tmp_path):
    folder = export(lora.path, tmp_path / "out", merge_lora=True)
    inputs, file = some_inputs(lora, tmp_path)
    outside(PLAIN_TORCH, folder, file, tmp_path / "logits.pt")
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt"), logits_of(lora, inputs))
    said = json.loads((folder / "fedlsg-run.json").read_text())
    assert (said["lora"], said["lora_merged"]) == (None, True)
    assert set(said["trained"]) == {"hidden.weight", "hidden.bias", "classifier.weight", "classifier.bias"}


def test_lora_as_it_was_trained(lora):
    folder = export(lora.path)
    assert {path.name for path in folder.iterdir()} == {"model.safetensors", "fedlsg-run.json"}
    assert (folder / "model.safetensors").read_bytes() == (lora.path / "model.safetensors").read_bytes()


def older(*names: str) -> Callable[..., set[str]]:
    """What a version without these files, a model file and a manifest did not leave."""
    return shutil.ignore_patterns("model.safetensors", "manifest.*", *names)


@pytest.mark.parametrize("method", ["lora", "lsg"])
def test_a_run_of_an_older_version_is_read_from_its_checkpoint(method, lora, small, tmp_path):
    run = {"lora": lora, "lsg": small}[method]
    old = tmp_path / "old"
    shutil.copytree(run.path, old, ignore=older("config.json", "export"))
    exported = export(old, tmp_path / "out") / "model.safetensors"
    assert exported.read_bytes() == (run.path / "model.safetensors").read_bytes()


# --- transformers


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Runs of tiny encoders; their exported folders, each with ``logits.pt`` by a process without fedlsg."""
    pytest.importorskip("transformers", reason="text models need the text extra")
    folder = tmp_path_factory.mktemp("texts")
    write_sst2(folder / "data", train=40, validation=20)
    bert, pooled = make_bert(folder / "bert", layers=1), make_bert(folder / "mean", layers=1, base_only=True)
    (pooled / "1_Pooling").mkdir()
    (pooled / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    common = {"workload": "glue-sst2", "data_dir": str(folder / "data"), "max_length": 16, "rounds": 1}
    runs = {
        "lora": run_local(folder / "lora", **common, **LORA, model=str(bert)),
        "pooled": run_local(folder / "pooled", **common, model=str(pooled), method="dpsgd", learning_rate=1.0),
    }
    _, file = some_inputs(runs["lora"], folder)
    folders = [export(run.path, merge_lora=kind == "lora") for kind, run in runs.items()]
    outside(TRANSFORMERS, file, *folders)
    return runs


@pytest.mark.parametrize("kind", ["lora", "pooled"])
def test_transformers_computes_the_logits_of_the_evaluated_model(kind, texts):
    run = texts[kind]
    inputs, _ = some_inputs(run, run.path.parent)
    torch.testing.assert_close(torch.load(run.path / "export" / "logits.pt"), logits_of(run, inputs))
    said = json.loads((run.path / "export" / "fedlsg-run.json").read_text())
    assert said["method"] == run.plan.method.name


def test_pooling_of_its_own_is_never_loaded_as_another_model(texts):
    """Without its code transformers refuses the folder, instead of making a new pooler."""
    from transformers import AutoModelForSequenceClassification

    with pytest.raises(ValueError, match="trust_remote_code"):
        AutoModelForSequenceClassification.from_pretrained(texts["pooled"].path / "export", trust_remote_code=False)


def test_a_head_of_several_layers_goes_back_to_its_place(tmp_path):
    transformers = pytest.importorskip("transformers", reason="text models need the text extra")
    config = transformers.RobertaConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3
    )
    transformers.RobertaForSequenceClassification(config).save_pretrained(tmp_path / "made")
    ours = build_encoder(find_encoder(str(tmp_path / "made"), None), num_classes=3)
    save_pretrained(tmp_path / "out", ours.state_dict(), describe(ours))
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokens = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    head = ours.state_dict()  # its tensors to the bit; what it computes to rounding, which depends on places in memory
    assert all(torch.equal(W, head[f"classifier.{name}"]) for name, W in theirs.classifier.state_dict().items())
    torch.testing.assert_close(theirs.eval()(**tokens).logits, ours.eval()(**tokens), atol=1e-6, rtol=1e-5)


def test_a_model_of_transformers_itself(tmp_path):
    transformers = pytest.importorskip("transformers", reason="text models need the text extra")
    config = transformers.GPT2Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)  # its output layer is tied to its embedding
    save_pretrained(tmp_path, model.state_dict(), describe(model))
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    tokens = torch.tensor([[3, 4, 5]])
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    torch.testing.assert_close(loaded.eval()(tokens).logits, model.eval()(tokens).logits, atol=1e-6, rtol=1e-5)


# --- wrong uses


def test_an_unfinished_run(stopped):
    with pytest.raises(ValueError, match="has not finished: continue it with fedlsg resume"):
        export(stopped.path)


def test_an_existing_folder(lora, tmp_path):
    with pytest.raises(ValueError, match="exists: nothing is overwritten, choose another --out"):
        export(lora.path, tmp_path)


def test_lora_that_is_not_there(small, tmp_path):
    with pytest.raises(ValueError, match="'lsg' trains no factors of LoRA: leave --merge-lora out"):
        export(small.path, tmp_path / "out", merge_lora=True)
    assert list(tmp_path.iterdir()) == []


def test_lora_that_transformers_cannot_hold(texts, tmp_path):
    with pytest.raises(ValueError, match="no place for LoRA's factors: add --merge-lora"):
        export(texts["lora"].path, tmp_path / "out")


def test_neither_a_model_nor_a_checkpoint(small, tmp_path):
    shutil.copytree(small.path, tmp_path / "run", ignore=older("checkpoint"))
    with pytest.raises(ValueError, match=r"holds no model.safetensors and no checkpoint: restore one"):
        export(tmp_path / "run")


def test_weight_standardised_layers_are_not_merged(tmp_path):
    """W_0 + s B A is standardised as a whole there: another function than the two layers that were trained."""
    from fedlsg.carriers import prepare_model
    from fedlsg.gradients.formulas.standardized import StandardizedConv2d
    from simulations.server.final_model import lora_facts

    layers = (StandardizedConv2d(8, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8, 2))
    model = prepare_model(torch.nn.Sequential(*layers), Lora(rank=1), seed=0)
    assert lora_facts(model, 1.0) == {"scale": 1.0, "layers": ["0"], "merges": False}
