"""cifar100, svhn and fashion-mnist, from the hub or a local mirror of the same layout.

The channel statistics are published constants. The presets are the one of ``cifar10`` with the delta of the papers;
nothing was tuned on these data sets.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from simulations.workloads.augment import crop
from simulations.workloads.cifar10 import CIFAR10
from simulations.workloads.image_workload import ImageSet
from simulations.workloads.images import Shape

CIFAR100: ImageSet = replace(
    CIFAR10,
    name="cifar100",
    folder="cifar100",
    subset="cifar100",
    hub_name="uoft-cs/cifar100",
    label_column="fine_label",
    num_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)
"""100 classes of objects, 50,000 and 10,000 images of 3x32x32 (Krizhevsky 2009); the fine labels."""

SVHN: ImageSet = replace(
    CIFAR10,
    name="svhn",
    folder="svhn",
    subset="cropped_digits",
    hub_name="ufldl-stanford/svhn",
    image_column="image",
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    # A mirrored 2 or 5 is no digit.
    augment=crop,
    defaults=MappingProxyType({**CIFAR10.defaults, "delta": 1e-6}),
)
"""House numbers, 73,257 and 26,032 images of 3x32x32 (Netzer et al. 2011); ``extra`` is not used. Never mirrored."""

FASHION_MNIST: ImageSet = replace(
    CIFAR10,
    name="fashion-mnist",
    folder="fashion_mnist",
    subset="fashion_mnist",
    hub_name="zalando-datasets/fashion_mnist",
    image_column="image",
    shape=Shape(channels=1, side=28),
    mean=(0.2860,),
    std=(0.3530,),
)
"""Clothes, 60,000 and 10,000 images of 1x28x28 (Xiao et al. 2017). A mirrored shoe is a shoe: flips keep the class."""

IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {image_set.name: image_set for image_set in (CIFAR10, CIFAR100, SVHN, FASHION_MNIST)}
)
"""By the name of the workload."""
