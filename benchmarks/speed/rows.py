"""CPU seconds of rows that are made one at a time, next to whole batches as they were made before.

    python -m benchmarks.speed.rows --json FILE [--steps 1000] [--batch 256]

Two arms train the same model by ``PrivateStep``, a step each in random order: ``one by one``, and
``before``: all items of a batch, or one call of the function, and ``default_collate``, without
seeds of a row. A third one, where Opacus is installed, is its ``make_private`` with Poisson batches
on a DataLoader of the same items, in this process, which ``before`` puts together. A ratio is the
median over the steps of ``one by one`` over the other arm. Data: tensors; tensors by
``__getitem__``; images with a random flip and crop; ragged texts, padded to the longest of the
batch before, in buckets now; a function of positions, for one position and ``batched``.
"""

import argparse
import importlib.util
import json
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from benchmarks.pairs import Estimate, estimate
from fedlsg import PrivateStep
from fedlsg.strategies.own_loop.user_inputs import Together

COUNT = 8192
CPU = torch.device("cpu")
DRAW = torch.Generator().manual_seed(0)
VECTORS = torch.randn(COUNT, 64, generator=DRAW)
LABELS = torch.randint(10, (COUNT,), generator=DRAW)
IMAGES = torch.rand(COUNT, 3, 32, 32, generator=DRAW)
LENGTHS = torch.randint(4, 60, (COUNT,), generator=DRAW).tolist()
TEXTS = [torch.randint(1, 1000, (length,), generator=DRAW) for length in LENGTHS]


class Items(Dataset[Any]):
    """Items one by one, by a function of their place."""

    def __init__(self, item: Callable[[int], Any]) -> None:
        self.item = item

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, place: int) -> Any:
        return self.item(place)


def vector(place: int) -> tuple[Tensor, int]:
    """A row of a tensor."""
    return VECTORS[place], int(LABELS[place])


def augmented(place: int) -> tuple[Tensor, int]:
    """An image, flipped and cropped by chance."""
    image = IMAGES[place].flip(2) if random.random() < 0.5 else IMAGES[place]
    top, left = random.randrange(9), random.randrange(9)
    return F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32], int(LABELS[place])


def text(place: int) -> tuple[Tensor, int]:
    """A text of its own length."""
    return TEXTS[place], int(LABELS[place])


def vectors(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of a tensor, by a function."""
    return VECTORS[positions], LABELS[positions]


def padded(positions: Tensor) -> tuple[Tensor, Tensor]:
    """Texts, padded to the longest of the batch."""
    return pad_sequence([TEXTS[place] for place in positions.tolist()], batch_first=True), LABELS[
        positions
    ]


def collated(item: Callable[[int], Any]) -> Callable[[Tensor], Any]:
    """Items of a batch as they were put together before."""
    return lambda positions: default_collate([item(place) for place in positions.tolist()])


class Words(nn.Module):
    """Sums of embeddings, and a layer; padding counts nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(1000, 32, padding_idx=0), nn.Linear(32, 10)
        self.table.weight.requires_grad_(False)

    def forward(self, ids: Tensor) -> Any:
        return self.head(torch.tanh(self.table(ids)).sum(1))


def dense() -> nn.Module:
    """A network of two layers."""
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.Tanh(), nn.Linear(64, 10))


Case = tuple[Callable[[], nn.Module], Any, dict[str, Any], Callable[[Tensor], Any]]
CASES: dict[str, Case] = {
    "tensors": (dense, (VECTORS, LABELS), {}, vectors),
    "tensors by __getitem__": (dense, Items(vector), {}, collated(vector)),
    "images, flip and crop": (dense, Items(augmented), {}, collated(augmented)),
    "ragged texts, own lengths": (Words, Items(text), {}, padded),
    "ragged texts, pad=0": (Words, Items(text), {"pad": 0}, padded),
    "a function, for one position": (dense, vectors, {}, vectors),
    "a function, batched=True": (dense, vectors, {"batched": True}, vectors),
}


class Whole(Together):
    """A batch as it was made before: one call, without draws of its own."""

    def __call__(self, positions: Tensor) -> Any:
        return self._function(positions)


def trained(make: Callable[[], nn.Module], example: Tensor, batch: int, steps: int) -> PrivateStep:
    """A step on a new model."""
    model = make()
    model(example)
    return PrivateStep(
        model,
        nn.CrossEntropyLoss(),
        num_examples=COUNT,
        method="dpsgd",
        sample_rate=batch / COUNT,
        steps=steps,
        noise_multiplier=1.0,
        delta=1e-5,
        learning_rate=0.1,
    )


def by_opacus(
    make: Callable[[], nn.Module], example: Tensor, before: Callable[[Tensor], Any], batch: int
) -> Callable[[], None] | None:
    """A step of Opacus; None where it is not installed."""
    if importlib.util.find_spec("opacus") is None:
        return None
    from opacus import PrivacyEngine

    model = make()
    model(example)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader: Any = DataLoader(
        TensorDataset(torch.arange(COUNT)),
        batch_size=batch,
        collate_fn=lambda places: before(torch.stack([place for (place,) in places])),
    )
    model, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    batches = iter(batch for _ in iter(int, 1) for batch in loader)

    def step() -> None:
        inputs, targets = next(batches)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def measure(name: str, batch: int, steps: int) -> dict[str, Any]:
    """Milliseconds of a step of each arm, ratios, and microseconds of a row."""
    make, data, how, before = CASES[name]
    example = before(torch.arange(2))[0]
    own, whole = (trained(make, example, batch, steps + 2) for _ in range(2))
    rows, batches = own.batches(data, **how), Whole(before, CPU)
    whole._rehearsals.before = lambda *given: None  # type: ignore[method-assign]
    arms: dict[str, Callable[[], Any]] = {
        "one by one": lambda: own.step(rows),
        "before": lambda: whole.step(batches),
    }
    if (opacus := by_opacus(make, example, before, batch)) is not None:
        arms["opacus"] = opacus
    spent: dict[str, list[float]] = {arm: [] for arm in arms}
    order = random.Random(0)
    for number in range(steps + 2):
        # the arm after Opacus finds the caches of the processor cold: no arm is it more often
        for arm in order.sample(list(arms), len(arms)):
            start = time.process_time()
            arms[arm]()
            if number >= 2:
                spent[arm].append(time.process_time() - start)
    medians: dict[str, Estimate] = {arm: estimate(seconds) for arm, seconds in spent.items()}
    ratios = {}
    for arm in list(arms)[1:]:
        pairs = zip(spent["one by one"], spent[arm], strict=True)
        ratios[arm] = str(estimate([now / other for now, other in pairs]))
    now, then = medians["one by one"].median, medians["before"].median
    return {
        "milliseconds": {arm: 1e3 * found.median for arm, found in medians.items()},
        "ratios": ratios,
        "microseconds_a_row": 1e6 * (now - then) / batch,
    }


def main() -> None:
    """Measure all cases, print and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=256)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    found = {}
    for name in CASES:
        found[name] = measure(name, given.batch, given.steps)
        print(name, found[name], flush=True)
    given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
