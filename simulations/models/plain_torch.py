"""A model's layers and the scale of its inputs in plain torch, for a folder that needs no fedlsg.

They are in the ``load.py`` of an exported model.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import Tensor, nn

LONGEST = 20_000
"""The most letters of a description that is kept."""
LOADER = '''"""The model of a fedlsg run in plain torch: ``from load import model, prepare``.

model      has the weights that the accuracy of the run was measured with
prepare    from inputs as they are stored, (B, ...), to those of the model{inputs}
"""

from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

model = {source}
model.load_state_dict(load_file(Path(__file__).with_name("model.safetensors")))
model.eval()


def prepare(stored: torch.Tensor) -> torch.Tensor:
    return {prepared}
'''


def layers_of(model: nn.Module) -> dict[str, Any]:
    """Facts about the layers of a model.

    ``module`` is the model as torch prints it; None if that is too long. ``source`` is as
    ``source_of`` gives it.
    """
    text = repr(model)
    return {"module": text if len(text) <= LONGEST else None, "source": source_of(model)}


def source_of(model: nn.Module) -> str | None:
    """An expression of ``nn`` and ``OrderedDict`` that builds the model.

    None for a model that is not made of layers of torch alone.
    Guarantee: what it builds is printed as the model is, and has parameters of the same names and
    shapes.
    """
    try:
        source = _source(model)
        built = eval(source, {"nn": nn, "OrderedDict": OrderedDict})  # names of torch.nn alone
    except Exception:
        return None
    shapes = [{k: v.shape for k, v in one.state_dict().items()} for one in (model, built)]
    return source if repr(built) == repr(model) and shapes[0] == shapes[1] else None


def _source(module: nn.Module) -> str:
    """The expression of one layer. Raises ValueError for a class that is not of torch.nn."""
    if type(module) is nn.Sequential:
        pairs = module.named_children()
        children = ", ".join(f"({name!r}, {_source(child)})" for name, child in pairs)
        return f"nn.Sequential(OrderedDict([{children}]))"
    if getattr(nn, type(module).__name__, None) is not type(module) or [*module.children()]:
        raise ValueError(type(module).__name__)
    return f"nn.{module!r}"


def scale_of(prepare: Callable[..., Any]) -> Mapping[str, Any] | None:
    """Offset and scale of inputs ``(stored - offset) * scale``, as lists or numbers.

    None for another function.
    """
    given = prepare.keywords if isinstance(prepare, partial) else {}
    offset, scale = given.get("offset"), given.get("scale")
    if not (isinstance(offset, Tensor) and isinstance(scale, Tensor)):
        return None
    return {"offset": offset.tolist(), "scale": scale.tolist()}


def loader_of(facts: Mapping[str, Any]) -> str | None:
    """The text of ``load.py``; None for a model that is not of layers of torch alone."""
    source, inputs = facts.get("source"), facts.get("inputs")
    if not source or not str(facts.get("class", "")).startswith("torch.nn."):
        return None
    if inputs is None:
        words = ":\n           the run had a function of its own, or none; put it here"
        return LOADER.format(source=source, inputs=words, prepared="stored.float()")
    scaled = "(stored.float() - torch.tensor({offset})) * torch.tensor({scale})".format(**inputs)
    return LOADER.format(source=source, inputs="", prepared=scaled)
