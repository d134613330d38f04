"""The plan runs its model on public probes: all models that ship pass, planted mixers are refused
by name.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fedlsg.gradients.independence import check_model
from fedlsg.simulations import workloads
from fedlsg.simulations.models import vision
from fedlsg.simulations.models.encoder import build_encoder
from fedlsg.simulations.models.encoder_source import find_encoder
from fedlsg.simulations.planning.faults.model_faults import PROBE_ROWS, TOKENS, probes
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.workloads import Split
from tests.fedlsg.support.gradient_oracle import cross_entropy
from tests.fedlsg.support.mixers import BackwardMixer, MeanMixer, Memory
from tests.simulations.support.made_texts import VOCABULARY, make_bert
from tests.simulations.support.runs import SMALL

SHAPES = {"cifar": (3, 32, 10), "fashion": (1, 28, 10), "small": (3, 16, 5), "large": (3, 64, 7)}
SECONDS = ("cnn", "cnn-wide", "dp-cnn", "resnet-8", "wrn-16-4-ws")


def plan_of(**settings: object) -> None:
    make_plan(from_mapping(SMALL | settings))


def images(channels: int, side: int, classes: int) -> tuple[Tensor, Tensor]:
    """Grey levels as they are stored, with a flat corner: equal pixels are where ties come from."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(256, (PROBE_ROWS, channels, side, side), generator=generator) / 127.5 - 1
    x[:, :, : side // 2, : side // 2] = -1
    return x, torch.randint(classes, (PROBE_ROWS,), generator=generator)


def every_model() -> list[object]:
    cases = []
    for kind, shape in SHAPES.items():
        for name in vision(*shape):
            quick = name in SECONDS[:2] and kind == "cifar"
            cases.append(
                pytest.param(
                    shape, name, marks=[] if quick else [pytest.mark.slow], id=f"{kind}, {name}"
                )
            )
    return cases


@pytest.mark.thinned(1)
@pytest.mark.parametrize(("shape", "name"), every_model())
def test_every_vision_model_passes(shape, name):
    torch.manual_seed(0)
    check_model(vision(*shape)[name](), cross_entropy, [images(*shape)])


@pytest.mark.parametrize("method", ["lsg", "lora", "bitfit"])
def test_digits_pass_in_a_plan(method):
    for model in workloads.load("digits").models:
        plan_of(model=model, method=method)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False])
def test_an_encoder_passes_with_its_dropout_and_without(tmp_path, training):
    pytest.importorskip("transformers", reason="text models need the text extra")
    model = build_encoder(find_encoder(str(make_bert(tmp_path)), None), num_classes=2).train(
        training
    )
    drops = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert drops
    for module in drops:
        module.p = 0.2  # encoders come without
    ids, mask = tokens()
    check_model(
        model,
        cross_entropy,
        [({"input_ids": ids, "attention_mask": mask}, torch.arange(PROBE_ROWS) % 2)],
    )


def tokens() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([3, 12, 4, 5, 7, 2, 9])
    mask = (torch.arange(12) < lengths.unsqueeze(1)).long()
    ids = torch.randint(
        5, len(VOCABULARY), (PROBE_ROWS, 12), generator=torch.Generator().manual_seed(1)
    )
    return ids * mask, mask


class Pooled(nn.Module):
    """An encoder whose embeddings mix: a frozen part below all that is trained."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        words = encoder.body.base_model.embeddings
        words.word_embeddings = nn.Sequential(words.word_embeddings, MeanMixer(1e-4))

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.encoder(**inputs)


@pytest.mark.slow
def test_a_mixer_in_the_frozen_embeddings_of_an_encoder_is_named(tmp_path):
    pytest.importorskip("transformers", reason="text models need the text extra")
    model = Pooled(build_encoder(find_encoder(str(make_bert(tmp_path)), None), num_classes=2))
    ids, mask = tokens()
    with pytest.raises(ValueError, match=r"word_embeddings.1 \(MeanMixer\): mixes examples"):
        check_model(
            model,
            cross_entropy,
            [({"input_ids": ids, "attention_mask": mask}, torch.arange(PROBE_ROWS) % 2)],
        )


def planted(*mixer: nn.Module):
    def build() -> nn.Module:
        layers = [nn.Flatten(), nn.Linear(64, 8), nn.Tanh(), *mixer]
        model = nn.Sequential(*layers)
        model.add_module("classifier", nn.Linear(8, 10))
        return model

    return build


@pytest.fixture
def plant(monkeypatch):
    """Digits with a model of the user's own; training rows cannot be read."""
    load = workloads.load

    def unreadable(stored: object) -> Tensor:
        raise AssertionError("a plan reads no training row")

    def with_model(build) -> None:
        def changed(name, **kwargs):
            loaded = load(name, **kwargs)
            return replace(
                loaded, models={"mlp": build}, train=replace(loaded.train, prepare=unreadable)
            )

        monkeypatch.setattr(workloads, "load", changed)

    return with_model


@pytest.mark.parametrize(
    ("mixer", "message"),
    [
        (lambda: nn.Softmax(dim=0), r"^3 \(Softmax\): mixes examples"),
        (lambda: MeanMixer(1e-6), r"^3 \(MeanMixer\): mixes examples"),
        (
            lambda: MeanMixer(when=lambda module, x: module.training),
            r"^3 \(MeanMixer\): mixes examples",
        ),
        (
            lambda: MeanMixer(when=lambda module, x: len(x) > 4),
            r"^3 \(MeanMixer\): mixes examples: in a batch of 7",
        ),
        (BackwardMixer, r"^3 \(BackwardMixer\): mixes examples.*gradient"),
        (Memory, r"^3 \(Memory\): depends on earlier batches"),
    ],
)
def test_a_plan_refuses_a_model_that_mixes_examples(plant, mixer, message):
    plant(planted(mixer()))
    with pytest.raises(ValueError, match=message):
        plan_of()


def test_a_plan_takes_an_honest_model_without_reading_a_training_row(plant):
    plant(planted(nn.Dropout(0.5)))
    plan_of()


def split_of(lengths: list[int] | None, rows: int) -> Split:
    given = None if lengths is None else torch.tensor(lengths)
    return Split(
        inputs=torch.zeros(rows, 1).numpy(),
        labels=torch.zeros(rows).long(),
        prepare=torch.from_numpy,
        lengths=given,
    )


def test_probes_are_texts_of_all_short_lengths():
    lengths = [40, 3, 16, 9, 12, 5, 17, 7, 8, 30]
    chosen = [lengths[row] for row in probes(split_of(lengths, 10)).tolist()]
    assert chosen == [TOKENS, 12, 9, 8, 7, 5, 3]
