"""The final model of a run: plain tensors, and the facts of config.json next to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from fedlsg.carriers import adapted_layers
from fedlsg.gradients import trainable
from fedlsg.simulations.models.encoder import describe
from fedlsg.simulations.models.plain_torch import layers_of
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.planning.base.start_weights import rows_behind, starts_of
from fedlsg.simulations.workloads import Options
from fedlsg.simulations.workloads.base.split import scale_of
from fedlsg.state import ServerState
from fedlsg.user_code import DATA, shown
from fedlsg.user_code.digest import version

MODEL_FORMAT = 1
"""Format of config.json, which is next to the tensors of a final model."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalModel:
    """A model for programs that do not know fedlsg.

    tensors: parameters and buffers by their names in the module.
    facts: everything of config.json.
    """

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def final_model(base: Base, state: ServerState) -> FinalModel:
    """The model that is evaluated: with ``ema``, the average of the weights.

    LoRA's factors stay factors. The tensors are copies: the state may change afterwards.
    """
    with state.evaluated() as model:
        tensors = {
            name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()
        }
    return FinalModel(tensors=tensors, facts=facts_of(base, state))


def facts_of(base: Base, state: ServerState) -> dict[str, Any]:
    """What a reader needs to build the module again, and to know what was trained."""
    settings, model = base.settings, state.model
    options = {
        field.name: getattr(settings, field.name)
        for field in fields(Options)
        if field.name not in ("model", "data_root")
    }
    return {
        "format": MODEL_FORMAT,
        "fedlsg": version(),
        "workload": shown(settings.workload),
        "model": settings.model,
        "method": shown(settings.method),
        "seed": settings.seed,
        "round": state.round,
        "averaged": state.average is not None,
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        **layers_of(model),
        "inputs": scale_of(base.workload.test.prepare),
        "options": {name: value for name, value in options.items() if value is not None},
        **({"data": dict(base.workload.data)} if base.workload.data else {}),
        "public_data": public_data_of(base),
        # kept here because the weights that the run started from may be moved or deleted later
        "rows_behind": sorted(set().union(*map(rows_behind, starts_of(settings).values()))),
        "trained": list(trainable(model)),
        "lora": lora_facts(model, base.method.carrier.scale),
        "transformers": _with_labels(describe(model), base.workload.data.get("classes", ())),
    }


def _with_labels(described: dict[str, Any] | None, classes: Sequence[str]) -> dict[str, Any] | None:
    """What ``describe`` returned, with the names of the classes as transformers keeps them."""
    if described is None or not classes:
        return described
    names = {
        "id2label": dict(enumerate(classes)),
        "label2id": {name: number for number, name in enumerate(classes)},
    }
    return {**described, "config": {**described["config"], **names}}


def public_data_of(base: Base) -> list[str]:
    """Public data that the run trained on or probed the model with: "data:" and a name each."""
    sources = [base.settings.public_rows, base.method.carrier.source]
    return [shown(source) for source in sources if source is not None and source.startswith(DATA)]


def lora_facts(model: nn.Module, scale: float) -> dict[str, Any] | None:
    """LoRA in the model: its layers, and its scale s of W_0 + s B A; None without adapted layers.

    "merges": whether every layer may be replaced by a plain one with the weight W_0 + s B A.
    """
    layers = adapted_layers(model)
    if not layers:
        return None
    linear = all(type(layer.base) in (nn.Linear, nn.Conv2d) for layer in layers.values())
    return {"scale": scale, "layers": list(layers), "merges": linear}
