"""The model of a finished run as plain tensors, and what config.json says of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from fedlsg.carriers import adapted_layers
from fedlsg.gradients import trainable
from fedlsg.state import ServerState
from fedlsg.user_code import DATA, shown
from fedlsg.user_code.digest import version
from simulations.models.encoder import describe
from simulations.plan.plan import Base
from simulations.plan.start import rows_behind, starts_of
from simulations.workloads import Options

FORMAT = 1


@dataclass(frozen=True, kw_only=True, eq=False)
class FinalModel:
    """``tensors``: parameters and buffers by their names in the module. ``facts``: everything of config.json."""

    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]


def final_model(base: Base, state: ServerState) -> FinalModel:
    """The model that is evaluated: with ema, the average of the weights. LoRA's factors are as they were trained.

    The tensors are copies: the state may change afterwards.
    """
    with state.evaluated() as model:
        tensors = {name: tensor.detach().cpu().clone() for name, tensor in model.state_dict().items()}
    return FinalModel(tensors=tensors, facts=facts_of(base, state))


def facts_of(base: Base, state: ServerState) -> dict[str, Any]:
    """What a reader needs to build the module again, and to know what was trained."""
    s, model = base.settings, state.model
    options = {f.name: getattr(s, f.name) for f in fields(Options) if f.name not in ("model", "data_root")}
    return {
        "format": FORMAT,
        "fedlsg": version(),
        "workload": shown(s.workload),
        "model": s.model,
        "method": shown(s.method),
        "seed": s.seed,
        "round": state.round,
        "averaged": state.average is not None,
        "class": f"{type(model).__module__}.{type(model).__qualname__}",
        "options": {name: value for name, value in options.items() if value is not None},
        **({"data": dict(base.workload.data)} if base.workload.data else {}),
        "public_data": public_data_of(base),
        "rows_behind": sorted(set().union(*map(rows_behind, starts_of(s).values()))),  # should those be moved later
        "trained": list(trainable(model)),
        "lora": lora_facts(model, base.method.carrier.scale),
        "transformers": _with_labels(describe(model), base.workload.data.get("classes", ())),
    }


def _with_labels(said: dict[str, Any] | None, classes: Sequence[str]) -> dict[str, Any] | None:
    """What ``describe`` said, with the names of the classes as transformers keeps them."""
    if said is None or not classes:
        return said
    names = {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    return {**said, "config": {**said["config"], **names}}


def public_data_of(base: Base) -> list[str]:
    """Data that the run read as public ones, to train on or to probe the model with: "data:" and a name each."""
    carrier = base.method.carrier
    named = [base.settings.public_rows, carrier.source]
    return [shown(one) for one in named if one is not None and one.startswith(DATA)]


def lora_facts(model: nn.Module, scale: float) -> dict[str, Any] | None:
    """Adapted layers, and s of W_0 + s B A; ``merges``: whether that weight alone gives the same outputs."""
    layers = adapted_layers(model)
    if not layers:
        return None
    linear = all(type(layer.base) in (nn.Linear, nn.Conv2d) for layer in layers.values())
    return {"scale": scale, "layers": list(layers), "merges": linear}
