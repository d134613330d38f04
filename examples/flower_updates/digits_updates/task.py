"""Model, data, training and test of the app: nothing here knows of privacy."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))

    def forward(self, x):
        return self.layers(x)


def digits():
    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    return torch.tensor(x / 8 - 0.6).float()[order], torch.tensor(y)[order]


def load_data(partition_id, num_partitions):
    x, y = digits()
    return DataLoader(
        TensorDataset(x[partition_id:1400:num_partitions], y[partition_id:1400:num_partitions]),
        32,
        True,
    )


def load_test():
    x, y = digits()
    return DataLoader(TensorDataset(x[1400:], y[1400:]), 400)


def train(net, loader, epochs, lr):
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
    return loss.item()


@torch.no_grad()
def test(net, loader):
    right = sum((net(x).argmax(1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)
