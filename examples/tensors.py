"""An own model on tensors: five clients, epsilon 8, updates ten times smaller than dense ones.

Run it on Ray with `python tensors.py`, or in one process with `python tensors.py local`.
The data need `pip install scikit-learn`.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedlsg


def model():
    return nn.Sequential(
        nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10)
    )


def main(engine="ray"):
    pixels, digits = load_digits(return_X_y=True)
    x, y = torch.tensor(pixels, dtype=torch.float32) / 8 - 1, torch.tensor(digits)
    run = fedlsg.simulate(
        model=model,
        train=(x[:1400], y[:1400]),
        test=(x[1400:], y[1400:]),  # public: what is reported is measured on it
        loss=nn.CrossEntropyLoss(),
        metrics={"confidence": lambda outputs, targets: outputs.softmax(1).amax(1).mean()},
        method="lsg",
        rank=4,
        epsilon=8.0,
        delta=1e-5,
        clients=5,
        engine=engine,
    )
    predicted = run.model(x[1400:]).argmax(1)
    print(
        f"{(predicted == y[1400:]).float().mean():.3f} of the test digits are right, epsilon "
        f"{run.epsilon:.2f}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
