"""The grids of layers and of whole models: some of their cases, and mistakes that they find."""

import pytest

from benchmarks import layer_grid

CASES = [case for make in (layer_grid.convolutions, layer_grid.recurrent, layer_grid.attention, layer_grid.tables,
                           layer_grid.others) for case in make()]  # fmt: skip
QUICK = ("ALBERT", "DeBERTa-v2", "T5", "OPT", "Swin")
OTHERS = ("BART", "BEiT", "SegFormer", "ConvNeXt", "MobileNetV2", "EfficientNet", "MobileBERT", "GPT-2, next words")


@pytest.mark.filterwarnings("ignore")
def test_layers_in_all_their_forms():
    verdicts = [layer_grid.judge(case) for case in CASES[::23] + CASES[-5:]]
    assert {verdict for verdict, _ in verdicts} == {"equal", "refused"}
    assert all(reason for verdict, reason in verdicts if verdict == "refused")


def case(name: str) -> layer_grid.Case:
    return next(case for case in CASES if case[0] == name)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_whole_models_train(name):
    pytest.importorskip("transformers")
    from benchmarks.model_grid import MODELS, judge

    assert judge(*MODELS[name])[0] == "trains whole"
