"""The grids of layers and of whole models: some of their cases, and mistakes that they find."""

import pytest

from benchmarks import layer_grid
from fedlsg.gradients.calls import recurrent
from fedlsg.gradients.hooks import Pass

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


def test_negative_control_of_a_recurrence_and_a_second_call(monkeypatch):
    honest, step = Pass.add, recurrent._step
    monkeypatch.setattr(recurrent, "_step", lambda mode, a, u, state: step(mode, a * 1.0001, u, state))
    assert layer_grid.judge(case("LSTM, packed"))[0] == "wrong"
    monkeypatch.setattr(Pass, "add", lambda self, position, value: self.values.__setitem__(position, value))
    assert layer_grid.judge(case("a layer called twice"))[0] == "wrong"
    monkeypatch.setattr(Pass, "add", honest)
    assert layer_grid.judge(case("a layer called twice"))[0] == "equal"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_whole_models_train(name):
    pytest.importorskip("transformers")
    from benchmarks.model_grid import MODELS, judge

    assert judge(*MODELS[name])[0] == "trains whole"
