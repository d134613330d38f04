"""Which whole models train: tiny ones of transformers with random weights, against autograd one
example at a time.

    python -m benchmarks.model_grid [--write docs/results/models.md]

Every parameter is trained. BatchNorm and dropout of attention are replaced first
(``fedlsg.make_supported``). A model trains whole if every parameter's gradients agree in float64;
the command ends with 1 if some are wrong.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers as t
from torch import Tensor, nn

import fedlsg
from fedlsg.frame import Coordinates, Frame, make_blocks
from fedlsg.gradients import trainable
from fedlsg.gradients.calls import UnsupportedLayerError
from fedlsg.gradients.isolation import per_example_gradients

WORDS, LENGTH, CLASSES, BATCH = 30, 6, 3, 4
SIZE = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": CLASSES,
}
TEXT = {
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
STAGES = {"depths": [1, 1], "num_labels": CLASSES, "image_size": 16, "num_channels": 3}
IMAGE, PATCHES = 16, {"image_size": 16, "patch_size": 8}


def texts(size: int) -> dict[str, Tensor]:
    """Padded texts that end with the token 2, whose ends BART looks for."""
    mask = torch.arange(LENGTH) < torch.tensor([6, 3, 4, 5]).repeat(3)[:size].unsqueeze(1)
    words = torch.randint(3, WORDS, (size, LENGTH)).masked_fill(~mask, 1)
    words[torch.arange(size), mask.sum(1) - 1] = 2
    return {"input_ids": words, "attention_mask": mask.long()}


def with_decoder(size: int) -> dict[str, Tensor]:
    return texts(size) | {"decoder_input_ids": torch.randint(3, WORDS, (size, 5))}


def images(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size, 3, IMAGE, IMAGE, dtype=torch.float64)}


def large_images(size: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(size, 3, 64, 64, dtype=torch.float64)}


Inputs = Callable[[int], dict[str, Tensor]]
MODELS: Mapping[str, tuple[Inputs, Callable[[], nn.Module]]] = {
    "RoBERTa": (texts, lambda: t.RobertaForSequenceClassification(t.RobertaConfig(**TEXT, **SIZE))),
    "BERT": (texts, lambda: t.BertForSequenceClassification(t.BertConfig(**TEXT, **SIZE))),
    "DistilBERT": (
        texts,
        lambda: t.DistilBertForSequenceClassification(
            t.DistilBertConfig(
                vocab_size=WORDS,
                max_position_embeddings=16,
                dim=8,
                n_layers=2,
                n_heads=2,
                hidden_dim=12,
                num_labels=CLASSES,
                pad_token_id=1,
            )
        ),
    ),
    "ELECTRA": (
        texts,
        lambda: t.ElectraForSequenceClassification(
            t.ElectraConfig(embedding_size=8, **TEXT, **SIZE)
        ),
    ),
    "ALBERT": (
        texts,
        lambda: t.AlbertForSequenceClassification(t.AlbertConfig(embedding_size=4, **TEXT, **SIZE)),
    ),
    "DeBERTa-v2": (
        texts,
        lambda: t.DebertaV2ForSequenceClassification(
            t.DebertaV2Config(
                relative_attention=True,
                pos_att_type=["p2c", "c2p"],
                position_buckets=4,
                norm_rel_ebd="layer_norm",
                share_att_key=True,
                position_biased_input=False,
                type_vocab_size=0,
                **TEXT,
                **SIZE,
            )
        ),
    ),
    "GPT-2": (texts, lambda: t.GPT2ForSequenceClassification(gpt2())),
    "GPT-2, next words": (texts, lambda: t.GPT2LMHeadModel(gpt2())),
    "OPT": (texts, lambda: t.OPTForSequenceClassification(opt())),
    "OPT, next words": (texts, lambda: t.OPTForCausalLM(opt())),
    "Llama, next words": (
        texts,
        lambda: t.LlamaForCausalLM(
            t.LlamaConfig(use_cache=False, num_key_value_heads=1, **TEXT, **SIZE)
        ),
    ),
    "Mistral, next words": (
        texts,
        lambda: t.MistralForCausalLM(
            t.MistralConfig(use_cache=False, num_key_value_heads=1, **TEXT, **SIZE)
        ),
    ),
    "Qwen2, next words": (
        texts,
        lambda: t.Qwen2ForCausalLM(
            t.Qwen2Config(
                use_cache=False, num_key_value_heads=1, tie_word_embeddings=True, **TEXT, **SIZE
            )
        ),
    ),
    "T5": (texts, lambda: t.T5ForSequenceClassification(t5())),
    "T5, words to words": (with_decoder, lambda: t.T5ForConditionalGeneration(t5())),
    "BART": (texts, lambda: t.BartForSequenceClassification(bart())),
    "BART, words to words": (with_decoder, lambda: t.BartForConditionalGeneration(bart())),
    "XLNet": (
        texts,
        lambda: t.XLNetForSequenceClassification(
            t.XLNetConfig(
                vocab_size=WORDS,
                d_model=8,
                n_layer=2,
                n_head=2,
                d_inner=12,
                num_labels=CLASSES,
                pad_token_id=1,
                use_mems_eval=False,
            )
        ),
    ),
    "MobileBERT": (
        texts,
        lambda: t.MobileBertForSequenceClassification(
            t.MobileBertConfig(embedding_size=8, intra_bottleneck_size=8, **TEXT, **SIZE)
        ),
    ),
    "ViT": (images, lambda: t.ViTForImageClassification(t.ViTConfig(**PATCHES, **SIZE))),
    "DeiT": (images, lambda: t.DeiTForImageClassification(t.DeiTConfig(**PATCHES, **SIZE))),
    "BEiT": (
        images,
        lambda: t.BeitForImageClassification(
            t.BeitConfig(
                use_relative_position_bias=True,
                use_absolute_position_embeddings=True,
                **PATCHES,
                **SIZE,
            )
        ),
    ),
    "Swin": (
        images,
        lambda: t.SwinForImageClassification(
            t.SwinConfig(patch_size=2, embed_dim=4, num_heads=[1, 2], window_size=4, **STAGES)
        ),
    ),
    "Swin v2": (
        images,
        lambda: t.Swinv2ForImageClassification(
            t.Swinv2Config(patch_size=2, embed_dim=4, num_heads=[1, 2], window_size=4, **STAGES)
        ),
    ),
    "SegFormer": (
        images,
        lambda: t.SegformerForImageClassification(
            t.SegformerConfig(
                depths=[1, 1],
                num_encoder_blocks=2,
                sr_ratios=[2, 1],
                hidden_sizes=[4, 8],
                num_attention_heads=[1, 2],
                patch_sizes=[3, 3],
                strides=[2, 2],
                mlp_ratios=[2, 2],
                num_labels=CLASSES,
            )
        ),
    ),
    "ConvNeXt": (
        images,
        lambda: t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=[4, 8], patch_size=2, num_stages=2, **STAGES)
        ),
    ),
    "ConvNeXt v2": (
        images,
        lambda: t.ConvNextV2ForImageClassification(
            t.ConvNextV2Config(hidden_sizes=[4, 8], patch_size=2, num_stages=2, **STAGES)
        ),
    ),
    "ResNet": (
        images,
        lambda: t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=4, hidden_sizes=[4, 8], depths=[1, 1], num_labels=CLASSES)
        ),
    ),
    "RegNet": (
        images,
        lambda: t.RegNetForImageClassification(
            t.RegNetConfig(
                embedding_size=4,
                hidden_sizes=[4, 8],
                depths=[1, 1],
                groups_width=2,
                num_labels=CLASSES,
            )
        ),
    ),
    "MobileNetV1": (
        images,
        lambda: t.MobileNetV1ForImageClassification(
            t.MobileNetV1Config(
                depth_multiplier=0.25, min_depth=4, image_size=IMAGE, num_labels=CLASSES
            )
        ),
    ),
    "MobileNetV2": (
        images,
        lambda: t.MobileNetV2ForImageClassification(
            t.MobileNetV2Config(
                depth_multiplier=0.25,
                depth_divisible_by=4,
                min_depth=4,
                image_size=IMAGE,
                num_labels=CLASSES,
            )
        ),
    ),
    "EfficientNet": (
        large_images,
        lambda: t.EfficientNetForImageClassification(
            t.EfficientNetConfig(
                width_coefficient=0.1,
                depth_coefficient=0.1,
                image_size=64,
                depth_divisor=4,
                hidden_dim=128,
                num_labels=CLASSES,
            )
        ),
    ),
    "PoolFormer": (
        images,
        lambda: t.PoolFormerForImageClassification(
            t.PoolFormerConfig(
                hidden_sizes=[4, 8],
                depths=[1, 1],
                num_encoder_blocks=2,
                patch_sizes=[7, 3],
                strides=[4, 2],
                padding=[2, 1],
                num_labels=CLASSES,
            )
        ),
    ),
}


def gpt2() -> Any:
    return t.GPT2Config(
        vocab_size=WORDS,
        n_positions=16,
        n_embd=8,
        n_layer=2,
        n_head=2,
        use_cache=False,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        num_labels=CLASSES,
    )


def opt() -> Any:
    return t.OPTConfig(ffn_dim=12, word_embed_proj_dim=4, use_cache=False, **TEXT, **SIZE)


def t5() -> Any:
    return t.T5Config(
        vocab_size=WORDS,
        d_model=8,
        d_kv=4,
        d_ff=12,
        num_layers=2,
        num_heads=2,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        num_labels=CLASSES,
    )


def bart() -> Any:
    return t.BartConfig(
        d_model=8,
        encoder_layers=2,
        decoder_layers=2,
        encoder_ffn_dim=12,
        decoder_ffn_dim=12,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        use_cache=False,
        num_labels=CLASSES,
        decoder_start_token_id=2,
        forced_eos_token_id=2,
        **TEXT,
    )


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """One loss an example: of its class, or the mean over its positions."""
    logits = outputs.logits
    if logits.ndim == 2:
        return F.cross_entropy(logits, targets, reduction="none")
    return logits.square().flatten(1).mean(1)  # type: ignore[no-any-return]


def judge(inputs: Inputs, build: Callable[[], nn.Module]) -> tuple[str, str]:
    """trains whole, refused or wrong, with what was changed, or the reason."""
    torch.manual_seed(0)
    model, changes = fedlsg.make_supported(build().double().eval())
    torch.manual_seed(1)
    x, y = inputs(BATCH), torch.randint(CLASSES, (BATCH,))
    parameters = trainable(model)
    with torch.no_grad():
        for p in parameters.values():
            p.add_(0.1 * torch.randn_like(p))
    where = tuple(Coordinates(name=name, shape=tuple(p.shape)) for name, p in parameters.items())
    frame = Frame(coordinates=where, blocks=tuple(make_blocks(where)))
    try:
        got = per_example_gradients(model, loss, x, y, frame)
    except UnsupportedLayerError as error:
        return "refused", str(error)
    note = f"{len(changes)} layers replaced by make_supported" if changes else ""
    for i in range(BATCH):
        own = loss(model(**{k: v[i : i + 1] for k, v in x.items()}), y[i : i + 1])
        wanted = torch.autograd.grad(own.sum(), list(parameters.values()), allow_unused=True)
        for g, w, (name, p) in zip(got, wanted, parameters.items(), strict=True):
            row = torch.zeros_like(p) if w is None else w
            if not torch.allclose(g[i], row.flatten(), rtol=1e-7, atol=1e-8):
                return "wrong", f"{name} differs by {float((g[i] - row.flatten()).abs().max()):.1e}"
    return "trains whole", note


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, help="Markdown file of the table")
    parser.add_argument("--only", nargs="*", default=list(MODELS), metavar="MODEL")
    given = parser.parse_args()
    lines = [
        "# Models against autograd",
        "",
        "Tiny models of transformers with random weights, every parameter trained. Made by "
        "`python -m benchmarks.model_grid --write docs/results/models.md`.",
        "",
        "| model | result | note |",
        "|---|---|---|",
    ]
    wrong = False
    for name in given.only:
        try:
            verdict, note = judge(*MODELS[name])
        except Exception as error:
            verdict, note = "wrong", f"{type(error).__name__}: {error}"
        wrong |= verdict == "wrong"
        lines.append(f"| {name} | {verdict} | {note} |")
        print(lines[-1], flush=True)
    if given.write is not None:
        given.write.write_text("\n".join(lines) + "\n")
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
