"""The plan of a run on the 1,281,167 training images of ImageNet, without the images: time, memory,
bytes of an update.

    python -m benchmarks.speed.imagenet_plan [--preset dp-ssgd-imagenet-eps1] [--train 1281167]
    [--classes 1000]

Training files are empty: a plan lists them and opens none. The test images are one small picture
under many names. The plan is what ``fedlsg run --preset`` makes before its first round: the
listing, the noise multiplier, the check of the model. Memory is the process' peak with all
libraries. Bytes are those of one payload: values, header and checksum.
"""

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fedlsg.payload import DEFAULT_CODEC, pack
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.state import PublicState, mean_frame


def make_folder(root: Path, *, train: int, test: int, classes: int) -> None:
    """train/CLASS/*.JPEG without content, and val/CLASS/*.JPEG, all of them one picture."""
    picture = root / "picture.JPEG"
    Image.fromarray(np.full((64, 64, 3), 128, np.uint8)).save(picture)
    for split, count in (("train", train), ("val", test)):
        for number in range(classes):
            folder = root / split / f"n{number:08d}"
            folder.mkdir(parents=True)
            for image in range(number, count, classes):
                file = folder / f"{image}.JPEG"
                file.touch() if split == "train" else file.symlink_to(picture)


def values_of(plan: Plan) -> tuple[int, int]:
    """Values and bytes that a client sends in a round on the average."""
    public = PublicState.start(
        plan.initial.model(),
        plan.method,
        plan.schedule,
        seed=plan.settings.seed,
        classifier=plan.workload.classifier,
    )
    frame = mean_frame(public)
    how = {"size": frame.wire.size, "round": 1, "digest": bytes(32), "blocks": frame.wire.blocks}
    return frame.kept, len(
        pack(torch.randn(frame.kept), frame.wire.indices, codec=DEFAULT_CODEC, **how)
    )  # type: ignore[arg-type]


def main() -> None:
    """Make the folder and the plan, and print one line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", default="dp-ssgd-imagenet-eps1")
    parser.add_argument("--train", type=int, default=1_281_167, help="training images")
    parser.add_argument("--test", type=int, default=50_000, help="test images")
    parser.add_argument("--classes", type=int, default=1000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        began = time.monotonic()
        make_folder(Path(root), train=options.train, test=options.test, classes=options.classes)
        print(
            f"{options.train:,} files of {options.classes:,} classes: "
            f"{time.monotonic() - began:.0f} s",
            flush=True,
        )
        began = time.monotonic()
        plan = make_plan(resolve({"preset": options.preset, "data_dir": root}))
        clients = plan.clients
        print(
            f"plan of {options.preset}: {time.monotonic() - began:.0f} s, {sum(clients.sizes):,} "
            f"training images, q {clients.rates[0]:.5f}, {plan.settings.rounds:,} rounds, noise "
            f"multiplier {plan.terms[0].noise_multiplier:.3f}"
        )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        values, sent = values_of(plan)
        print(
            f"peak memory {peak / 2**30:.1f} GiB; an update has {values:,} values, "
            f"{sent / 1e6:.1f} MB"
        )


if __name__ == "__main__":
    main()
