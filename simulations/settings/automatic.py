"""The values of ``auto``: the device, the method of a run, and settings that a rule chooses.

``device`` is sent as the user gave it: each process resolves ``auto`` for itself. So a server
without a GPU may have clients with one. Secret and public draws are made on the CPU on every
device.

``method=auto``: a workload with a preset takes ``lsg``, which its settings are made for. A model of
a user's own, or a linear head on public features, takes ``dpsgd``: dense updates were the most
accurate or level in all tasks that were measured. With ``uplink_budget`` every workload takes
``dpsgd`` if it fits, else ``lsg`` without frozen units, at the largest rank that fits.

The rule of ``fedlsg.training.auto`` is on if neither the user nor the workload's preset has a
learning rate, and if a user gives ``learning_rate=auto``, ``rounds=auto`` or ``epochs``. A given
setting replaces the rule's value. Presets are made for networks: they have no learning rate for a
linear head.
"""

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import torch

from fedlsg import strategies
from fedlsg.carriers import find_classifier, layer_table, prepare_model
from fedlsg.config.units import unit_named
from fedlsg.gradients import check_initialized
from fedlsg.method import Method
from fedlsg.payload import Dither, codec_settings, find_codec
from fedlsg.randomness import own_draws, public_generator
from fedlsg.rows import seeds_replaced
from fedlsg.simulations import workloads
from fedlsg.simulations.settings.any_run import Device
from fedlsg.simulations.settings.settings import AUTO, AUTOMATIC, RATE, Settings, values_of
from fedlsg.simulations.workloads import LoadedWorkload
from fedlsg.simulations.workloads.base.initial_model import build_model
from fedlsg.simulations.workloads.partition import persons_of
from fedlsg.tensors import spaced
from fedlsg.training.auto import (
    EPOCHS,
    HEAD_EPOCHS,
    auto_rounds,
    auto_schedule,
    auto_server,
    size_factor,
)


def device_of(wanted: Device) -> str:
    """``"cpu"`` or ``"cuda"``; for ``"auto"``, CUDA if torch finds it in this process.

    "cuda" is torch's current device: of several GPUs, the one that Ray or CUDA_VISIBLE_DEVICES puts
    first. Raises ValueError for ``"cuda"`` if torch finds none.
    """
    has_cuda = torch.cuda.is_available()
    if wanted == "cuda" and not has_cuda:
        raise ValueError(
            "device=cuda: torch finds no CUDA device here; give device=cpu, or device=auto to take "
            "one where it is"
        )
    return "cuda" if has_cuda and wanted != "cpu" else "cpu"


LOADED = "loaded-weights"
"""A word of the setting ``auto``: the rule found that most trainable numbers were loaded."""


class Loaded(NamedTuple):
    """The trainable numbers of a model that were trained before.

    body: whether most numbers below the classifier were loaded.
    classifier: whether most numbers of the classifier were loaded.
    size: the ``size_factor`` of all trainable parameters.
    """

    body: bool
    classifier: bool
    size: float


def loaded_parts(settings: Settings, workload: LoadedWorkload) -> Loaded:
    """Find the loaded numbers of a model: those that are equal in two models with other seeds.

    A function that seeds itself would build equal random numbers twice. So its seeds are replaced
    for the second model.
    """
    name = settings.model or workload.default_model
    first = build_model(workload, name, settings.seed)
    other_seeds = count(settings.seed + 1)
    with own_draws("cpu"), seeds_replaced(lambda generator, given: next(other_seeds)):
        second = build_model(workload, name, settings.seed + 1)
    check_initialized(first)
    head = workload.classifier or find_classifier(first)
    others = dict(second.named_parameters())
    excess = {"body": 0, "classifier": 0}  # loaded numbers less others
    for path, value in first.named_parameters():
        # a bias or scale that begins as a constant is equal in any two models
        is_constant = bool((value == value.flatten()[0]).all()) if value.numel() > 1 else True
        if not value.requires_grad or is_constant:
            continue
        other = others.get(path)
        is_loaded = (
            other is not None and other.shape == value.shape and bool((other == value).all())
        )
        part = "classifier" if path.startswith(f"{head}.") else "body"
        excess[part] += value.numel() if is_loaded else -value.numel()
    trainable = (value for value in first.parameters() if value.requires_grad)
    return Loaded(excess["body"] > 0, excess["classifier"] > 0, size_factor(trainable))


PRESET_METHOD, DENSE, SMALL = "lsg", "dpsgd", "lsg"
"""Methods that ``auto`` chooses: for presets, with dense updates, and with small updates."""
RANKS = (32, 16, 8, 4, 2, 1)
"""Ranks that are tried for an ``uplink_budget``, in this order."""
VALUE_BYTES = 4
"""Bytes of a value without a codec, in secure sums."""
BLOCK_BYTES = 4
"""Bytes that codecs send for a block in addition to its values, at most."""
TRIED_VALUES = 2**18
"""Values, at most, that are encoded to measure the bytes of a value."""
SIGNAL = 2**0.5
"""Standard deviation of these values over that of the noise: signal and noise have variance 1 each,
as for rho = 1."""


def choose_method(settings: Settings, workload: LoadedWorkload) -> Settings:
    """The settings with a method instead of ``auto``; the setting ``auto`` then names it.

    Raises ValueError for a budget that no method meets.
    """
    if settings.method != AUTO:
        return settings
    chosen: dict[str, Any] = {}
    has_preset = "learning_rate" in workload.defaults and not _is_linear_head(settings, workload)
    if has_preset and settings.uplink_budget is None:
        name = PRESET_METHOD
    else:
        name, chosen = _method_by_size(settings, workload)
    words = [*(settings.auto or "").split(), "method", *chosen]
    return replace(
        settings, method=name, parameters={**chosen, **settings.parameters}, auto=" ".join(words)
    )


def _method_by_size(settings: Settings, workload: LoadedWorkload) -> tuple[str, dict[str, Any]]:
    """The method by the size of its updates, and settings for it."""
    common = {*strategies.common_settings(), *codec_settings()}
    of_methods = [name for name in settings.parameters if name not in common]
    if of_methods and not set(of_methods) <= strategies.own_settings(DENSE):
        if not set(of_methods) <= strategies.own_settings(SMALL):
            raise ValueError(
                f"{', '.join(of_methods)}: a setting of some methods; name one with method="
            )
        return SMALL, {}
    budget = settings.uplink_budget
    if budget is None:
        return DENSE, {}
    dense = _bytes(strategies.recipe(DENSE), settings, workload)
    if dense <= budget:
        return DENSE, {}
    if _is_linear_head(settings, workload):
        raise ValueError(_fewer_axes(budget, dense, settings, workload))
    least = dense
    for rank in RANKS:
        with suppress(ValueError):  # a rank that carries no layer of this model
            least = _bytes(strategies.recipe(SMALL, rank=rank, sparsity=0.0), settings, workload)
            if least <= budget:
                return SMALL, {"rank": rank, "sparsity": 0.0}
    raise ValueError(
        f"uplink_budget={budget}: with codec {settings.codec} dense updates of this model have "
        f"{dense:,} bytes, and those of method {SMALL} {least:,} or more; give uplink_budget="
        f"{least}, or a codec of fewer bits a value"
    )


def _fewer_axes(budget: int, dense: int, settings: Settings, workload: LoadedWorkload) -> str:
    """The message for a linear head of ``dense`` bytes that is larger than the budget.

    A head on n features has (n + 1) values for each class, with its bias. No carrier is smaller.
    """
    classes = workload.classes("feature_axes")
    bytes_each = dense / sum(_counts(strategies.recipe(DENSE), settings, workload))
    axes = int(budget / (bytes_each * classes)) - 1
    advice = f"give feature_axes={axes}" if axes > 0 else f"give uplink_budget={dense}"
    return (
        f"uplink_budget={budget}: an update of a linear head on these features has {dense:,} "
        f"bytes with codec {settings.codec}: {advice}, or a codec of fewer bits a value"
    )


def _counts(method: Method, settings: Settings, workload: LoadedWorkload) -> list[int]:
    """Values of each parameter in an update of the workload's model."""
    model = build_model(workload, settings.model or workload.default_model, settings.seed)
    prepare_model(model, method.carrier, classifier=workload.classifier, seed=settings.seed)
    rows = layer_table(model, method.carrier, workload.classifier)
    return [row.count * row.values for row in rows if row.values]


def _bytes(method: Method, settings: Settings, workload: LoadedWorkload) -> int:
    """Bytes of an update of the workload's model, as the codec sends them.

    They are exact for values of one size. For other codecs random values are encoded, with standard
    deviation ``SIGNAL``: those of a run are not larger if its rho is 1 or more.
    """
    counts = _counts(method, settings, workload)
    codec = find_codec(settings.codec).with_settings(settings.parameters)
    size = VALUE_BYTES if settings.trust == "secure" else codec.bytes_each
    if size is not None:
        return size * sum(counts)
    tried = min(sum(counts), TRIED_VALUES)
    values = SIGNAL * torch.randn(tried, generator=public_generator(0, "size of an update"))
    encoded = codec.encode(values, [tried], Dither(seed=0, client=0, noise_std=1.0), 1)
    return math.ceil(len(encoded) * sum(counts) / tried) + 2 * BLOCK_BYTES * len(counts)


def check_budget(settings: Settings, sent: int) -> None:
    """Raise ValueError if a rehearsed update has more bytes than ``uplink_budget``.

    ``_bytes`` assumes that the signal is not longer than the noise; this update had a longer one.
    """
    if settings.uplink_budget is not None and sent > settings.uplink_budget:
        used = int(settings.parameters.get("rank", 0))
        smaller = f"rank={used // 2}" if used > 1 else f"method={SMALL} with a rank"
        raise ValueError(
            f"uplink_budget={settings.uplink_budget}: in a round on public rows an update of "
            f"method {settings.method}, of the largest batch, has {sent:,} bytes with codec "
            f"{settings.codec}, for its values are longer than their noise: give uplink_budget="
            f"{sent} or more, or {smaller}"
        )


def method_line(settings: Settings) -> str | None:
    """A sentence why a run has its method; None if a user named it, or the preset has it."""
    if not {"method", "learning_rate"} <= set((settings.auto or "").split()):
        return None
    budget = settings.uplink_budget
    if settings.method == DENSE:
        why = "no uplink_budget is given"
        if budget is not None:
            why = f"they fit uplink_budget={budget:,} bytes"
        return f"method {DENSE}: dense updates are the most accurate, and {why}"
    if budget:
        words = f"dense updates are larger than uplink_budget={budget:,} bytes"
        return f"method {settings.method}: {words}"
    return f"method {settings.method}: it has the settings that are given"


RULED = (
    "rounds",
    "sample_rate",
    "optimizer",
    "optimizer_options",
    "learning_rate",
    "classifier_learning_rate",
    "layer_rates",
    "ema",
)
"""Settings that the rule gives."""
SMALL_AT_START = ("lora",)
"""Carriers whose factors are always new, also on pretrained weights."""
LINEAR = "linear"
"""The model that is a linear head."""
SGD = "sgd"
BLOCKS = (RATE, "momentum", "optimizer")
"""Settings that turn the rule off if they are given; an optimizer only if it is ``SGD``."""
BESIDE_RATES = ("momentum", "schedule", "final_learning_rate", "clip_norm", "batch_size")
"""Settings that presets give for their learning rates."""


def _is_linear_head(settings: Settings, workload: LoadedWorkload) -> bool:
    """Whether a run trains a linear model on public features. It starts at zero."""
    return workload.features is not None and settings.model in (None, LINEAR)


def _leaves_rates_open(given: Mapping[str, Any]) -> bool:
    """Whether the settings leave the learning rate to the rule, see ``BLOCKS``."""
    optimizer = str(given.get("optimizer", "adam")).lower()
    return optimizer != SGD and not {*BLOCKS} - {"optimizer"} & set(given)


def tuned_settings(settings: Settings, workload: LoadedWorkload) -> dict[str, Any]:
    """The workload's preset for the method; for a linear head on features without its rates."""
    tuned = preset_of(workload.name, settings.method, workload.defaults, workload.method_defaults)
    if _is_linear_head(settings, workload) and _leaves_rates_open(values_of(settings)):
        return {name: value for name, value in tuned.items() if name not in (*RULED, *BESIDE_RATES)}
    return tuned


def preset_of(
    workload: str,
    method: str,
    defaults: Mapping[str, Any],
    of_methods: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """The preset of a workload for a method.

    Presets of fedlsg's workloads were made for its methods: a recipe of a user's own keeps the
    defaults that it declares.
    """
    of_user = strategies.is_users(method) and workload in workloads.names()
    kept = strategies.own_settings(method) if of_user else ()
    common = {name: value for name, value in defaults.items() if name not in kept}
    return common | dict(of_methods.get(method, {}))


def fill_auto(
    settings: Settings, workload: LoadedWorkload, tuned: Mapping[str, Any], clients: int
) -> dict[str, Any]:
    """The values that the rule gives, with ``auto`` naming them; empty if the rule is off.

    ``tuned``: of ``tuned_settings``. Raises ValueError for ``epochs`` that would change nothing or
    do not fit into the given rounds, and if the rule cannot know a number that it needs.
    """
    given = values_of(settings)
    asked = (settings.auto or "").split()
    chooses_rates = ("learning_rate" in asked and "learning_rate" not in given) or (
        "learning_rate" not in tuned and _leaves_rates_open(given)
    )
    chooses_rounds = "rounds" not in given and (
        "rounds" in asked
        or settings.epochs is not None
        or (chooses_rates and "rounds" not in tuned)
    )
    values = {**tuned, **given, "clients": clients}
    if chooses_rounds and "rounds" in tuned and "sample_rate" not in given:
        values.pop("sample_rate", None)  # a preset's rate is made for its number of rounds
    has_batches = "sample_rate" in values or "batch_size" in values
    filled: dict[str, Any] = {}
    head = _is_linear_head(settings, workload)
    passes = _passes(settings, values, HEAD_EPOCHS if head else EPOCHS)
    if chooses_rounds:
        values.pop("rounds", None)
        filled |= _schedule(settings, workload, values, passes, has_batches=has_batches)
    elif chooses_rates and not has_batches:
        steps = int(values.get("local_steps", 1)) * values["rounds"]
        if settings.epochs is not None and passes > steps:
            least = math.ceil(passes / int(values.get("local_steps", 1)))
            raise ValueError(
                f"epochs={settings.epochs:g} do not fit into rounds={values['rounds']}: give "
                f"{least} rounds or more, or leave one of them out"
            )
        filled |= {"sample_rate": _sample_rate(values, passes)}
    elif settings.epochs is not None and not {"rounds", "sample_rate"} & set(asked):
        raise ValueError(
            f"epochs={settings.epochs:g} chooses rounds, and rounds={settings.rounds} is given: "
            "leave one out"
        )
    words = [name for name in asked if name not in AUTOMATIC]
    if chooses_rates:
        carrier = strategies.with_own(settings.method, settings.parameters).carrier.kind
        loaded = loaded_parts(settings, workload)
        pretrained = loaded.body and carrier not in SMALL_AT_START
        filled |= auto_server(
            int({**values, **filled}["rounds"]),
            dense=carrier == "dense",
            size=loaded.size,
            regression=_regression(workload),
            pretrained=pretrained,
            new_head=not loaded.classifier,
            row_length=_row_length(workload) if head else None,
        )
        if str(given.get("optimizer", "adam")).lower() != "adam":
            del filled["optimizer_options"]  # they are Adam's
    chosen = {name: value for name, value in filled.items() if name not in given}
    if not chosen:
        return {}
    words += chosen
    if chooses_rates and pretrained:
        words.append(LOADED)
    return chosen | {AUTO: " ".join(words)}


MEASURED = 200
"""Public rows whose length is measured, at most."""


def _row_length(workload: LoadedWorkload) -> float:
    """The root mean square norm of the features of public rows, to two digits."""
    test = workload.test
    rows = test.batch(spaced(len(test), MEASURED))[0].flatten(1)
    return float(f"{float(rows.square().sum(1).mean().sqrt()):.2g}")


def _passes(settings: Settings, values: Mapping[str, Any], epochs: float) -> float:
    """Passes over the data of a client that would take part in every round.

    E epochs for each client, times K / k if k of K clients take part in a round: then each client
    needs K / k times the rounds. ``epochs``: E, unless the user gives it.
    """
    clients = int(values["clients"])
    per_round = min(clients, int(values.get("clients_per_round") or clients))
    return (settings.epochs or epochs) * clients / per_round


def _sample_rate(values: Mapping[str, Any], passes: float) -> float:
    """The rate with which all local steps of the run make so many passes."""
    steps = int(values.get("local_steps", 1)) * values["rounds"]
    return float(f"{min(1.0, passes / steps):.4g}")


def _schedule(
    settings: Settings,
    workload: LoadedWorkload,
    values: Mapping[str, Any],
    passes: float,
    *,
    has_batches: bool,
) -> dict[str, Any]:
    """Rounds, and the sample rate unless batches are given (``has_batches``).

    If the unit is a client, its number of examples is secret: then a round is an epoch.
    """
    local_steps = int(values.get("local_steps", 1))
    if unit_named(settings.unit).whole:
        return {"rounds": auto_rounds(passes, 1.0)}
    if not has_batches:
        rounds, chosen = auto_schedule(passes, local_steps=local_steps)
        return {"rounds": rounds, "sample_rate": float(f"{chosen:.4g}")}
    rate: float | None = values.get("sample_rate")
    if rate is None or settings.batch_size is not None:
        rate = min(1.0, values["batch_size"] * values["clients"] / _units(settings, workload))
    return {"rounds": auto_rounds(passes, float(rate), local_steps=local_steps)}


def _units(settings: Settings, workload: LoadedWorkload) -> int:
    """The number of examples of all clients; of persons if the unit is a person."""
    if not len(workload.train):
        raise ValueError(
            "rounds=auto needs the number of training rows, which only clients know here: give "
            "rounds"
        )
    if not unit_named(settings.unit).persons:
        return len(workload.train)
    return int(persons_of(workload, settings.unit).max()) + 1


def _regression(workload: LoadedWorkload) -> bool:
    """Whether the public test targets are numbers: neither classes nor labels that are 0 or 1."""
    targets = workload.test.labels
    return targets.is_floating_point() and not bool(
        ((targets == 0) | (targets == 1) | targets.isnan()).all()
    )


def rule_line(settings: Settings) -> str | None:
    """A sentence with the settings that the rule chose; None without any."""
    values = values_of(settings)
    words = (settings.auto or "").split()
    chosen = [f"{name}={values[name]}" for name in words if name in values and name in RULED]
    if not chosen:
        return None
    loaded = ""
    if LOADED in words:
        loaded = "; the weights are taken as pretrained, so that the learning rate is a tenth"
    return f"chosen by the rule for runs without tuning: {', '.join(chosen)}{loaded}"
