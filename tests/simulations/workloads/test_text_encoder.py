"""Encoders: pooling and heads against transformers, what is frozen, seeds, padding, and what is
refused.
"""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from fedlsg.carriers import LowRank, carried_parameters
from fedlsg.frame import Frame
from fedlsg.gradients.hooked_pass.supported import check_supported, trainable
from fedlsg.gradients.isolation import per_example_gradients
from fedlsg.method import Method, Schedule, make_frame
from fedlsg.simulations.models.encoder import TextClassifier, build_encoder
from fedlsg.simulations.models.encoder_source import find_encoder, load_config
from tests.simulations.support.made_texts import make_bert

pytest.importorskip("transformers", reason="text models need the text extra")

TOKENS = {
    "input_ids": torch.tensor([[2, 5, 7, 3, 0, 0], [2, 9, 8, 7, 6, 3], [2, 3, 0, 0, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]),
    "token_type_ids": torch.tensor([[0, 0, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]]),
}
TARGETS = torch.tensor([0, 1, 1])


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def pooled(bert, tmp_path) -> Path:
    """The same weights in the layout of sentence-transformers, averaged over tokens."""
    folder = make_bert(tmp_path / "pooled", base_only=True)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(
        json.dumps({"pooling_mode_mean_tokens": True})
    )
    return folder


def build(folder: Path, **options: object) -> TextClassifier:
    options.setdefault("num_classes", 2)
    return build_encoder(find_encoder(str(folder), None), **options)


def test_logits_are_those_of_transformers(bert):
    from transformers import AutoModelForSequenceClassification

    oracle = AutoModelForSequenceClassification.from_pretrained(bert).eval()
    assert_close(build(bert)(**TOKENS), oracle(**TOKENS).logits)


def frame_of(model: nn.Module) -> Frame:
    method = Method(name="made", carrier=LowRank(rank=2))
    weights = {name: p.detach() for name, p in trainable(model).items()}
    carried = carried_parameters(model, method.carrier, classifier="classifier")
    assert carried
    return make_frame(
        method,
        weights,
        {},
        carried=carried,
        round=1,
        updates=0,
        schedule=Schedule(rounds=1),
        seed=0,
    )


def gradients(
    model: nn.Module, tokens: dict[str, torch.Tensor], targets: torch.Tensor
) -> torch.Tensor:
    """(B, kept) per-example gradients in one matrix."""
    loss = partial(F.cross_entropy, reduction="none")
    return torch.cat(per_example_gradients(model, loss, tokens, targets, frame_of(model)), dim=1)


def padded(tokens: dict[str, torch.Tensor], by: int) -> dict[str, torch.Tensor]:
    return {name: F.pad(tensor, (0, by)) for name, tensor in tokens.items()}


def row(tokens: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    """One example without its padding."""
    length = int(tokens["attention_mask"][number].sum())
    return {name: tensor[number : number + 1, :length] for name, tensor in tokens.items()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("layout", ["own", "mean"])
def test_padding_changes_neither_logits_nor_gradients(bert, pooled, layout, attention):
    model = build(bert if layout == "own" else pooled, attention=attention).double()
    together = gradients(model, padded(TOKENS, 5), TARGETS)
    logits = model(**TOKENS)
    for number in range(3):
        alone = row(TOKENS, number)
        assert_close(model(**alone)[0], logits[number], rtol=1e-9, atol=1e-12)
        assert_close(
            gradients(model, alone, TARGETS[[number]])[0], together[number], rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("train_layers", [0, 1, 2, 3, None])
def test_embeddings_and_the_layers_below_are_frozen(bert, train_layers):
    names = list(trainable(build(bert, train_layers=train_layers)))
    top = 3 if train_layers is None else train_layers
    layers = {int(name.split("layer.")[1].split(".")[0]) for name in names if "layer." in name}
    assert layers == set(range(3 - top, 3))
    assert not any("embeddings" in name for name in names)
    assert {"classifier.weight", "body.bert.pooler.dense.weight"} <= set(names)
    with pytest.raises(ValueError, match="expected 0 <= train_layers=4 <= 3"):
        build(bert, train_layers=4)


def test_a_gpt_2_of_a_folder_is_supported(tmp_path):
    """Its Conv1D and its tables have formulas."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(
        vocab_size=20, n_positions=32, n_embd=8, n_layer=1, n_head=2, num_labels=2, pad_token_id=0
    )
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    check_supported(build(tmp_path))


def test_every_dropout_rate_is_set_also_one_that_a_file_gives_as_an_integer(tmp_path):
    folder = make_bert(tmp_path / "bert")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_dropout_prob": 0}))
    config = load_config(find_encoder(str(folder), None), dropout=0.1)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.1, 0.1)
