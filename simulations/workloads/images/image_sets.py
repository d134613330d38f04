"""cifar10, cifar100, svhn and fashion-mnist, from the hub or a local mirror of the same layout.

The channel statistics are published constants, not computed from the run's data. Preset and learning rates were tuned
on ``cifar10`` alone; the other data sets take them with the delta of the papers.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from simulations.workloads.images.augment import crop, flip_crop
from simulations.workloads.images.decode import Shape
from simulations.workloads.images.image_workload import ImageSet

DEFAULTS: Mapping[str, object] = MappingProxyType(
    {
        "clients": 10,
        "rounds": 150,
        "local_steps": 1,
        "sample_rate": 0.1,
        "learning_rate": 1.0,
        "momentum": 0.9,
        "clip_norm": 0.5,
        "epsilon": 8.0,
        "delta": 1e-5,
        "rank": 8,
        "sparsity": 0.3,
        "partition": "iid",
    }
)

METHOD_DEFAULTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"rs": {"sparsity": 0.5}, "topk": {"learning_rate": 0.05}, "powersgd": {"learning_rate": 0.05}}
)
"""Learning rates of the methods without privacy: the better of 0.05 and 0.2 on a tenth of 6,000 rows, held out.

60 rounds, seed 7.
"""

CIFAR10 = ImageSet(
    name="cifar10",
    folder="cifar10",
    subset="plain_text",
    hub_name="uoft-cs/cifar10",
    image_column="img",
    label_column="label",
    num_classes=10,
    shape=Shape(channels=3, side=32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    augment=flip_crop,
    defaults=DEFAULTS,
    method_defaults=METHOD_DEFAULTS,
)
"""10 classes of objects, 50,000 and 10,000 images of 3x32x32 (Krizhevsky 2009)."""

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
    # Flips change the class: a mirrored 2 or 5 is no digit.
    augment=crop,
    defaults=MappingProxyType({**CIFAR10.defaults, "delta": 1e-6}),
)
"""House numbers, 73,257 and 26,032 images of 3x32x32 (Netzer et al. 2011); ``extra`` is not used."""

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
"""Clothes, 60,000 and 10,000 images of 1x28x28 (Xiao et al. 2017). Flips keep the class."""

IMAGE_SETS: Mapping[str, ImageSet] = MappingProxyType(
    {image_set.name: image_set for image_set in (CIFAR10, CIFAR100, SVHN, FASHION_MNIST)}
)
"""By the name of the workload."""
