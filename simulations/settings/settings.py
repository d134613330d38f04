"""All settings: their declarations by name, from raw values to ``Settings``, and back.

The same names serve the command line (``--rank 8`` or ``-c rank=8``), ``flwr run . --run-config
"rank=8"`` (with dashes) and ``config.toml`` of a run directory. A setting that is None, or
``"preset"`` in a file, takes the workload's value (see ``fedlsg.simulations.settings.resolve``).
Settings of every run are known without torch. Others (of a method, the mechanism, the server,
codecs) are declared where they are used; functions import that, for it loads torch.
"""

import re
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

from fedlsg.config import Declared, declared, summary_of, unknown
from fedlsg.simulations.settings.any_run import Settings as Settings
from fedlsg.user_code import absolute, is_code, is_reference, permit

PRESET = "preset"
AUTO = "auto"
"""The value of a setting that a rule chooses, and the setting that names what the rule chose."""

NO_SETTINGS: Mapping[str, str] = MappingProxyType({})

RUN: Mapping[str, Declared] = MappingProxyType(declared(Settings, without=("parameters",)))

GROUPS_OF_RUN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        summary_of(group.__doc__): tuple(
            name for name in group.__annotations__ if name != "parameters"
        )
        for group in reversed(Settings.__mro__[1:-1])
    }
)
"""Names of the settings of a run in groups, by the title of each."""

PLACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "multiplicity": (
            "rank",
            "sparsity",
            "direction",
            "power_steps",
            "warmup",
            "cooling",
            "importance",
            "sparsity_from",
            "residual",
            "redraw",
            "ranking",
            "carrier",
            "refresh",
            "lora_alpha",
            "topk_rate",
            "prune",
            "prune_rate",
            "prune_epsilon_share",
            "prune_clip_norm",
            "drop",
            "drop_rate",
            "mechanism",
            "clip",
            "clip_norm",
            "norms_clip_weight",
            "classifier_clip_weight",
        ),
        "shards_per_client": (
            "estimator",
            "optimizer",
            "learning_rate",
            "final_learning_rate",
            "norms_learning_rate",
            "classifier_learning_rate",
            "layer_rates",
            "momentum",
            "weight_decay",
            "schedule",
            "sparsify_update",
            "ema",
        ),
        "codec": ("noise_floor_step",),
    }
)
"""After which setting of a run files have these; any other one comes last, and needs no entry."""

FOLDERS = ("run_dir", "data_dir", "data_root")
"""Settings that name folders of this machine."""

OF_RAY = ("workers", "client_cpus", "client_gpus", "data_from", "client_timeout")
"""Settings that only Ray has. Engine ``local`` has a ``client_timeout``, too, but cannot stop code
that never returns to Python, and is lost with a client that ends its process.
"""

AUTOMATIC = ("rounds", "learning_rate")
"""Settings that take the value "auto"."""

RATE = "learning_rate"
RATES = (RATE, "final_learning_rate", "norms_learning_rate", "classifier_learning_rate")
"""The learning rate, and the settings whose values are in proportion to it."""
TIMES = "*"
"""Between the name and a multiple, among what a rule is to choose."""
FACTOR = r"\s*x(\d+\.?\d*|\.\d+)\s*"
"""A multiple of the value that a run has where nobody gives one, as "x0.5"."""

NAMES_OF_CODE = ("workload", "method")
MAY_NAME_FILES = (*NAMES_OF_CODE, "source")
"""Settings that may name a file: FILE.py:NAME."""

KNOWN = frozenset(name for names in PLACES.values() for name in names)
"""Settings that are no run's own, and are known not to be misspelt without a look at the
methods.
"""


def method_settings() -> dict[str, Declared]:
    """Settings of the recipes. Raises ValueError where two recipes, or a recipe and a run, declare
    one name.
    """
    from fedlsg import strategies

    declared, taken = strategies.recipe_settings(), {*RUN, *codec_settings()}
    for name in filter(taken.__contains__, declared):
        takers = ", ".join(strategies.takers_of(name))
        raise ValueError(
            f"method {takers} declares {name!r}, which is a setting of every run: give it another "
            "name"
        )
    return declared


def mechanism_settings() -> dict[str, Declared]:
    """Settings of clip and noise that a user gives; how much noise is a setting of the run."""
    from fedlsg.privacy import Mechanism

    return declared(Mechanism, without=("noise_multiplier", "noise_share", "colluders"))


def server_settings() -> dict[str, Declared]:
    """Settings of what the server does after the sum."""
    from fedlsg.training import ServerOptimizer

    return declared(ServerOptimizer)


def codec_settings() -> dict[str, Declared]:
    """Settings of the codecs. Raises ValueError for a name that a run, the mechanism or the server
    has.

    Two values under one name would make ``config.toml`` report another epsilon than the run has.
    """
    from fedlsg.payload import codec_settings as own

    declared = own()
    for name in declared.keys() & {
        *RUN,
        *mechanism_settings(),
        *server_settings(),
        "noise_multiplier",
        "noise_share",
    }:
        raise ValueError(
            f"a codec declares {name!r}, which is a setting of every run: give it another name"
        )
    return declared


def codec_names() -> dict[str, Declared]:
    """The settings that name a codec, uplink and downlink, with all codecs as choices."""
    from fedlsg.payload import all_codecs

    down = tuple(name for name, codec in all_codecs().items() if codec.goes_down)
    names = {"codec": tuple(all_codecs()), "downlink_codec": down}
    return {setting: replace(RUN[setting], choices=choices) for setting, choices in names.items()}


def all_settings() -> dict[str, Declared]:
    """All settings by name, in the order of config.toml."""
    declared = {
        **RUN,
        **codec_names(),
        **method_settings(),
        **mechanism_settings(),
        **server_settings(),
    }
    declared |= codec_settings()
    return {name: declared[name] for name in in_order(declared)}


def check_parameters(parameters: Iterable[str]) -> None:
    """Raise ValueError for a parameter that nothing declares for users.

    An example is ``noise_share``: it follows from ``trust``, and a given one would make every
    reported epsilon wrong.
    """
    known = all_settings()
    for name in parameters:
        if name not in known or name in RUN:
            raise unknown("parameter", name, known)


def declarations(raw_names: Iterable[str]) -> dict[str, Declared]:
    """The declarations of settings by raw names, which may have dashes.

    Methods, which need torch, are imported only for names that are not settings of every run.
    Raises ValueError for an unknown name, with the nearest known one.
    """
    names = {raw_name: raw_name.replace("-", "_") for raw_name in raw_names}
    known = RUN if RUN.keys() >= set(names.values()) else all_settings()
    for raw_name, name in names.items():
        if name not in known:
            raise unknown("setting", raw_name, known)
    return {raw_name: known[name] for raw_name, name in names.items()}


def check_arguments(
    given: Iterable[str], arguments: Collection[str], *, instead: Mapping[str, str] = NO_SETTINGS
) -> None:
    """Raise ValueError, with the nearest name, for a keyword that is not a setting.

    ``arguments``: other arguments of the function that was called. ``instead``: settings that have
    an argument instead, and are not suggested.
    """
    names = [name for name in given if name.replace("-", "_") not in RUN]
    known = all_settings() if names else RUN
    for name in names:
        if name.replace("-", "_") not in known:
            usable = {key: setting for key, setting in known.items() if key not in instead}
            raise unknown("setting", name, usable, also=arguments)


def in_order(names: Iterable[str]) -> list[str]:
    """Names in the order of config.toml: of a run, others in their places, unknown ones last."""
    given = list(names)
    order = [name for run in RUN for name in (run, *PLACES.get(run, ()))]
    return [name for name in order if name in given] + [name for name in given if name not in order]


def merge(
    options: Mapping[str, Any], pairs: Sequence[str] | None, option: str = "-c"
) -> dict[str, Any]:
    """Raw values of a command line: its options, and KEY=VALUE pairs of ``-c`` or another option.

    The code that they name may run from now on. An option that is None was not given. Raises
    ValueError for a pair without "=", and for a setting that is given twice with different values.
    """
    merged = {name: value for name, value in options.items() if value is not None}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ValueError(f"expected {option} KEY=VALUE, got {pair!r}")
        name = key.strip().replace("-", "_")
        value = value.strip()
        before = merged.get(name, False)  # False: a flag that is not given
        if before is not False and not _are_equal(before, value):
            raise ValueError(f"{name} is given twice, as {before} and as {value}: give it once")
        merged[name] = value
    permit_code(merged)
    return merged


def _are_equal(first: object, second: object) -> bool:
    """Whether two raw values are equal, as numbers if they are: 8.0 and "8"."""
    words = [
        str(value).lower() if isinstance(value, bool) else str(value) for value in (first, second)
    ]
    with suppress(ValueError):
        return words[0] == words[1] or float(words[0]) == float(words[1])
    return False


def parse(given: Mapping[str, object]) -> dict[str, Any]:
    """Settings by name, from raw values: strings of a command line, or typed values of TOML.

    Names may have dashes. Values that are None or ``"preset"`` are left out. A method of a user's
    own is loaded, because it may declare settings. Raises ValueError, naming the setting, for an
    unknown name, with the nearest known one, or a value of the wrong type or out of its range.
    """
    _load_method(given.get("method"))
    known = declarations(given)
    chosen = [
        one.name
        for raw_name, one in known.items()
        if given[raw_name] == AUTO and one.name in AUTOMATIC
    ]
    parsed: dict[str, Any] = {}
    for raw_name, one in known.items():
        value = given[raw_name]
        if value in (None, PRESET) or one.name in chosen:
            continue
        if one.name == RATE and (multiple := re.fullmatch(FACTOR, str(value))):
            chosen.append(f"{RATE}{TIMES}{_above_zero(multiple[1], str(value))}")
            continue
        if (one.name, value) == ("method", AUTO):  # the default
            continue
        for name, own in _of_clients(one.name, value).items():
            if name in parsed and parsed[name] != own:
                raise ValueError(f"{name} is given twice, as {parsed[name]} and as {own}")
            parsed[name] = RUN[name].parse(own) if name in RUN else one.parse(own)
    if chosen:
        parsed[AUTO] = " ".join(chosen)
    return {
        name: absolute(value) if name in MAY_NAME_FILES else value for name, value in parsed.items()
    }


def _above_zero(number: str, value: str) -> str:
    """The number, checked; ``value``: as it was given, for the message."""
    if not float(number) > 0:
        raise ValueError(f"expected a multiple above 0 for {RATE}, such as x0.5, got {value!r}")
    return number


def split_multiple(values: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
    """Parsed values without the multiple of the learning rate; and the multiple, 1 by default."""
    words = str(values.get(AUTO) or "").split()
    factors = [float(word.partition(TIMES)[2]) for word in words if TIMES in word]
    kept = " ".join(word for word in words if TIMES not in word)
    rest = {name: value for name, value in values.items() if name != AUTO}
    return rest | ({AUTO: kept} if kept else {}), factors[0] if factors else 1.0


def times(values: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Values with each learning rate multiplied by ``factor``, to four digits."""
    return {
        name: float(f"{value * factor:.4g}") if name in RATES and factor != 1 else value
        for name, value in values.items()
    }


def _of_clients(name: str, value: Any) -> dict[str, Any]:
    """A raw setting; an epsilon or delta of each client becomes ``client_epsilons`` or so."""
    if name not in ("epsilon", "delta") or isinstance(value, int | float):
        return {name: value}
    if not isinstance(value, str) or "=" in value:
        from fedlsg.simulations.settings.own_epsilons import setting_of  # reads tables

        return setting_of(value, "epsilon" if name == "epsilon" else "delta")
    try:
        float(value)
    except ValueError:
        point = value.replace(",", ".")
        decimal = f"a decimal number has a point, {point}; " if _is_float(point) else ""
        raise ValueError(
            f"expected a number (float) for {name}, got {value!r}: {decimal}for one of each client "
            f"give {name}='north=1, south=4', or client_{name}s=, a column of train or a CSV file"
        ) from None
    return {name: value}


def _is_float(text: str) -> bool:
    with suppress(ValueError):
        float(text)
        return True
    return False


def _load_method(name: object) -> None:
    """Load a method of a user's file."""
    if isinstance(name, str) and is_reference(name):
        from fedlsg import strategies

        strategies.check_name(absolute(name))
        check_names_of(absolute(name))


def check_names_of(method: str) -> None:
    """Raise ValueError for a user's recipe that declares a setting of every run, and forget it."""
    from fedlsg import strategies

    try:
        method_settings()
    except ValueError:
        strategies.forget(method)
        raise


def from_mapping(given: Mapping[str, object]) -> Settings:
    """``Settings`` from raw values, see ``parse``."""
    return from_values(parse(given))


def from_file(given: Mapping[str, object]) -> Settings:
    """``Settings`` that a run wrote.

    Code that they name is not run: settings that it may declare are not parsed. Raises ValueError
    as ``parse``.
    """
    method = given.get("method")
    parsed = {name: value for name, value in given.items() if name != "method"}
    unparsed: dict[str, Any] = {}
    if not RUN.keys() >= {name.replace("-", "_") for name in parsed} and not _is_known(method):
        known = all_settings()
        for raw_name in list(parsed):
            if raw_name.replace("-", "_") not in known:
                unparsed[raw_name.replace("-", "_")] = parsed.pop(raw_name)
    if method not in (None, PRESET, AUTO):
        unparsed["method"] = absolute(RUN["method"].parse(method))
    return from_values(parse(parsed) | unparsed)


def _is_known(method: object) -> bool:
    """Whether a method is declared without running code of a file."""
    from fedlsg import strategies

    return method in (None, PRESET, AUTO) or method in (*strategies.names(), *strategies.given())


def code_in(given: Mapping[str, object]) -> dict[str, list[str]]:
    """Names of code in raw settings, absolute, by the setting that names it; nothing is loaded."""
    named = {}
    for raw_name, value in given.items():
        name, words = raw_name.replace("-", "_"), [str(value)]
        if name == "callbacks":
            words = [name for name, *_ in callback_words(str(value or ""))]
        names_code = is_code if name == "source" else is_reference
        if name in (*MAY_NAME_FILES, "callbacks") and (
            names := [absolute(word) for word in words if names_code(word)]
        ):
            named[name] = names
    return named


def callback_words(text: str) -> list[list[str]]:
    """The setting ``callbacks``: name and parameters of each, as a shell reads them.

    Raises ValueError for a quotation without its end.
    """
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";")
    lexer.whitespace_split, lexer.commenters = True, ""
    callbacks: list[list[str]] = [[]]
    try:
        for word in lexer:
            if set(word) == {";"}:
                callbacks.append([])
            else:
                callbacks[-1].append(word)
    except ValueError as error:
        raise ValueError(
            f"callbacks={text}: {error}; expected names with parameters, as in early-stopping "
            "patience=5; mine.py:log, and an end of each quotation: add it, or leave its mark out"
        ) from None
    return [words for words in callbacks if words]


def callbacks_with(text: str, rename: Callable[[str], str]) -> str:
    """The setting ``callbacks`` with each name changed by ``rename``."""
    return "; ".join(
        shlex.join([rename(name), *parameters]) for name, *parameters in callback_words(text)
    )


def names_given(given: Mapping[str, object]) -> frozenset[str]:
    """The raw settings that the user gave: others are None, "preset" or a flag that is off."""
    return frozenset(
        name.replace("-", "_")
        for name, value in given.items()
        if value is not False and value not in (None, PRESET)
    )


def words_given(given: Mapping[str, object]) -> dict[str, str]:
    """The settings of ``names_given``, each with a word for a number ("auto", "x0.5"), or ""."""
    texts = {name.replace("-", "_"): str(value) for name, value in given.items()}
    words = {}
    for name in sorted(names_given(given)):
        is_word = name in AUTOMATIC and re.fullmatch(f"{AUTO}|{FACTOR}", texts[name])
        words[name] = texts[name].strip() if is_word else ""
    return words


def permit_code(given: Mapping[str, object]) -> None:
    """Let code run that raw settings name, which a user gave (not a run directory)."""
    for names in code_in(given).values():
        permit(*names)


def from_values(values: Mapping[str, Any]) -> Settings:
    """``Settings`` from parsed values by name."""
    of_run = {name: value for name, value in values.items() if name in RUN}
    parameters = {name: value for name, value in values.items() if name not in RUN}
    return Settings(**of_run, parameters=parameters)


def values_of(settings: Settings) -> dict[str, Any]:
    """All settings that have a value, by name, in the order of config.toml."""
    of_run = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name != "parameters"}
    values = {**of_run, **settings.parameters}
    return {name: values[name] for name in in_order(values) if values[name] is not None}


def as_config(settings: Settings) -> dict[str, str | int | float | bool]:
    """The settings that are not None, by name with dashes, for TOML and Flower's run config."""
    return {name.replace("_", "-"): value for name, value in values_of(settings).items()}
