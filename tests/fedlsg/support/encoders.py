"""A small text classifier with attention, and what is public about its texts, for the tests of text
attacks.
"""

import torch
from torch import Tensor, nn

from fedlsg.attacks.tokens import Vocabulary

PAD, BEGIN, END = 0, 1, 2
TOKENS, WIDTH, LONGEST = 60, 32, 16


class Embeddings(nn.Module):
    """x_t = LayerNorm(word + position + type), as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, WIDTH)
        self.positions = nn.Embedding(LONGEST, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.normal_(self.norm.bias)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x: Tensor = self.norm(
            self.words(input_ids) + 0.3 * self.positions(places) + self.types(types)
        )
        return x


class Encoder(nn.Module):
    """Embeddings, one attention layer, mean over the real tokens, classifier."""

    def __init__(self, *, seed: int = 0, frozen_attention: bool = False) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embeddings = Embeddings()
            self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
            self.out = nn.Linear(WIDTH, WIDTH)
            self.classifier = nn.Linear(WIDTH, 2)
        frozen = [
            self.embeddings,
            *([self.query, self.key, self.value] if frozen_attention else []),
        ]
        for module in frozen:
            module.requires_grad_(False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> Tensor:
        x = self.embeddings(input_ids, token_type_ids)
        scores = self.query(x) @ self.key(x).mT / WIDTH**0.5
        scores = scores.masked_fill(attention_mask[:, None, :] == 0, -1e9)
        mixed = torch.tanh(self.out(scores.softmax(-1) @ self.value(x)))
        real = attention_mask.unsqueeze(-1).to(x)
        features = (mixed * real).sum(1) / real.sum(1)
        logits: Tensor = self.classifier(features)
        return logits


def vocabulary(length: int, **changes: object) -> Vocabulary:
    """Of the encoder, for texts of ``length`` tokens."""
    settings = {"special": (PAD,), "pad": PAD, "words": "embeddings.words"} | changes
    return Vocabulary(embeddings="embeddings", size=TOKENS, length=length, **settings)


def texts(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    """Random texts with begin and end, padded to the longest: input_ids and attention_mask."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in enumerate(lengths):
        ids[row, :length] = torch.randint(3, TOKENS, (length,), generator=draw)
        ids[row, 0], ids[row, length - 1] = BEGIN, END
    return {"input_ids": ids, "attention_mask": (ids != PAD).long()}
