"""An own CNN on a folder of images; each writer is a client, as the column ``writer`` of
metadata.csv says.

Run it on Ray with `python image_folder.py`, or in one process with `python image_folder.py local`.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import fedlsg


def write_folder(folder, images, labels, first):
    """FOLDER/<class>/<number>.png, and metadata.csv with the writer: scikit-learn's digits come
    writer by writer.
    """
    rows = []
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 15.9).astype(np.uint8)).save(path)
        rows.append(
            {"file_name": f"{label}/{path.name}", "writer": f"writer-{(first + number) // 175:02}"}
        )
    with (folder / "metadata.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["file_name", "writer"])
        table.writeheader()
        table.writerows(rows)


def model():
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.Tanh(), nn.AvgPool2d(2)]
    return nn.Sequential(
        *layers, nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(512, 10)
    )


def main(engine="ray"):
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8)
    with tempfile.TemporaryDirectory() as place:
        train, test = Path(place, "train"), Path(place, "test")
        write_folder(train, images[:1400], labels[:1400], 0)
        write_folder(test, images[1400:], labels[1400:], 1400)
        run = fedlsg.simulate(
            model=model,
            train=train,
            test=test,
            loss=functional.cross_entropy,
            partition="writer",
            engine=engine,
            method="lsg",
            rank=2,
            epsilon=8.0,
            rounds=12,
            sample_rate=0.5,
            learning_rate=0.5,
            momentum=0.9,
            clip_norm=0.5,
        )
    print(
        f"{run.summary['clients']} writers, accuracy {run.summary['accuracy']:.3f}, epsilon "
        f"{run.epsilon:.2f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
