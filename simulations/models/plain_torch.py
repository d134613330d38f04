"""A model's layers and its inputs in plain torch, for a folder that needs no fedlsg.

They are in the ``load.py`` of an exported model.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

LONGEST = 20_000
"""The most characters of a description that is kept."""
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
        built = eval(source, {"__builtins__": {}, "nn": nn, "OrderedDict": OrderedDict})
    except Exception:
        return None
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, built)]
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


def loader_of(facts: Mapping[str, Any]) -> str | None:
    """The text of ``load.py``; None for a model that is not of layers of torch alone.

    facts: of a model, by ``final_model.facts_of``.
    """
    source, inputs = facts.get("source"), facts.get("inputs")
    # a class that the user put into torch.nn is not there in another process
    if not source or not str(facts.get("class", "")).startswith("torch.nn."):
        return None
    if inputs is None:
        hint = ":\n           the run had a function of its own, or none; put it here"
        return LOADER.format(source=source, inputs=hint, prepared="stored.float()")
    scaled = "(stored.float() - torch.tensor({offset})) * torch.tensor({scale})".format(**inputs)
    return LOADER.format(source=source, inputs="", prepared=scaled)
