"""One run at a time in a process: a second thread waits, and an interrupted run lets the next one in."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from fedlsg.turn import WAITING, alone
from strategies.private_step import PrivateStep


def test_a_second_thread_waits_and_says_so(caplog):
    order, inside = [], threading.Event()

    def second():
        inside.wait()
        with alone():
            order.append("second")

    thread = threading.Thread(target=second)
    with caplog.at_level(logging.WARNING, logger="fedlsg"), alone():
        thread.start()
        inside.set()
        thread.join(0.3)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
    assert WAITING in caplog.text


def test_a_thread_may_enter_again():
    with alone(), alone():
        pass


def untrained() -> list[nn.Module]:
    """Four models with dropout. Made in one thread: first weights come from the generator of dropout."""
    return [nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)) for _ in range(4)]


def trained(seed: int, model: nn.Module) -> list[float]:
    """Weights after some steps: dropout draws from torch's own generator."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(40, 4, generator=draw), torch.randint(3, (40,), generator=draw)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=draw))
    step = PrivateStep(
        model, nn.CrossEntropyLoss(), num_examples=40, sample_rate=0.5, steps=6, method="dpsgd", noise_multiplier=1.0,
        delta=1e-3, learning_rate=0.1, seed=seed, reproducible=True,
    )  # fmt: skip
    batches = step.batches((x, y))
    for _ in range(6):
        step.step(batches)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def test_private_steps_in_threads_give_what_they_give_alone():
    one_by_one = list(map(trained, range(4), untrained()))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(trained, range(4), untrained())) == one_by_one
