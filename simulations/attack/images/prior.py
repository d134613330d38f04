"""What the adversary knows about the images beforehand: the public test split, and the range of pixels."""

import numpy as np
import torch
from torch import Tensor

from fedlsg.attacks.inversion.prior import Prior, prior_from
from simulations.workloads.base.workload import Workload

PUBLIC_IMAGES = 2000


def image_prior(workload: Workload) -> Prior:
    """Shape, range, and the Gaussian around each class that public test images give.

    The range is that of the stored pixels, prepared like every input. Raises ValueError for inputs that are not images.
    """
    count = min(PUBLIC_IMAGES, len(workload.test))
    images, labels = workload.test.batch(torch.arange(count))
    if not isinstance(images, Tensor) or images.ndim != 4:
        raise ValueError(f"workload {workload.name} holds no images: its inputs have no pixels to recover")
    stored = np.asarray(workload.test.inputs[np.arange(count)])
    ends = [_prepared(workload, np.full_like(stored[:1], value)) for value in (0, stored.max())]
    low, high = (tuple(float(channel.flatten()[0]) for channel in end[0]) for end in ends)
    every_class = len(labels.unique()) == workload.num_classes
    return prior_from(images, labels if every_class else None, low=low, high=high)


def _prepared(workload: Workload, stored: np.ndarray) -> Tensor:
    inputs = workload.test.prepare(stored)
    assert isinstance(inputs, Tensor)
    return inputs
