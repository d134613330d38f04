"""The benchmarks: some of the grids' cases, every arm of a step on a tiny model, a measured run
that can be resumed.
"""

import json

import pytest
import torch
from torch import nn

from benchmarks import layer_grid
from benchmarks.pairs import interleave, summary, table, write
from benchmarks.speed import scale
from benchmarks.speed.arms import OURS
from benchmarks.speed.rivals import RIVALS
from benchmarks.speed.subjects import Subject

CASES = [
    case
    for make in (
        layer_grid.convolutions,
        layer_grid.recurrent,
        layer_grid.attention,
        layer_grid.tables,
        layer_grid.others,
    )
    for case in make()
]
QUICK = ("ALBERT", "DeBERTa-v2", "T5", "OPT", "Swin")
OTHERS = (
    "BART",
    "BEiT",
    "SegFormer",
    "ConvNeXt",
    "MobileNetV2",
    "EfficientNet",
    "MobileBERT",
    "GPT-2, next words",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_layers_in_all_their_forms():
    verdicts = [layer_grid.judge(case) for case in CASES[::23] + CASES[-5:]]
    assert {verdict for verdict, _ in verdicts} == {"equal", "refused"}
    assert all(reason for verdict, reason in verdicts if verdict == "refused")


@pytest.mark.thinned(4)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_whole_models_train(name):
    pytest.importorskip("transformers")
    from benchmarks.model_grid import MODELS, judge

    assert judge(*MODELS[name])[0] == "trains whole"


FREE = ("vmap",)


def tiny() -> Subject:
    torch.manual_seed(0)

    def build() -> nn.Module:
        torch.manual_seed(0)
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 2))

    return Subject(
        build=build,
        inputs=torch.randn(4, 3, 4, 4),
        targets=torch.tensor([0, 1, 1, 0]),
        classifier="6",
    )


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=() if n in ("lsg p=.5", *FREE) else pytest.mark.slow)
        for n in (*OURS, *FREE)
    ],
)
def test_every_arm_steps_a_tiny_model(name, tmp_path):
    step, plain = (OURS | RIVALS)[name](tiny()), OURS["plain"](tiny())
    found = summary(interleave({"plain": plain, name: step}, pairs=1, warmup=0), ["plain"])
    assert name in table(found, "plain")
    write(tmp_path / "out.json", {"results": found})
    assert json.loads((tmp_path / "out.json").read_text())["results"][name]["cpu"]["median"] >= 0


@pytest.mark.slow
def test_a_measured_run_can_be_resumed_and_reported(tmp_path):
    folder = str(tmp_path)
    assert len(scale.process(f"measure(200, 4, {folder!r})", folder)["rounds"]) == 3
    assert scale.process(f"after({folder!r})", folder)["page"] > 0
