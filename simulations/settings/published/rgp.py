"""Yu et al. 2021, "Large Scale Private Learning via Low-rank Reparametrization" (RGP): sections 5.1 and 5.2."""

from collections.abc import Iterator, Mapping
from itertools import product

from simulations.settings.published.preset import (
    POISSON,
    QNLI,
    QNLI_DELTA,
    SIGMA,
    Published,
    Value,
    central,
    name_of,
    published,
)

PAPER = "RGP (Yu et al. 2021)"

VISION = (
    "Except for the batch, the paper follows Zagoruyko and Komodakis 2016. Learning rate 0.5, weight decay 1e-4 "
    "(dense: 0) and C = 1 (dense: 5) are from its code and from the paper of LSG, which follows it."
)
STEPS = "The learning rate is divided by 5 at 30, 60 and 80 % of the run, as in the paper's code."
RANK = "The paper searches ranks 1 to 16 and does not say which is best. 16 is from its code's command."
BERT_RANK = "The paper searches ranks 1 to 8 and does not say which is best. 1 is its code's default."
BERT = (
    "The paper follows Devlin et al. 2018, whose learning rate does not fit a private run. 1e-3 and C = 10 are what "
    "the paper of LSG reports for this paper; the linear decay to 0 is from its code."
)
DEVLIN = "Learning rate 5e-5 with linear decay. The paper follows Devlin et al. 2018, who search up to 5e-5."
WARM_UP = "The first server update uses carriers of W, later ones of W - W_0. The paper gives no length of its warm-up."
SVHN_SIZE = (
    "Trained on the 73,257 examples of SVHN's train split. delta 1e-6 suggests that the paper added the 531,131 "
    "examples of `extra`; it does not say so."
)
DIFFERENCE = "The paper does not print this number. It is RGP's number minus the improvement in brackets."
AVERAGED = "The mean of the matched and the mismatched test set, {} and {}."
FIGURE_4 = "Figure 4 prints no numbers."
POWER = "The rank is that of RGP. The paper only says that PowerSGD has the same setting."
NON_PRIVATE_NOTE = "Weight decay 5e-4 and, on CIFAR-10, flips and crops as in Zagoruyko and Komodakis 2016."

TABLE_2: Mapping[str, tuple[float, float]] = {
    "dpsgd": (91.6, 55.9),
    "dp-powersgd": (91.9, 57.1),
    "rgp-random": (91.7, 51.0),
    "rgp": (94.2, 63.4),
}
"""Accuracy at epsilon 8 on SVHN and CIFAR-10."""

TABLE_2_NON_PRIVATE: Mapping[str, tuple[float, float]] = {
    "sgd": (97.2, 93.3),
    "linear-probe": (41.1, 39.8),
    "rgp": (97.1, 91.2),
    "dp-powersgd": (97.1, 91.9),
}
TABLE_3: Mapping[str, Mapping[int, tuple[float, float]]] = {
    "svhn": {2: (87.3, 4.1), 4: (89.7, 3.4), 6: (92.3, 3.9)},
    "cifar10": {2: (44.0, 6.6), 4: (53.3, 6.4), 6: (59.6, 7.9)},
}
"""Accuracy of RGP by epsilon, and by how much it exceeds DP-SGD's."""

TASKS = ("glue-mnli", "glue-qqp", "glue-qnli", "glue-sst2")
TABLE_4: Mapping[str, tuple[tuple[float, float] | float, ...]] = {
    "sgd": ((84.8, 83.7), 90.2, 91.6, 93.4),
    "linear-probe": ((51.9, 50.8), 73.2, 63.0, 82.1),
    "rgp-nonprivate": ((83.6, 83.2), 89.3, 91.3, 92.9),
    "dpsgd": ((54.6, 53.4), 74.5, 63.6, 82.3),
    "rgp-random": ((74.6, 73.3), 81.7, 82.1, 87.8),
    "rgp": ((79.1, 78.0), 84.8, 86.2, 91.5),
}
"""MNLI (matched, mismatched), QQP, QNLI, SST-2; the first three rows without privacy, the others at epsilon 8."""

DELTAS = {
    "svhn": 1e-6,
    "cifar10": 1e-5,
    "glue-mnli": 1e-6,
    "glue-qqp": 1e-6,
    "glue-qnli": QNLI_DELTA,
    "glue-sst2": 1e-5,
}
FIGURE_4_METHODS = ("rgp", "dpsgd", "rgp-random")
LOW_RANK = ("rgp", "rgp-random", "dp-powersgd")


def presets() -> Iterator[Published]:
    """Tables 2 to 4 with their baselines, and the epsilons of Figure 4."""
    for method, pair in TABLE_2.items():
        for workload, accuracy in zip(("svhn", "cifar10"), pair, strict=True):
            yield _vision(method, workload, 8, "Table 2", accuracy)
    for method, pair in TABLE_2_NON_PRIVATE.items():
        for workload, accuracy in zip(("svhn", "cifar10"), pair, strict=True):
            yield _vision(method, workload, None, "Table 2", accuracy)
    for workload, rows in TABLE_3.items():
        for epsilon, (accuracy, more) in rows.items():
            yield _vision("rgp", workload, epsilon, "Table 3", accuracy)
            yield _vision("dpsgd", workload, epsilon, "Table 3", round(accuracy - more, 1), (DIFFERENCE,))
    for row, accuracies in TABLE_4.items():
        method = row.removesuffix("-nonprivate")
        private = row not in ("sgd", "linear-probe", "rgp-nonprivate")
        for task, printed in zip(TASKS, accuracies, strict=True):
            yield _bert(method, task, 8 if private else None, "Table 4", printed)
    for method, task, epsilon in product(FIGURE_4_METHODS, TASKS, (1, 2, 4, 6)):
        yield _bert(method, task, epsilon, "Figure 4", None, (FIGURE_4,))


def _vision(
    method: str, workload: str, epsilon: int | None, where: str, accuracy: float, notes: tuple[str, ...] = ()
) -> Published:
    """WRN-28-4 with GroupNorm from scratch, batches of 1,000, 200 epochs."""
    dense = method not in LOW_RANK
    choices: dict[str, Value] = {"weight_decay": 0.0 if dense else 1e-4}
    if epsilon is None:
        choices = {"weight_decay": 5e-4, "augment": "flip-crop" if workload == "cifar10" else "none"}
    else:
        choices |= {"clip_norm": 5.0 if dense else 1.0, "delta": DELTAS[workload]}
    settings = central(
        workload, method, batch=1000, epochs=200, epsilon=epsilon, model="wrn-28-4", optimizer="sgd", momentum=0.9,
        learning_rate=0.5, schedule="step", final_learning_rate=4e-3, more=choices | _low_rank(method, 16),
    )  # fmt: skip
    own = {"rgp": (RANK, WARM_UP), "rgp-random": (RANK,), "dp-powersgd": (RANK, POWER)}.get(method, ())
    private = (POISSON, SIGMA) if epsilon is not None else (NON_PRIVATE_NOTE,)
    size = (SVHN_SIZE,) if workload == "svhn" else ()
    return _published(settings, where, accuracy, (*notes, *own, *size, VISION, STEPS, *private))


def _bert(
    method: str, task: str, epsilon: int | None, where: str, printed: tuple[float, float] | float | None,
    notes: tuple[str, ...] = (),
) -> Published:  # fmt: skip
    """BERT-base; batches of 500 (SST-2, QNLI) or 1,000; 50 epochs above epsilon 2, else 20."""
    accuracy = round(sum(printed) / 2, 2) if isinstance(printed, tuple) else printed
    if isinstance(printed, tuple):
        notes = (*notes, AVERAGED.format(*printed))
    private: dict[str, Value] = {} if epsilon is None else {"clip_norm": 10.0, "delta": DELTAS[task]}
    tuned = epsilon is None and method != "linear-probe"  # every weight moves, and no noise needs larger steps
    settings = central(
        task, method, batch=500 if task in ("glue-sst2", "glue-qnli") else 1000,
        epochs=20 if epsilon is not None and epsilon <= 2 else 50, epsilon=epsilon, model="bert-base",
        optimizer="adam", learning_rate=5e-5 if tuned else 1e-3, schedule="linear",
        more=private | _low_rank(method, 1),
    )  # fmt: skip
    own = {"rgp": (BERT_RANK, WARM_UP), "rgp-random": (BERT_RANK,)}.get(method, ())
    more = (DEVLIN if tuned else BERT, *(() if epsilon is None else (POISSON, SIGMA)))
    if task == "glue-qnli" and epsilon is not None:
        more += (QNLI,)
    return _published(settings, where, accuracy, (*notes, *own, *more))


def _low_rank(method: str, rank: int) -> dict[str, Value]:
    if method not in LOW_RANK:
        return {}
    return {"rank": rank, **({} if method == "rgp-random" else {"power_steps": 1, "warmup": 1})}


def _published(settings: dict[str, Value], where: str, accuracy: float | None, notes: tuple[str, ...]) -> Published:
    """Names with the rank, and short names without it: no table has two ranks."""
    name = name_of(settings)
    short = name_of({key: value for key, value in settings.items() if key != "rank"})
    return published(settings, PAPER, where, notes, accuracy=accuracy, aliases=(short,) if short != name else ())
