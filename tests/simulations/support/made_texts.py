"""Made texts in the layout of the hub, and a tiny BERT with its own vocabulary, for tests without a
network.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

WORDS = (
    "good",
    "bad",
    "film",
    "plot",
    "a",
    "the",
    "is",
    "not",
    "very",
    "dull",
    "fine",
    "we",
    "saw",
    "it",
    "##s",
    ".",
)
VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS)


def make_bert(
    folder: Path,
    *,
    layers: int = 3,
    classes: int = 2,
    base_only: bool = False,
    positions: int = 32,
    spread: float = 0.02,
) -> Path:
    """A folder with a random BERT of 16 hidden units and its tokenizer, as transformers saves them.

    spread: standard deviation of the weights. With 1 the rounding of half precision shows in the
    gradients.
    """
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizer

    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=positions,
        num_labels=classes,
        initializer_range=spread,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        (BertModel(config) if base_only else BertForSequenceClassification(config)).save_pretrained(
            folder
        )
    folder.joinpath("vocab.txt").write_text("\n".join(VOCABULARY))
    vocabulary = {word: number for number, word in enumerate(VOCABULARY)}
    BertTokenizer(vocab=vocabulary, model_max_length=positions).save_pretrained(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[str]:
    """Texts of 1 to 9 words of the vocabulary."""
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS[:14], size=draw.integers(1, 10))) for _ in range(count)]


def write_split(
    folder: Path,
    split: str,
    columns: Mapping[str, Sequence[object]],
    *,
    class_names: Sequence[str] | None = None,
) -> None:
    """One shard of a split; ``class_names`` are published as the hub's library does it."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(dict(columns))
    if class_names is not None:
        names = ", ".join(f'"{name}"' for name in class_names)
        published = f'{{"info": {{"features": {{"label": {{"names": [{names}], "_type": "ClassLabel"}}}}}}}}'
        table = table.replace_schema_metadata({"huggingface": published})
    pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def write_sst2(root: Path, *, train: int, validation: int) -> Path:
    """SST-2 with so many rows in its splits; returns its folder. Labels alternate."""
    folder = root / "glue" / "sst2"
    for seed, (split, count) in enumerate((("train", train), ("validation", validation))):
        write_split(
            folder,
            split,
            {"sentence": sentences(count, seed), "label": [row % 2 for row in range(count)]},
        )
    return folder


def write_pairs(
    root: Path, subset: str, names: tuple[str, str], splits: Mapping[str, int], classes: int
) -> None:
    """A GLUE task of pairs: ``splits`` gives the rows of each; labels go round the classes."""
    for number, (split, count) in enumerate(splits.items()):
        columns = {
            names[0]: sentences(count, 2 * number),
            names[1]: sentences(count, 2 * number + 1),
            "label": [row % classes for row in range(count)],
            "idx": list(range(count)),
        }
        write_split(root / "glue" / subset, split, columns)
