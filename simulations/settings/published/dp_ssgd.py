"""De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale", on CIFAR-10.

Weight standardisation, group norm, 16 augmented copies an example, a moving average of the weights, large batches,
large learning rates, no momentum. Two of their wide ResNets, and the same recipe on the CNN of this repository.

Adamczewski et al. 2023, "Pre-Pruning and Gradient-Dropping Improve Differentially Private Image Classification".
"""

from collections.abc import Iterator, Mapping
from itertools import product

from simulations.settings.published.preset import SIGMA, Published, Value, central, published

DE_ET_AL_PAPER = "De et al. (2022)"

DE_ET_AL_UPDATES: Mapping[int, int] = {1: 875, 2: 1125, 3: 1593, 4: 1687, 6: 1843, 8: 2468}
"""By epsilon, see ``COUNTS``."""

MODELS = ("wrn-16-4-ws", "wrn-40-4-ws", "cnn-wide-ws")
ABSTRACT = {("wrn-40-4-ws", 8): 81.4}
"""The accuracy that the abstract names."""

CONFIG = (
    "Batch 4,096, learning rate 2, C = 1, 16 flipped and cropped copies an example and EMA 0.9999 are from the "
    "published configuration of WRN-16-4 at epsilon 1. The paper tunes the learning rate for each model and epsilon."
)
WARM_UP = (
    "The average of the weights has decay min(0.9999, (1 + t) / (10 + t)) after t updates, so here the warm-up decides."
)
BY_RDP = "{} updates at their noise multiplier {} are epsilon {} by RDP."
NOT_CHECKED = (
    "The number of updates is not checked against the paper: at noise multiplier {} it gives epsilon {} by RDP{}."
)
COUNTS: Mapping[int, str] = {
    1: BY_RDP.format("875", 10, 0.99),
    2: BY_RDP.format("1,125", 6, "2.00"),
    3: NOT_CHECKED.format(5, 2.98, ""),
    4: BY_RDP.format("1,687", 4, "4.00"),
    6: NOT_CHECKED.format(3, 5.95, ""),
    8: NOT_CHECKED.format(3, 7.98, " on the 45,000 images of the paper's tuning, and 7.05 on all"),
}
SAME = "The number of updates is that of WRN-16-4."
NUMBER = "The paper prints an accuracy for this row. It is not given here, for we have only the abstract."
OURS = "The paper trains no such CNN: 505,098 parameters, with weight-standardised convolutions and 16 groups."


def de_et_al_presets() -> Iterator[Published]:
    """Six epsilons for each of three models."""
    for model, (epsilon, updates) in product(MODELS, DE_ET_AL_UPDATES.items()):
        settings = central(
            "cifar10", "dpsgd", batch=4096, rounds=updates, epsilon=epsilon, delta=1e-5, model=model, optimizer="sgd",
            momentum=0.0, learning_rate=2.0, clip_norm=1.0,
            more={"augment": "flip-crop", "multiplicity": 16, "ema": 0.9999},
        )  # fmt: skip
        wide, accuracy = model.startswith("wrn"), ABSTRACT.get((model, epsilon))
        own = () if accuracy else (NUMBER,) if wide else (OURS,)
        notes = (*own, CONFIG, COUNTS[epsilon], *(() if model == MODELS[0] else (SAME,)), WARM_UP, SIGMA)
        short = (f"de2022-{model.removesuffix('-ws')}-eps{epsilon}",)
        where = "Table 2" if wide else "CNN"
        yield published(
            settings, DE_ET_AL_PAPER, where, notes, accuracy=accuracy, aliases=short, suffix="-de2022"
        )  # fmt: skip


PAPER = "DP-SSGD (Adamczewski et al. 2023)"

DE_ET_AL = (
    "Batch 4,096, learning rate 2, C = 1, 16 flipped and cropped copies an example, EMA 0.999 and {} updates are from "
    "De et al. 2022, whose training the paper builds on. The paper prints none of them."
)
FINE_TUNED = (
    "Batch 16,384, learning rate 1, C = 1, 16 copies an example, EMA 0.9 and 250 updates are from the published "
    "fine-tuning of CIFAR-100 at epsilon 1 by De et al. 2022. The paper prints none of them."
)
ONE_RUN = (
    "One run of the paper also gave the results of the smaller epsilons. That may be why its own row of De et al. is "
    "below their result."
)
IMAGENET = (
    "Batch 16,384, learning rate 4, C = 1, 4 flipped and cropped copies an example are from the "
    "published configuration of De et al. 2022, which is for epsilon 8 and has 71,589 updates and EMA 0.99999. The "
    "paper prints no setting. 2,346 updates (30 epochs) and EMA 0.999 are our choice."
)
IMAGENET_DELTA = "delta is 7.8e-7. Their 8e-7 is above 1/N = 7.81e-7, and such a delta gives no protection."
RESNET = "ResNet-50 with group norm. De et al. train one without norms (NF-ResNet-50); the paper says ResNet-50."
IMAGENET_RATES = "The paper gives rates for CIFAR-10 alone (Appendix F). These are the rates of its best cell there."
PRETRAINED = (
    "Needs weights pre-trained on ImageNet at 32 x 32: -c pretrained=FOLDER. examples/convert_weights.py makes it "
    "of the checkpoint WRN_28_10_IMAGENET32 of De et al."
)
RATES = "In Appendix F pre-pruning 0.3 and dropping 0.5 at random give this number (57.45 ± 0.09)."
RATES_ELSEWHERE = "The paper gives rates only for epsilon 1 (Appendix F). These are the rates of its best cell."
PRUNE_RATE = "The rate is the best one of Appendix F at epsilon 1. There it gives 57.06 ± 0.49, not 57.36."
DROP_RATE = "The rate is the best one of Appendix F at epsilon 1 (57.20 ± 0.73)."
SYNFLOW = "SynFlow is the best criterion at high rates in Figure 1. The table does not say which criterion it used."
BASELINE = "Appendix F has 56.00 ± 0.55 for the same run without both tools."
COMBINED = "Appendix G does not combine the tools. The rates, 0.2 and 0.2, are the best rate of each tool alone."
CONFLICT = {
    "pre-pruning": "This number is from Table 5, which prints 67.64. Table 1 prints 68.64.",
    "dropping": "This number is from Table 5, which prints 65.85. Table 1 prints 65.68.",
}

TABLE_1: Mapping[str, tuple[tuple[float, float], ...]] = {
    "dp-ssgd": ((57.45, 0.23), (64.03, 0.19), (68.89, 0.27)),
    "pre-pruning": ((57.36, 0.49), (63.67, 0.17), (68.62, 0.25)),
    "dropping": ((57.20, 0.34), (63.43, 0.15), (68.70, 0.31)),
    "baseline": ((56.80, 0.21), (63.49, 0.11), (68.58, 0.22)),
}
"""CIFAR-10, WRN-16-4 from scratch at epsilon 1, 2, 4: mean and standard deviation of 5 runs (Table 2)."""

TABLE_3: Mapping[str, tuple[tuple[float, float], ...]] = {
    "dp-ssgd": ((2.64, 0.22), (6.78, 0.18)),
    "pre-pruning": ((2.61, 0.15), (6.42, 0.17)),
    "dropping": ((2.55, 0.14), (6.21, 0.19)),
    "baseline": ((2.43, 0.17), (6.09, 0.11)),
}
"""ImageNet, ResNet-50 from scratch at epsilon 0.5 and 1: mean and standard deviation of 5 runs (means in Table 1)."""
RATES_OF = {"dp-ssgd": (0.3, 0.5), "pre-pruning": (0.9, 0.0), "dropping": (0.0, 0.8), "baseline": (0.0, 0.0)}
"""Rates of pruning and dropping of each row."""

UPDATES = {epsilon: DE_ET_AL_UPDATES[epsilon] for epsilon in (1, 2, 4)}

TABLE_5: Mapping[str, Mapping[float, tuple[tuple[float, float], tuple[float, float]]]] = {
    "baseline": {0.0: ((94.65, 0.18), (67.40, 0.31))},
    "pre-pruning": {
        0.2: ((94.75, 0.14), (67.64, 0.28)),
        0.4: ((94.60, 0.13), (67.15, 0.40)),
        0.6: ((94.69, 0.12), (67.03, 0.47)),
        0.8: ((94.35, 0.20), (66.48, 0.37)),
    },
    "dropping": {
        0.2: ((94.69, 0.04), (65.85, 0.64)),
        0.4: ((94.30, 0.08), (62.84, 0.10)),
        0.6: ((94.05, 0.10), (58.08, 0.60)),
        0.8: ((92.81, 0.24), (47.56, 1.50)),
    },
}
"""WRN-28-10 pre-trained on ImageNet at epsilon 1, by rate: CIFAR-10 and CIFAR-100."""

TABLE_4 = ((94.84, 0.16), (67.74, 0.31))
"""The same with both tools, their rates not given."""


SCRATCH: Mapping[str, Value] = {"model": "wrn-16-4-ws", "learning_rate": 2.0, "multiplicity": 16, "ema": 0.999}
RESNET_50: Mapping[str, Value] = {"model": "resnet-50", "learning_rate": 4.0, "multiplicity": 4, "ema": 0.999}
WIDE: Mapping[str, Value] = {"model": "wrn-28-10-gain", "learning_rate": 1.0, "multiplicity": 16, "ema": 0.9}
PAIR = ("cifar10", "cifar100")


def presets() -> Iterator[Published]:
    """CIFAR-10 and ImageNet from scratch (Tables 1 and 3) and, pre-trained, CIFAR-10 and CIFAR-100 (Tables 1, 4, 5)."""
    for row, cells in TABLE_1.items():
        for epsilon, cell in zip(UPDATES, cells, strict=True):
            own = (*_scratch_notes(row, epsilon), DE_ET_AL.format(f"{UPDATES[epsilon]:,}"))
            notes = (*own, *((ONE_RUN,) if epsilon > 1 else ()))
            short = (f"dp-ssgd-cifar10-eps{epsilon}",) if row == "dp-ssgd" else ()
            yield _row("cifar10", SCRATCH, epsilon, *RATES_OF[row], "Table 1", cell, notes, short,
                       batch=4096, rounds=UPDATES[epsilon])  # fmt: skip
    for row, cells in TABLE_3.items():
        prune, drop = RATES_OF[row]
        own = (*((IMAGENET_RATES,) if prune or drop else ()), *((SYNFLOW,) if prune else ()))
        for small, cell in zip((0.5, 1.0), cells, strict=True):
            yield _row("imagenet", RESNET_50, small, prune, drop, "Table 3", cell,
                       (*own, IMAGENET, IMAGENET_DELTA, RESNET), batch=16384, rounds=2346, delta=7.8e-7)  # fmt: skip
    pretrained = [
        (row, rate, cell, workload)
        for row, rates in TABLE_5.items()
        for rate, pair in rates.items()
        for workload, cell in zip(PAIR, pair, strict=True)
    ]
    for row, rate, cell, workload in pretrained:
        prune, drop = (rate, 0.0) if row == "pre-pruning" else (0.0, rate)
        conflict = (CONFLICT[row],) if (rate, workload) == (0.2, "cifar100") else ()
        yield _row(workload, WIDE, 1, prune, drop, "Table 5", cell, (*conflict, PRETRAINED, FINE_TUNED))
    for workload, cell in zip(PAIR, TABLE_4, strict=True):
        short = ("dp-ssgd-cifar100-eps1",) if workload == "cifar100" else ()
        yield _row(workload, WIDE, 1, 0.2, 0.2, "Table 4", cell, (COMBINED, PRETRAINED, FINE_TUNED), short)


def _scratch_notes(row: str, epsilon: int) -> tuple[str, ...]:
    """What a row of Table 1 leaves open."""
    rates = RATES if epsilon == 1 else RATES_ELSEWHERE
    baseline = (BASELINE,) if epsilon == 1 else ()
    return {"dp-ssgd": (rates, SYNFLOW), "pre-pruning": (PRUNE_RATE, SYNFLOW), "dropping": (DROP_RATE,)}.get(
        row, baseline
    )


def _row(
    workload: str, training: Mapping[str, Value], epsilon: float, prune: float, drop: float, where: str,
    cell: tuple[float, float], notes: tuple[str, ...], short: tuple[str, ...] = (), *, batch: int = 16384,
    rounds: int = 250, delta: float = 1e-5,
) -> Published:  # fmt: skip
    method, choices, suffix = _tools(prune, drop)
    settings = central(
        workload, method, batch=batch, rounds=rounds, epsilon=epsilon, delta=delta, optimizer="sgd", momentum=0.0,
        clip_norm=1.0, more={**training, **choices, "augment": "flip-crop"},
    )  # fmt: skip
    return published(
        settings, PAPER, where, (*notes, SIGMA), accuracy=cell[0], spread=cell[1], aliases=short, suffix=suffix
    )


def _tools(prune: float, drop: float) -> tuple[str, dict[str, Value], str]:
    """Recipe, its settings, and the suffix of the name: the rate of a single tool, else nothing."""
    if not prune and not drop:
        return "dpsgd", {}, ""
    choices: dict[str, Value] = {"prune": "none", "drop": "none"}
    if prune:
        choices |= {"prune": "synflow", "prune_rate": prune}
    if drop:
        choices |= {"drop": "random", "drop_rate": drop}
    return "dp-ssgd", choices, "" if prune and drop else f"-prune{prune:g}" if prune else f"-drop{drop:g}"
