"""digits: 1,797 real handwritten digits of 8x8 pixels that ship inside scikit-learn; nothing to download.

Alpaydin and Kaynak 1998, "Optical Recognition of Handwritten Digits" (UCI). The split is fixed and stratified: 1,437
training and 360 test images.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch

from simulations import models
from simulations.workloads.workload import Options, Progress, Split, Workload, refuse_unused, rescale

_SPLIT_SEED = 0
_TEST_FRACTION = 0.2

# Stored pixels are 0..16; the model sees (pixel / 16 - 0.3) * 2. The constants are public, not computed from the data.
_OFFSET = torch.tensor(0.3 * 16)
_SCALE = torch.tensor(2 / 16)

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 5,
        "rounds": 100,
        "local_steps": 1,
        "sample_rate": 0.5,
        "learning_rate": 0.8,
        "momentum": 0.9,
        "clip_norm": 0.5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 4,
        "sparsity": 0.3,
        "partition": "iid",
    }
)

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"rs": {"sparsity": 0.5}, "topk": {"learning_rate": 0.2}, "powersgd": {"learning_rate": 0.2}}
)
"""Learning rates of the two rivals without noise: by two runs each on held-out rows (holdout = 0.2, seeds 10, 11)."""


def load(*, data_dir: Path | None, cache_dir: Path | None, options: Options, progress: Progress) -> Workload:
    """Load the workload; inputs are (B, 1, 8, 8). The folders are not used."""
    refuse_unused(options, workload="digits")
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=_TEST_FRACTION, stratify=labels, random_state=_SPLIT_SEED
    )
    stored = images.astype(np.uint8).reshape(-1, 1, 8, 8)
    prepare = partial(rescale, offset=_OFFSET, scale=_SCALE)

    def split(rows: np.ndarray) -> Split:
        rows = np.sort(rows)
        return Split(inputs=stored[rows], labels=torch.from_numpy(labels[rows].astype(np.int64)), prepare=prepare)

    return Workload(
        name="digits",
        train=split(train),
        test=split(test),
        num_classes=10,
        models=MappingProxyType({"mlp": models.digits_mlp, "conv": models.digits_conv}),
        defaults=DEFAULTS,
        method_defaults=METHOD_DEFAULTS,
    )
