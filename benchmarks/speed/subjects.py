"""The models for measuring steps, each with one batch of random data: time does not depend on the
values.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fedlsg.simulations.models.resnet import wide_resnet


@dataclass(frozen=True, kw_only=True, eq=False)
class Subject:
    """A way to build the model (always with the same weights), a batch, and the path of the output
    layer.
    """

    build: Callable[[], nn.Module]
    inputs: Tensor
    targets: Int64[Tensor, " batch"]
    classifier: str = "classifier"


def losses(
    outputs: Float[Tensor, "batch classes"], targets: Int64[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """The cross-entropy of each example."""
    return F.cross_entropy(outputs, targets, reduction="none")


def wrn(batch: int) -> Subject:
    """WRN-28-4 for CIFAR-10 with affine GroupNorm: 28 convolutions, 5.9 M parameters."""
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: wide_resnet(28, 4, channels=3, num_classes=10, form="standard")),
        inputs=torch.randn(batch, 3, 32, 32),
        targets=torch.randint(10, (batch,)),
    )


def encoder(batch: int, length: int = 64) -> Subject:
    """MiniLM-L6's shape: 6 layers of width 384, 10.6 M trained parameters, frozen embeddings."""
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: Encoder(layers=6, width=384, heads=12, length=length)),
        inputs=torch.randint(1000, (batch, length)),
        targets=torch.randint(2, (batch,)),
    )


def roberta(batch: int, length: int = 128) -> Subject:
    """RoBERTa-base's shape: 12 layers of width 768, 85 M trained parameters, frozen embeddings."""
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: Encoder(layers=12, width=768, heads=12, length=length)),
        inputs=torch.randint(1000, (batch, length)),
        targets=torch.randint(2, (batch,)),
    )


def bare_wrn(batch: int) -> Subject:
    """WRN-28-1 on 8 x 8 images: as many layers as WRN-28-4, and hardly any arithmetic. For two
    examples.
    """
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: wide_resnet(28, 1, channels=3, num_classes=10, form="standard")),
        inputs=torch.randn(batch, 3, 8, 8),
        targets=torch.randint(10, (batch,)),
    )


def bare_encoder(batch: int) -> Subject:
    """As many layers as the encoder, of width 96, on 4 tokens: hardly any arithmetic. For two
    examples.
    """
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: Encoder(layers=6, width=96, heads=12, length=4)),
        inputs=torch.randint(1000, (batch, 4)),
        targets=torch.randint(2, (batch,)),
    )


def mlp(batch: int) -> Subject:
    """A network of 64-128-10, 9,610 parameters: the model of the default job."""
    torch.manual_seed(0)
    return Subject(
        build=_with_seed(lambda: nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))),
        inputs=torch.randn(batch, 64),
        targets=torch.randint(10, (batch,)),
        classifier="2",
    )


SUBJECTS: dict[str, Callable[[int], Subject]] = {
    "wrn-28-4": wrn,
    "encoder-6x384": encoder,
    "roberta-base": roberta,
    "wrn-bare": bare_wrn,
    "encoder-bare": bare_encoder,
    "mlp": mlp,
}
SMALL = ("wrn-28-4", "encoder-6x384")
"""Those of which a CPU takes a step within a second."""


def on_device(subject: Subject, device: torch.device) -> Subject:
    """The subject with model and batch on ``device``."""
    return replace(
        subject,
        build=lambda: subject.build().to(device),
        inputs=subject.inputs.to(device),
        targets=subject.targets.to(device),
    )


def _with_seed(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return build()

    return make


class Encoder(nn.Module):
    """A BERT-like classifier in plain layers, so that every library can differentiate it."""

    def __init__(
        self, *, layers: int, width: int, heads: int, length: int, vocabulary: int = 1000
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width).requires_grad_(False)
        self.places = nn.Embedding(length, width).requires_grad_(False)
        self.layers = nn.Sequential(*(EncoderLayer(width, heads) for _ in range(layers)))
        self.classifier = nn.Linear(width, 2)

    def forward(self, tokens: Int64[Tensor, "batch length"]) -> Float[Tensor, "batch classes"]:
        x = F.layer_norm(self.words(tokens) + self.places.weight, (self.words.embedding_dim,))
        logits: Tensor = self.classifier(self.layers(x)[:, 0])
        return logits


class EncoderLayer(nn.Module):
    """Attention and a feed-forward part, each added to its input and normalised."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.attended = nn.LayerNorm(width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.fed = nn.LayerNorm(width)

    def forward(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch length width"]:
        parts = [
            p(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for p in (self.query, self.key, self.value)
        ]
        seen = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self.attended(x + self.output(seen))
        y: Tensor = self.fed(x + self.narrow(F.gelu(self.widen(x))))
        return y


def parameters(model: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(math.prod(p.shape) for p in model.parameters() if p.requires_grad)
