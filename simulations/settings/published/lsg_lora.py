"""Ito et al. 2024, selective updates through low-rank approximation (LSG on RGP or LoRA, in Japanese): section 4."""

from collections.abc import Iterator, Mapping

from simulations.settings.published.lsg import CONSTANT, DELTAS, FROZEN, JOINT, P0, SLIP
from simulations.settings.published.preset import POISSON, QNLI, SIGMA, Published, Value, central, published

PAPER = "LSG-LoRA (Ito et al. 2024)"

ADAM = "Adam, as in Yu et al. 2022, whom the paper follows. The paper names no optimizer."
SCALE = "LoRA's product is not rescaled (alpha = rank). The paper gives no alpha."
FIGURE_4 = "Figure 4 prints no numbers."
EPSILONS = (1, 2, 4, 8)

TABLE_2: Mapping[float, tuple[float, ...]] = {
    0.0: (83.9, 84.4, 86.8, 86.3),
    0.1: (84.9, 86.2, 86.7, 86.0),
    0.3: (86.0, 87.4, 87.9, 86.8),
    0.5: (87.2, 87.7, 88.3, 86.4),
    0.7: (86.5, 88.7, 86.3, 85.3),
}
"""SST-2 at epsilon 2, LSG on RGP: accuracy by sparsity, at ranks 2, 4, 8 and 16."""

TABLE_3: Mapping[float, tuple[float, ...]] = {
    0.0: (90.7, 91.0, 91.2, 90.2),
    0.1: (90.5, 91.1, 91.1, 90.5),
    0.3: (90.2, 90.7, 90.9, 90.6),
    0.5: (81.8, 90.0, 90.6, 90.8),
    0.7: (50.9, 74.2, 89.8, 90.6),
}
"""The same on LoRA, at ranks 8, 16, 32 and 64."""

TABLES = {"lsg": ("Table 2", (2, 4, 8, 16), TABLE_2), "lsg-lora": ("Table 3", (8, 16, 32, 64), TABLE_3)}
TABLE_1 = {
    "glue-sst2": {"lsg": (8, 0.5), "lsg-lora": (32, 0.1)},
    "glue-qnli": {"lsg": (8, 0.1), "lsg-lora": (32, 0.1)},
}
"""Rank and sparsity of Figure 4 by task; its baselines RGP and LoRA have ranks 8 and 32."""


def presets() -> Iterator[Published]:
    """The grids of Tables 2 and 3, and the methods, tasks and epsilons of Figure 4 that they leave out."""
    for method, (where, ranks, rows) in TABLES.items():
        for sparsity, accuracies in rows.items():
            for rank, accuracy in zip(ranks, accuracies, strict=True):
                yield _preset(method, "glue-sst2", 2, rank, sparsity, where, accuracy)
    for task, best in TABLE_1.items():
        for epsilon in EPSILONS:
            in_tables = (task, epsilon) == ("glue-sst2", 2)
            for method, (rank, sparsity) in best.items():
                if not in_tables:
                    yield _preset(method, task, epsilon, rank, sparsity, "Figure 4", None)
                    yield _preset(method, task, epsilon, rank, 0.0, "Figure 4", None)
            yield _preset("dpsgd", task, epsilon, None, 0.0, "Figure 4", None)
            yield _preset("sparse-dpsgd", task, epsilon, None, 0.5, "Figure 4", None)


def _preset(
    method: str, task: str, epsilon: int, rank: int | None, sparsity: float, where: str, accuracy: float | None
) -> Published:
    """RoBERTa-base, batches of 2,000, 20 epochs, learning rate 1e-3, C = 10, delta 1e-5."""
    if method == "lsg-lora" and sparsity == 0:
        method = "lora"
    choices: dict[str, Value] = {}
    if rank is not None:
        choices = {"rank": rank}
        if method != "lora":
            choices |= {"sparsity": sparsity, "direction": "top"}
        if method == "lsg":
            choices["power_steps"] = 1
    elif method == "sparse-dpsgd":
        choices = {"sparsity": sparsity, "refresh": False}
    settings = central(
        task, method, batch=2000, epochs=20, epsilon=epsilon, delta=DELTAS[task], model="roberta-base",
        optimizer="adam", learning_rate=1e-3, clip_norm=10.0, more=choices,
    )  # fmt: skip
    own: dict[str, tuple[str, ...]] = {
        "lsg": (JOINT,) if sparsity else (JOINT, P0),
        "lora": (SCALE,),
        "lsg-lora": (JOINT, SCALE),
        "sparse-dpsgd": ("The paper does not give the sparsity of this baseline.", FROZEN),
    }
    notes = [*((FIGURE_4,) if where == "Figure 4" else ()), *own.get(method, ()), ADAM, SLIP, CONSTANT, POISSON, SIGMA]
    notes += [QNLI] if task == "glue-qnli" else []
    short = _aliases(method, task, epsilon, rank, sparsity)
    return published(settings, PAPER, where, notes, accuracy=accuracy, aliases=short)


def _aliases(method: str, task: str, epsilon: int, rank: int | None, sparsity: float) -> tuple[str, ...]:
    """Short names of the paper's own choice (its Table 1) and of its baselines."""
    tail = f"{task.removeprefix('glue-')}-eps{epsilon:g}"
    chosen = TABLE_1[task] | {"lora": (32, 0.0), "sparse-dpsgd": (None, 0.5)}
    if chosen.get(method) == (rank, sparsity):
        return (f"{method}-{tail}",)
    return (f"rgp-{tail}",) if method == "lsg" and (rank, sparsity) == (8, 0.0) else ()
