"""Model and data of the app, as the template has them; and the workload that is made of them."""

from sklearn.datasets import load_digits
from torch import nn

import fedlsg


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1)
        )
        self.fc = nn.Sequential(
            nn.ReLU(), nn.Flatten(), nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10)
        )

    def forward(self, x):
        return self.fc(self.conv(x))


def load_data():
    x, y = load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8) / 8 - 1
    return (x[:1400], y[:1400]), (x[1400:], y[1400:])


def workload():
    train, test = load_data()
    return fedlsg.Workload(
        model=Net, train=train, test=test, loss=nn.CrossEntropyLoss(), name="digits_app"
    )
