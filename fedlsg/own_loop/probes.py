"""The public inputs of a probe, by a function of the loop's owner."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.carriers.probe import ProbeSource
from fedlsg.carriers.probe.source import on_device_of
from fedlsg.gradients import LossFunction
from fedlsg.public import name_of
from fedlsg.randomness import own_draws, public_generator


def own_source(draw: Callable[[int, torch.Generator], Any], model: nn.Module, loss: LossFunction) -> ProbeSource:
    """The source that draws by a function: inputs alone, of classes as many as the model has outputs, or with targets.

    Raises ValueError where the function does not give two rows of a batch that the model takes.
    """
    name, training = name_of(draw), model.training
    try:
        drawn = draw(2, public_generator(0, "probe", "sizes"))
        if isinstance(drawn, tuple):
            return ProbeSource(name=name, draw=draw, loss=loss)
        inputs = on_device_of(model, drawn)
        with torch.no_grad(), own_draws(next(model.parameters()).device.type):
            outputs: Tensor = model.eval()(**inputs) if isinstance(inputs, dict) else model.eval()(inputs)
        return ProbeSource(name=name, draw=draw, loss=loss, num_classes=outputs.shape[-1])
    except Exception as error:
        raise ValueError(f"probe={name}(2, generator) gives nothing that the model takes: {error}") from error
    finally:
        model.train(training)
