"""What a ServerApp written for ``FedAvg`` gives to a strategy: what works here, and what to say in place of others."""

from collections.abc import Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord

EVALUATES = "the server evaluates the model, on the workload's public test rows, with the workload's metrics="
OTHERWISE = {
    "min_train_nodes": "clients_per_round=, who trains in a round, and min_survivors=, how many must answer",
    "min_fit_clients": "clients_per_round=, who trains in a round, and min_survivors=, how many must answer",
    "min_evaluate_clients": EVALUATES,
    "fraction_evaluate": EVALUATES,
    "min_evaluate_nodes": EVALUATES,
    "evaluate_metrics_aggr_fn": EVALUATES,
    "evaluate_fn": "start(evaluate_fn=...), or the workload's metrics=",
    "train_metrics_aggr_fn": "no metrics of training: clients send what is private, and nothing else",
    "weighted_by_key": "weighting=, equal or by each client's public number of examples",
    "arrayrecord_key": "no name: payloads are packed by fedlsg",
    "configrecord_key": "no name: settings travel with each message",
    "inplace": "no such choice",
    "initial_parameters": "the workload's model: load a checkpoint in the function that builds it",
    "fit_metrics_aggregation_fn": "no metrics of training: clients send what is private, and nothing else",
    "evaluate_metrics_aggregation_fn": EVALUATES,
    "on_fit_config_fn": "settings as arguments: learning_rate=, local_steps=, ...",
}
"""What takes the place of an argument of FedAvg, of Flower's versions before 1.20 among them."""
KEYS = {
    "lr": "learning_rate", "learning-rate": "learning_rate", "learning_rate": "learning_rate",
    "local-epochs": "local_steps and sample_rate", "local_epochs": "local_steps and sample_rate",
    "epochs": "local_steps and sample_rate", "batch-size": "batch_size", "batch_size": "batch_size",
    "momentum": "momentum", "proximal-mu": "proximal", "proximal_mu": "proximal",
}  # fmt: skip
"""Settings that take the place of usual keys of a config."""


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings without FedAvg's arguments, which are translated.

    ``min_available_nodes`` is ``clients`` where that is not given; ``fraction_train`` of ``clients`` is
    ``clients_per_round``. Raises ValueError, with the setting to say instead, for those without a counterpart.
    """
    found = dict(settings)
    if found.get("fraction_evaluate") == 0.0:
        del found["fraction_evaluate"]
    if (least := found.pop("min_available_nodes", found.pop("min_available_clients", None))) is not None:
        found.setdefault("clients", least)
    share = found.pop("fraction_train", found.pop("fraction_fit", None))
    if share is not None and share != 1.0:
        if not 0 < share < 1:
            raise ValueError(f"expected 0 < fraction_train={share!r} <= 1")
        if found.get("clients") is None:
            raise ValueError(
                f"fraction_train={share} of how many clients? Give clients= as well, or clients_per_round= in its place"
            )
        found.setdefault("clients_per_round", max(1, int(share * found["clients"])))
    for name in found:
        if name in OTHERWISE:
            raise ValueError(f"{name} is an argument of Flower's FedAvg: leave it out; in its place: {OTHERWISE[name]}")
    return found


def check_configs(
    initial_arrays: ArrayRecord | None, train_config: ConfigRecord | None, evaluate_config: ConfigRecord | None
) -> None:
    """Raise ValueError for what ``start`` of another strategy takes and this one has elsewhere."""
    if initial_arrays is not None:
        raise ValueError(
            "initial_arrays: the initial weights are those of the workload's model, which server and clients build "
            "alike; load a checkpoint in the function that builds it, and leave initial_arrays out"
        )
    if train_config:
        named = {key: KEYS[key] for key in train_config if key in KEYS}
        example = (
            ", ".join(f"{key} as {setting}" for key, setting in named.items()) or "the learning rate as learning_rate"
        )
        raise ValueError(
            f"train_config has {', '.join(train_config)}: settings of training are arguments of Strategy, {example}; "
            "no key is read by clients"
        )
    if evaluate_config:
        raise ValueError(f"evaluate_config has {', '.join(evaluate_config)}: {EVALUATES}, and no client does")
