"""Full fine-tuning of Hugging Face models: every parameter against autograd, a private step, and
independence.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlsg.frame import Frame
from fedlsg.gradients.hooked_pass.supported import trainable
from fedlsg.gradients.isolation import per_example_gradients
from tests.fedlsg.support.gradient_oracle import make_frame

transformers = pytest.importorskip("transformers", reason="these models need the text extra")

WORDS, LENGTH = 30, 6
SMALL = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "num_labels": 3,
}
TEXT = {
    "vocab_size": WORDS,
    "max_position_embeddings": 16,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
GPT2 = {
    "vocab_size": WORDS,
    "n_positions": 16,
    "n_embd": 8,
    "n_layer": 2,
    "n_head": 2,
    "use_cache": False,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


def build(name: str) -> nn.Module:
    """A tiny model with random weights; positions (1, T) in BERT, tied weights in the language
    models.
    """
    t = transformers
    made: dict[str, Callable[[], Any]] = {
        "roberta": lambda: t.RobertaForSequenceClassification(
            t.RobertaConfig(type_vocab_size=1, **TEXT, **SMALL)
        ),
        "bert": lambda: t.BertForSequenceClassification(t.BertConfig(**TEXT, **SMALL)),
        "gpt2": lambda: t.GPT2ForSequenceClassification(t.GPT2Config(num_labels=3, **GPT2)),
        "gpt2-lm": lambda: t.GPT2LMHeadModel(t.GPT2Config(**GPT2)),
        "llama-lm": lambda: t.LlamaForCausalLM(
            t.LlamaConfig(use_cache=False, num_key_value_heads=1, **TEXT, **SMALL)
        ),
        "vit": lambda: t.ViTForImageClassification(
            t.ViTConfig(image_size=8, patch_size=4, **SMALL)
        ),
    }
    torch.manual_seed(0)
    return made[name]().eval()


def batch(name: str, size: int) -> tuple[dict[str, Tensor], Tensor]:
    """Images, or padded texts of several lengths; targets are classes, or the texts themselves."""
    torch.manual_seed(1)
    targets = torch.randint(3, (size,))
    if name == "vit":
        return {"pixel_values": torch.randn(size, 3, 8, 8, dtype=torch.float64)}, targets
    mask = torch.arange(LENGTH) < torch.tensor([6, 3, 2, 4, 6, 5, 2]).repeat(3)[:size].unsqueeze(1)
    words = torch.randint(3, WORDS, (size, LENGTH)).masked_fill(~mask, 1)
    return {"input_ids": words, "attention_mask": mask.long()}, words if name.endswith(
        "-lm"
    ) else targets


def loss(outputs: Any, targets: Tensor) -> Tensor:
    """One loss an example: of its class, or the mean over its next words."""
    logits = outputs.logits
    if logits.ndim == 2:
        return F.cross_entropy(logits, targets, reduction="none")
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


def dense_frame(model: nn.Module) -> Frame:
    frame = make_frame(model, rank=1, sparsity=0.0, carry=False)
    assert (
        [c.name for c in frame.coordinates]
        == list(trainable(model))
        == [n for n, _ in model.named_parameters()]
    )
    return frame


def looped(model: nn.Module, inputs: dict[str, Tensor], targets: Tensor) -> list[Tensor]:
    """Autograd's gradients of every parameter, one example after another."""
    parameters = list(model.parameters())
    rows = []
    for i in range(len(targets)):
        own = loss(model(**{k: t[i : i + 1] for k, t in inputs.items()}), targets[i : i + 1])
        gradients = torch.autograd.grad(own.sum(), parameters, allow_unused=True)
        rows.append(
            [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parameters, gradients, strict=True)
            ]
        )
    return [torch.stack(parts).flatten(1) for parts in zip(*rows, strict=True)]


MODELS = ("roberta", "bert", "gpt2", "gpt2-lm", "llama-lm", "vit")


@pytest.mark.thinned(9)
@pytest.mark.parametrize("size", [1, LENGTH])
@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_has_the_gradients_of_autograd(name, size):
    """Also for as many examples as there are tokens."""
    model = build(name).double()
    inputs, targets = batch(name, size)
    wanted = looped(model, inputs, targets)
    got = per_example_gradients(model, loss, inputs, targets, dense_frame(model))
    for (parameter, _), a, b in zip(model.named_parameters(), got, wanted, strict=True):
        assert (a - b).norm() <= 1e-12 * (1e-3 + b.norm()), parameter


def test_a_library_model_that_writes_to_itself_runs_example_by_example(monkeypatch, caplog):
    """The scale of this rotary embedding follows the farthest position of the batch."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=16,
        rope_scaling={"rope_type": "dynamic", "factor": 4.0},
        initializer_range=0.7,
        num_labels=3,
        pad_token_id=0,
        use_cache=False,
    )
    model = transformers.LlamaForSequenceClassification(config)
    frame, rows = dense_frame(model), torch.randint(1, WORDS, (3, LENGTH))
    near = torch.arange(LENGTH).repeat(3, 1)
    far = torch.cat([near[:2], 90 * near[2:]])
    inverse = model.model.rotary_emb.inv_freq.clone()

    def moved() -> float:
        """How far the positions of the last row move the gradients of the others."""
        found = [
            torch.cat(
                per_example_gradients(
                    model,
                    lambda out, y: F.cross_entropy(out.logits, y, reduction="none"),
                    {"input_ids": rows, "position_ids": positions},
                    torch.tensor([0, 1, 2]),
                    frame,
                ),
                dim=1,
            )[:2]
            for positions in (near, far)
        ]
        return float((found[0] - found[1]).norm() / found[0].norm())

    assert moved() < 1e-4
    assert torch.equal(model.model.rotary_emb.inv_freq, inverse)
    assert "example by example" in caplog.text
    monkeypatch.setattr("fedlsg.gradients.isolation.passes.library_with_state", lambda model: False)
    assert moved() > 1e-3, "negative control: over the batch"
