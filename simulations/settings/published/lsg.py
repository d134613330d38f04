"""Ito et al. 2023, "Scaling Private Deep Learning with Low-Rank and Sparse Gradients" (LSG): sections 4.1 to 4.3.

Ito et al. 2024, selective updates through low-rank approximation (LSG on RGP or LoRA, in Japanese): section 4.
"""

from collections.abc import Iterator, Mapping

from simulations.settings.published.preset import POISSON, QNLI, QNLI_DELTA, SIGMA, Published, Value, central, published

PAPER = "LSG (Ito et al. 2023)"

JOINT = "One joint clip to C over all blocks. The paper clips each dL and dR to C, and its epsilon does not cover that."
P0 = "The paper's RGP baseline: carriers of W, no mask (p = 0)."
CHOSEN = "The paper does not give the rank and sparsity of this number: r and p are our choice."
STEPS = (
    "Learning rate 0.5 to 4e-3. The paper only says that it jumps at epoch 160. 4e-3 is 0.5 / 5^3: RGP's code divides "
    "it by 5 at 30, 60 and 80 % of the run, the last time at epoch 160 of 200."
)
DECAY = "Momentum is 0.9 and weight decay 1e-4 (dense: 0) as in RGP's code. The paper gives neither."
SIZE = "The paper says that WRN-28-4 has 1.5 M parameters. It has 5.8 M."
SLIP = "The paper says that RoBERTa-base has 1.25 M parameters. It has 125 M."
CONSTANT = "The learning rate is constant. The paper names no schedule."
FROZEN = (
    "Weights are frozen by pre-trained magnitude for the whole run. The paper does not say if it refreshes the mask."
)
REFRESHED = (
    "The mask follows the current weights, because initial weights are random. The paper does not say which it uses."
)
FIGURE_4 = "Figure 4 prints no numbers. r and p are the best ones of Table 1 for this task or a similar one."

RANKS = (2, 4, 8)
TABLE_1: Mapping[str, tuple[float, Mapping[float, tuple[float | None, ...]]]] = {
    "glue-sst2": (3.3, {
        0.0: (85.4, 87.9, 88.3, 81.0),
        0.1: (87.3, 88.6, 89.0, 80.9),
        0.3: (88.3, 89.6, 89.9, 80.5),
        0.5: (89.4, 90.4, None, 80.3),
    }),
    "glue-qqp": (3.4, {
        0.0: (82.8, 82.8, 83.1, 71.1),
        0.1: (83.3, 83.3, 83.3, 71.2),
        0.3: (83.9, 83.7, 83.8, 71.7),
        0.5: (83.8, 83.6, 83.6, 71.5),
    }),
}  # fmt: skip
"""Accuracy at an epsilon by sparsity, at ranks 2, 4, 8 and full. The cell of SST-2 at r = 8, p = 0.5 is unreadable."""

UNREADABLE = "This cell is unreadable in our copy of the paper."
SMALL, LARGE = (1.2, 1.6, 3.3, 6.5), (0.9, 1.7, 3.4, 6.7)
EPSILONS = {"glue-sst2": SMALL, "glue-qnli": SMALL, "glue-qqp": LARGE, "glue-mnli": LARGE}
DELTAS = {"glue-sst2": 1e-5, "glue-qnli": QNLI_DELTA, "glue-qqp": 1e-6, "glue-mnli": 1e-6}
BEST = {"glue-sst2": (4, 0.5), "glue-qnli": (4, 0.5), "glue-qqp": (2, 0.3), "glue-mnli": (2, 0.3)}

TABLE_2: Mapping[str, tuple[float, ...]] = {
    "lsg": (42.2, 50.9, 58.1, 62.5),
    "rgp": (41.5, 50.4, 57.2, 61.9),
    "sparse-dpsgd": (23.4, 35.2, 48.4, 60.2),
    "dpsgd": (23.2, 35.1, 48.4, 59.9),
}
ROBERTA: Mapping[str, float] = {"glue-mnli": 87.6, "glue-qnli": 92.8, "glue-qqp": 91.9, "glue-sst2": 94.8}
"""Row N.P. of Figure 4: RoBERTa-base without privacy on the development sets."""

QUOTED = (
    "N.P. of Figure 4, which the paper quotes from Liu et al. 2019 (RoBERTa) without a number, as LSG-LoRA (Ito et al. "
    "2024) does in its Figure 4. The number is that of RoBERTa's published table: the development set, one model."
)
FINE_TUNED = (
    "Batch 32, 10 epochs, AdamW with betas 0.9 and 0.98, learning rate 1e-5 and weight decay 0.1 are the settings that "
    "RoBERTa's code names for these tasks."
)
NO_WARM_UP = (
    "fedlsg has no warm-up: theirs is 6 % of the updates (QQP: 25 %) and then linear to 0, ours is linear to 0 from "
    "the start. Their dropout of 0.1 is left out, as in all runs of fedlsg."
)

VISION_EPSILONS = (0.8, 1.7, 3.3, 6.8)
VISION_RANK, VISION_SPARSITY = 16, 0.3


def presets() -> Iterator[Published]:
    """Table 1 (a grid for two tasks), Figure 4 (its other epsilons and tasks), Table 2, and Figure 5's grid."""
    for workload, (epsilon, rows) in TABLE_1.items():
        where = "Table 1" + {"glue-sst2": "a", "glue-qqp": "b"}[workload]
        for sparsity, accuracies in rows.items():
            for rank, accuracy in zip((*RANKS, None), accuracies, strict=True):
                yield _text(workload, epsilon, rank, sparsity, where, accuracy)
    for workload, epsilons in EPSILONS.items():
        for epsilon in epsilons:
            if workload in TABLE_1 and epsilon == TABLE_1[workload][0]:
                continue
            rank, sparsity = BEST[workload]
            for r, p in ((rank, sparsity), (rank, 0.0), (None, sparsity), (None, 0.0)):
                yield _text(workload, epsilon, r, p, "Figure 4", None)
    for workload, accuracy in ROBERTA.items():
        yield _non_private_text(workload, accuracy)
    for method, accuracies in TABLE_2.items():
        for epsilon, accuracy in zip(VISION_EPSILONS, accuracies, strict=True):
            yield _table_2(method, epsilon, accuracy)
    for rank in (2, 4, 8, 16):
        for sparsity in (0.0, 0.1, 0.3, 0.5):
            if (rank, sparsity) not in ((VISION_RANK, VISION_SPARSITY), (VISION_RANK, 0.0)):
                yield _low_rank_vision(3.3, rank, sparsity, "Figure 5", None, ("Figure 5 prints no numbers.",))
    yield _non_private()


def _text(
    workload: str, epsilon: float, rank: int | None, sparsity: float, where: str, accuracy: float | None
) -> Published:
    """RoBERTa-base on a GLUE task; ``rank=None`` is the column "full"."""
    choices: dict[str, Value] = {}
    method = "lsg" if rank is not None else "sparse-dpsgd" if sparsity else "dpsgd"
    notes = [SLIP, CONSTANT, POISSON, SIGMA]
    if rank is not None:
        choices = {"rank": rank, "sparsity": sparsity, "power_steps": 1, "direction": "top"}
        notes = [JOINT, *([] if sparsity else [P0]), *notes]
    elif sparsity:
        choices = {"sparsity": sparsity, "refresh": False}
        notes = [FROZEN, *notes]
    if workload == "glue-qnli":
        notes.append(QNLI)
    if accuracy is None:
        notes.insert(0, FIGURE_4 if where == "Figure 4" else UNREADABLE)
    settings = central(
        workload, method, batch=2000, epochs=20, epsilon=epsilon, delta=DELTAS[workload], model="roberta-base",
        optimizer="adam", learning_rate=1e-3, clip_norm=10.0, more=choices,
    )  # fmt: skip
    short = _aliases(method, workload, epsilon, rank, sparsity)
    return published(settings, PAPER, where, notes, accuracy=accuracy, aliases=short)


def _aliases(method: str, workload: str, epsilon: float, rank: int | None, sparsity: float) -> tuple[str, ...]:
    """Short names of the best row of a task and epsilon: of LSG, of its RGP (p = 0), of Sparse DP-SGD."""
    tail = f"{workload.removeprefix('glue-')}-eps{epsilon:g}"
    if (rank, sparsity) == BEST[workload]:
        return (f"lsg-{tail}",)
    in_table = workload in TABLE_1 and epsilon == TABLE_1[workload][0]
    if method == "sparse-dpsgd":
        best = {"glue-sst2": 0.1, "glue-qqp": 0.3}[workload] if in_table else BEST[workload][1]
        return (f"{method}-{tail}",) if sparsity == best else ()
    best_rgp = 8 if in_table else BEST[workload][0]
    return (f"rgp-{tail}",) if rank == best_rgp and sparsity == 0 else ()


def _table_2(method: str, epsilon: float, accuracy: float) -> Published:
    if method in ("lsg", "rgp"):
        sparsity = VISION_SPARSITY if method == "lsg" else 0.0
        return _low_rank_vision(epsilon, VISION_RANK, sparsity, "Table 2", accuracy, (CHOSEN,), (f"{method}-cifar10",))
    sparse: dict[str, Value] = {"sparsity": VISION_SPARSITY, "refresh": True} if method == "sparse-dpsgd" else {}
    settings = central(
        "cifar10", method, batch=350, epochs=100, epsilon=epsilon, delta=1e-5, model="wrn-28-4", optimizer="sgd",
        momentum=0.9, learning_rate=0.5, schedule="step", final_learning_rate=4e-3, clip_norm=5.0, more=sparse,
    )  # fmt: skip
    notes = (*((CHOSEN, REFRESHED) if sparse else ()), SIZE, STEPS, DECAY, POISSON, SIGMA)
    names = (f"sparse-dpsgd-cifar10-eps{epsilon:g}",) if sparse else ()
    return published(settings, PAPER, "Table 2", notes, accuracy=accuracy, aliases=names)


def _low_rank_vision(
    epsilon: float, rank: int, sparsity: float, where: str, accuracy: float | None, notes: tuple[str, ...],
    short: tuple[str, ...] = (),
) -> Published:  # fmt: skip
    """WRN-28-4 on CIFAR-10 from scratch, LSG or, at p = 0, the paper's RGP."""
    settings = _wrn_28_4(epsilon, rank=rank, sparsity=sparsity, clip_norm=1.0, delta=1e-5)
    notes = (*notes, JOINT, *(() if sparsity else (P0,)), SIZE, STEPS, DECAY, POISSON, SIGMA)
    names = tuple(f"{name}-eps{epsilon:g}" for name in short)
    return published(settings, PAPER, where, notes, accuracy=accuracy, aliases=names)


def _wrn_28_4(epsilon: float | None, **private: Value) -> dict[str, Value]:
    return central(
        "cifar10", "lsg", batch=1000, epochs=200, epsilon=epsilon, model="wrn-28-4", optimizer="sgd", momentum=0.9,
        weight_decay=1e-4, learning_rate=0.5, schedule="step", final_learning_rate=4e-3, power_steps=1,
        direction="top", more=private,
    )  # fmt: skip


def _non_private_text(workload: str, accuracy: float) -> Published:
    """RoBERTa-base without privacy, as its authors train it."""
    settings = central(
        workload, "sgd", batch=32, epochs=10, epsilon=None, model="roberta-base", optimizer="AdamW",
        learning_rate=1e-5, schedule="linear", weight_decay=0.1,
        more={"optimizer_options": "betas=0.9 0.98, eps=1e-6"},
    )  # fmt: skip
    return published(settings, PAPER, "Figure 4", (QUOTED, FINE_TUNED, NO_WARM_UP), accuracy=accuracy)


def _non_private() -> Published:
    """The row N.P. of Table 2, quoted there from RGP's paper, is that paper's preset."""
    settings = _wrn_28_4(None, rank=VISION_RANK, sparsity=VISION_SPARSITY)
    notes = ("Not in the paper: LSG without clip and noise, an upper bound for its Table 2.", STEPS, DECAY)
    return published(settings, PAPER, "no table", notes, aliases=("lsg-cifar10-nonprivate",))


LSG_LORA = "LSG-LoRA (Ito et al. 2024)"

ADAM = "Adam, as in Yu et al. 2022, whom the paper follows. The paper names no optimizer."
SCALE = "LoRA's product is not rescaled (alpha = rank). The paper gives no alpha."
NO_NUMBERS = "Figure 4 prints no numbers."
LORA_EPSILONS = (1, 2, 4, 8)

LORA_TABLE_2: Mapping[float, tuple[float, ...]] = {
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

TABLES = {"lsg": ("Table 2", (2, 4, 8, 16), LORA_TABLE_2), "lsg-lora": ("Table 3", (8, 16, 32, 64), TABLE_3)}
BEST_OF_TASK = {
    "glue-sst2": {"lsg": (8, 0.5), "lsg-lora": (32, 0.1)},
    "glue-qnli": {"lsg": (8, 0.1), "lsg-lora": (32, 0.1)},
}
"""Rank and sparsity of Figure 4 by task; its baselines RGP and LoRA have ranks 8 and 32."""


def lora_presets() -> Iterator[Published]:
    """The grids of Tables 2 and 3, and the methods, tasks and epsilons of Figure 4 that they leave out."""
    for method, (where, ranks, rows) in TABLES.items():
        for sparsity, accuracies in rows.items():
            for rank, accuracy in zip(ranks, accuracies, strict=True):
                yield _preset(method, "glue-sst2", 2, rank, sparsity, where, accuracy)
    for task, best in BEST_OF_TASK.items():
        for epsilon in LORA_EPSILONS:
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
    notes = [
        *((NO_NUMBERS,) if where == "Figure 4" else ()),
        *own.get(method, ()),
        ADAM,
        SLIP,
        CONSTANT,
        POISSON,
        SIGMA,
    ]
    notes += [QNLI] if task == "glue-qnli" else []
    short = _lora_aliases(method, task, epsilon, rank, sparsity)
    return published(settings, LSG_LORA, where, notes, accuracy=accuracy, aliases=short)


def _lora_aliases(method: str, task: str, epsilon: int, rank: int | None, sparsity: float) -> tuple[str, ...]:
    """Short names of the paper's own choice (its Table 1) and of its baselines."""
    tail = f"{task.removeprefix('glue-')}-eps{epsilon:g}"
    chosen = BEST_OF_TASK[task] | {"lora": (32, 0.0), "sparse-dpsgd": (None, 0.5)}
    if chosen.get(method) == (rank, sparsity):
        return (f"{method}-{tail}",)
    return (f"rgp-{tail}",) if method == "lsg" and (rank, sparsity) == (8, 0.0) else ()
