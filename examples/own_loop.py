"""Private training in an own loop: handwritten digits, low-rank sparse gradients (LSG), an own
optimizer and scheduler.

    python own_loop.py

Prints the test accuracy and the epsilon that the ledger has. The data ship with scikit-learn.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import fedlsg

EPSILON, DELTA, STEPS, BATCH = 8.0, 1e-5, 150, 280


def rows() -> tuple[tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]:
    """Training and test rows: 8 x 8 pixels, and the digit."""
    pixels, digit = load_digits(return_X_y=True)
    order = torch.randperm(len(digit), generator=torch.Generator().manual_seed(0))
    x, y = torch.tensor(pixels / 8 - 0.6, dtype=torch.float32)[order], torch.tensor(digit)[order]
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def main() -> None:
    train, (inputs, targets) = rows()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    step = fedlsg.PrivateStep(
        model,
        nn.CrossEntropyLoss(),
        num_examples=len(train[1]),
        sample_rate=BATCH / len(train[1]),
        steps=STEPS,
        method="lsg",
        rank=8,
        sparsity=0.3,
        clip_norm=0.5,
        epsilon=EPSILON,
        delta=DELTA,
        optimizer=optimizer,
    )
    batches = step.batches(train)
    for _ in range(STEPS):
        # charges the ledger, draws the batch, clips, adds noise, steps the optimizer
        step.step(batches)
        scheduler.step()
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == targets).float().mean()
    print(f"accuracy {100 * accuracy:.1f} %, epsilon {step.epsilon():.3f} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
