"""cifar10: 50,000 training and 10,000 test images of 3x32x32 (Krizhevsky 2009), from the hub or a local mirror.

The parquet shards of the Hugging Face data set ``uoft-cs/cifar10`` hold encoded images. They are decoded once into a
cache of uint8 arrays (184 MB), which is memory-mapped afterwards: a batch reads and normalises only its own rows.
"""

from collections.abc import Mapping
from types import MappingProxyType

from simulations.workloads.augment import flip_crop
from simulations.workloads.image_workload import ImageSet
from simulations.workloads.images import Shape

# The published channel statistics of the training images, used as public constants; not computed from the run's data.
MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)

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
"""Learning rates of the rivals: the better of 0.05 and 0.2 in 60 rounds on 6,000 rows, a tenth held out (seed 7)."""

CIFAR10 = ImageSet(
    name="cifar10",
    folder="cifar10",
    subset="plain_text",
    hub_name="uoft-cs/cifar10",
    image_column="img",
    label_column="label",
    num_classes=10,
    shape=Shape(channels=3, side=32),
    mean=MEAN,
    std=STD,
    augment=flip_crop,
    defaults=DEFAULTS,
    method_defaults=METHOD_DEFAULTS,
)
