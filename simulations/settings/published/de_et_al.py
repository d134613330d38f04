"""De et al. 2022, "Unlocking High-Accuracy Differentially Private Image Classification through Scale", on CIFAR-10.

Weight standardisation, group norm, 16 augmented copies an example, a moving average of the weights, large batches,
large learning rates, no momentum. Two of their wide ResNets, and the same recipe on the CNN of this repository.
"""

from collections.abc import Iterator, Mapping

from simulations.settings.published.preset import SIGMA, Published, central, name_of

PAPER = "De et al. (2022)"

UPDATES: Mapping[int, int] = {1: 875, 2: 1125, 3: 1593, 4: 1687, 6: 1843, 8: 2468}
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


def presets() -> Iterator[Published]:
    """Six epsilons for each of three models."""
    for model in MODELS:
        for epsilon in UPDATES:
            yield _preset(model, epsilon)


def _preset(model: str, epsilon: int) -> Published:
    settings = central(
        "cifar10", "dpsgd", batch=4096, rounds=UPDATES[epsilon], epsilon=epsilon, delta=1e-5, model=model,
        optimizer="sgd", momentum=0.0, learning_rate=2.0, clip_norm=1.0,
        more={"augment": "flip-crop", "multiplicity": 16, "ema": 0.9999},
    )  # fmt: skip
    wide, accuracy = model.startswith("wrn"), ABSTRACT.get((model, epsilon))
    own = () if accuracy else (NUMBER,) if wide else (OURS,)
    same = () if model == MODELS[0] else (SAME,)
    return Published(
        name=name_of(settings, suffix="-de2022"),
        aliases=(f"de2022-{model.removesuffix('-ws')}-eps{epsilon}",),
        settings=settings,
        paper=PAPER,
        where="Table 2" if wide else "CNN",
        accuracy=accuracy,
        notes=(*own, CONFIG, COUNTS[epsilon], *same, WARM_UP, SIGMA),
    )
