"""Zhu and Blaschko 2023, "Improving Differentially Private SGD via Randomly Sparsified Gradients" (RS): Tables 2, 3."""

from collections.abc import Iterator, Mapping

from simulations.settings.published.preset import SIGMA, Published, Value, central, name_of, published

PAPER = "RS (Zhu and Blaschko 2023)"

SHUFFLED = (
    "Table 2 shuffles its batches. fedlsg samples them, as in the paper's Table 3, with almost the same accuracy."
)
SUM = "This number is the baseline's number plus the printed difference."
SEARCHED = "The paper searches C, epochs and final rate, and does not print the best ones."
DP_CNN = "Learning rate 1, batch 1,000, C = 1, no momentum, 48 epochs to a rate of 0.9 (without RS 40): from its code."
DP_CNN_SVHN = "The paper's code has no command for SVHN. The settings are those of CIFAR-10."
DP_CNN_FMNIST = (
    "Learning rate 4, batch 2,048, C = 0.1, momentum 0.9, 40 epochs: from Tramer and Boneh, whom it follows."
)
H_CNN = "Learning rate 4, batch 8,192, C = 0.1, momentum 0.9, 60 epochs: from Tramer and Boneh, whom it follows."
H_CNN_SVHN = "Tramer and Boneh do not use SVHN. The settings are those of CIFAR-10."
CACHED = (
    "Scattering features of pixels in 0..1, computed once and cached. Tramer and Boneh subtract colour means first, "
    "which moves the low-pass channel alone."
)
NORM = "Features are normalised per example in groups, which costs no privacy. Tramer and Boneh's best has private BN."
RATE = "The final rate 0.9 is from its code's command for DP-CNN on CIFAR-10."

TABLE_2: Mapping[tuple[str, str, int], tuple[float, float, float]] = {
    ("cifar10", "h-cnn", 3): (70.0, 0.11, 0.3),
    ("cifar10", "h-cnn", 1): (63.2, 0.10, 0.8),
    ("cifar10", "dp-cnn", 3): (64.3, 0.17, 1.5),
    ("cifar10", "dp-cnn", 1): (55.1, 0.11, 2.6),
    ("svhn", "h-cnn", 3): (86.8, 0.13, 0.9),
    ("svhn", "h-cnn", 1): (82.2, 0.19, 1.5),
    ("svhn", "dp-cnn", 3): (84.5, 0.14, 1.1),
    ("svhn", "dp-cnn", 1): (79.1, 0.13, 3.1),
    ("fashion-mnist", "h-cnn", 3): (89.2, 0.07, 0.3),
    ("fashion-mnist", "h-cnn", 1): (87.0, 0.08, 1.2),
    ("fashion-mnist", "dp-cnn", 3): (87.4, 0.10, 0.8),
    ("fashion-mnist", "dp-cnn", 1): (84.5, 0.16, 1.3),
}
"""By workload, model and epsilon: the baseline, its standard deviation over 5 seeds, what RS adds."""

PAPERS_NOISE: Mapping[tuple[str, int], tuple[float, float]] = {
    ("rs", 3): (1.5591, 28.2), ("rs", 1): (3.7722, 9.1), ("dpsgd", 3): (1.4549, 27.4), ("dpsgd", 1): (3.4615, 9.0),
}  # fmt: skip
"""By method and epsilon: the noise multiplier of the Poisson bound, and what it is proved to cost in shuffled batches,
rounded up (``fedlsg calibrate --epoch-batches 50``)."""

PARTITION = (
    "The paper shuffles, and accounts as if it had sampled. fedlsg claims no amplification for shuffled batches "
    "(zero-out adjacency), so the same epsilon needs more noise, and no accuracy is printed for it."
)

POISSON_TABLE: Mapping[int, tuple[float, float, float]] = {3: (64.6, 0.25, 1.8), 1: (55.2, 0.25, 2.4)}
"""Table 3: DP-CNN on CIFAR-10 with Poisson batches."""

SCATTERED: Mapping[str, Value] = {"features": "scattering", "feature_norm": "group", "model": "cnn"}
"""H-CNN: a CNN as head of cached scattering features."""

MASK: Mapping[str, Value] = {"sparsity": 0.9, "cooling": True, "redraw": "epoch", "carrier": "dense"}


def presets() -> Iterator[Published]:
    """Every row of Table 2, with RS and without it, and the shuffled rows of Table 3."""
    for (workload, model, epsilon), (baseline, spread, more) in TABLE_2.items():
        yield _preset("dpsgd", workload, model, epsilon, baseline, spread)
        yield _preset("rs", workload, model, epsilon, round(baseline + more, 1), None)
    for epsilon in POISSON_TABLE:
        for method in ("dpsgd", "rs"):
            yield _shuffled(_preset(method, "cifar10", "dp-cnn", epsilon, 0.0, None), epsilon)


def _preset(method: str, workload: str, model: str, epsilon: int, accuracy: float, spread: float | None) -> Published:
    batch, epochs, more = _training(method, workload, model)
    settings = central(
        workload, method, batch=batch, epochs=epochs, epsilon=epsilon, delta=1e-5, optimizer="sgd",
        more={**more, **(SCATTERED if model == "h-cnn" else {"model": model})},
    )  # fmt: skip
    notes = [SUM, SEARCHED, RATE] if method == "rs" else [SEARCHED]
    if model == "h-cnn":
        notes += [H_CNN_SVHN] if workload == "svhn" else []
        notes += [DP_CNN_FMNIST if workload == "fashion-mnist" else H_CNN, CACHED, NORM]
    elif workload == "fashion-mnist":
        notes += [DP_CNN_FMNIST]
    else:
        notes += [DP_CNN_SVHN, DP_CNN] if workload == "svhn" else [DP_CNN]
    if (workload, model) == ("cifar10", "dp-cnn"):
        poisson, deviation, gain = POISSON_TABLE[epsilon]
        sampled = f"{poisson + gain:.1f}" if method == "rs" else f"{poisson} ± {deviation}"
        notes += [f"With Poisson batches (Table 3): {sampled}."]
    name = name_of(settings)
    short = name_of({key: value for key, value in settings.items() if key != "sparsity"})
    aliases = [short] if short != name else []
    if (method, workload, model) == ("rs", "cifar10", "dp-cnn"):
        aliases.append(f"rs-cifar10-eps{epsilon}")
    notes += [SHUFFLED, SIGMA]
    return published(settings, PAPER, "Table 2", notes, accuracy=accuracy, spread=spread, aliases=tuple(aliases))


def _shuffled(row: Published, epsilon: int) -> Published:
    """A row with the paper's own batches, at an epsilon that is true for them."""
    baseline, _, gain = TABLE_2["cifar10", "dp-cnn", epsilon]
    method = str(row.settings["method"])
    printed = f"{baseline + gain:.1f}" if method == "rs" else f"{baseline}"
    sigma, proved = PAPERS_NOISE[method, epsilon]
    drawn = {name: value for name, value in row.settings.items() if name != "sample_rate"}
    return Published(
        name=row.name + "-shuffle",
        aliases=tuple(f"{alias}-shuffle" for alias in row.aliases),
        settings={**drawn, "sampling": "shuffle", "batch_size": row.batch},
        paper=PAPER,
        where="Table 3",
        notes=(
            f"{PARTITION} It prints {printed}: at noise_multiplier={sigma}, which this bound gives epsilon "
            f"{proved:.1f}.",
            SEARCHED, *([RATE] if method == "rs" else []), DP_CNN,
        ),
    )  # fmt: skip


def _training(method: str, workload: str, model: str) -> tuple[int, int, dict[str, Value]]:
    """Batch, epochs, and learning rate, momentum and C; with RS the mask too."""
    mask = dict(MASK) if method == "rs" else {}
    if workload == "fashion-mnist" or model == "h-cnn":
        batch, epochs = (2048, 40) if workload == "fashion-mnist" else (8192, 60)
        return batch, epochs, {"learning_rate": 4.0, "momentum": 0.9, "clip_norm": 0.1, **mask}
    return 1000, 48 if method == "rs" else 40, {"learning_rate": 1.0, "momentum": 0.0, "clip_norm": 1.0, **mask}
