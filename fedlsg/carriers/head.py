"""The head of a model, and the layer in it that makes the outputs.

The head is what ``linear-probe`` trains, what LoRA does not adapt, and the group ``classifier`` of rates and clip
weights. The output layer is the one layer of it that is never carried.
"""

from torch import nn


def find_classifier(model: nn.Module, classifier: str | None = None) -> str:
    """Path of the head, which may have several layers: the module that is named, else the last Linear, else "".

    Raises ValueError for a name that is no module of the model.
    """
    if classifier is None:
        return _last_linear(model)
    if not any(name == classifier for name, _ in model.named_modules()):
        raise ValueError(f"{classifier=} is no module of {type(model).__name__}")
    return classifier


def find_output_layer(model: nn.Module, classifier: str | None = None) -> str:
    """Path of the layer that makes the outputs: the last Linear of the head, or the head itself if it has none.

    It is never carried: "all fully connected and attention layers except the classification layer" are (Ito et al.
    2023, sec. 4). In RoBERTa's head ``dense`` is carried and ``out_proj`` is not.
    Raises ValueError for a ``classifier`` that is no module of the model.
    """
    head = find_classifier(model, classifier)
    last = _last_linear(model.get_submodule(head))
    return f"{head}.{last}" if head and last else head or last


def _last_linear(model: nn.Module) -> str:
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    return linear[-1] if linear else ""
