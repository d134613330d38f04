"""Reference of the public names: ``fedlsg`` and ``fedlsg.flower``, with signatures and
docstrings.
"""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import fedlsg
import fedlsg.flower
from docs._sphinx.reference.markdown import docstring, page

WIDTH = 100
GROUPS = {
    "Simulate": (
        "simulate",
        "Workload",
        "load_workload",
        "Higher",
        "Lower",
        "Run",
        "load_run",
        "compare",
    ),
    "Callbacks": (
        "Callback",
        "StopRun",
        "EarlyStopping",
        "BestModel",
        "MLflow",
        "WeightsAndBiases",
    ),
    "Train in your own loop": ("PrivateStep", "make_supported", "register_layer"),
    "Methods": (
        "Method",
        "Carrier",
        "OwnCarriers",
        "Mask",
        "Mechanism",
        "ServerOptimizer",
        "Public",
        "Setting",
        "recipe",
    ),
    "Privacy accounting": (
        "epsilon",
        "epsilon_of_data",
        "calibrate_noise_multiplier",
        "Ledger",
    ),
    "Carriers": ("decompose", "project", "reconstruct"),
    "Payloads": ("pack", "unpack"),
}
"""Every public name of ``fedlsg`` but ``__version__``, in the order of the page."""
WITH_MEMBERS = ("Callback", "Run", "PrivateStep", "Public", "Strategy")
"""Classes whose methods users call."""


def api() -> str:
    """The page."""
    sections = [
        part
        for group, names in GROUPS.items()
        for part in (f"## {group}", *(described(fedlsg, name) for name in names))
    ]
    flower = (described(fedlsg.flower, name) for name in fedlsg.flower.__all__)
    return page(
        "Python",
        "These names are public: [what that promises](../stability.md). Everything else may move.",
        *sections,
        "## Flower apps",
        *flower,
    )


def described(module: ModuleType, name: str) -> str:
    """Signature, docstring and public methods of a name."""
    subject = getattr(module, name)
    head = [
        f"### {module.__name__}.{name}",
        code(signature(f"{module.__name__}.{name}", subject)),
        docstring(subject),
    ]
    return "\n\n".join([*head, *members(subject)]) if name in WITH_MEMBERS else "\n\n".join(head)


def members(subject: type) -> Iterator[str]:
    """Public methods and properties that a class itself documents."""
    for name, member in vars(subject).items():
        function = (
            member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        )
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        shown = (
            f".{name}"
            if isinstance(member, property)
            else signature(f".{name}", function, skip_self=True)
        )
        yield f"{code(shown)}\n\n{docstring(function)}"


def signature(name: str, subject: Any, *, skip_self: bool = False) -> str:
    """A call as one writes it, an argument a line where it is long."""
    found = inspect.signature(getattr(subject, "__wrapped__", subject))
    arguments = [argument(one) for one in list(found.parameters.values())[skip_self:]]
    arguments = with_star(arguments, list(found.parameters.values())[skip_self:])
    back = found.return_annotation
    end = (
        ""
        if back is inspect.Signature.empty or inspect.isclass(subject)
        else f" -> {annotation(back)}"
    )
    one_line = f"{name}({', '.join(arguments)}){end}"
    return (
        one_line
        if len(one_line) <= WIDTH
        else "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){end}"])
    )


def with_star(arguments: list[str], parameters: list[inspect.Parameter]) -> list[str]:
    """The arguments, with ``*`` before those that need their keyword."""
    keyword = [parameter.kind is inspect.Parameter.KEYWORD_ONLY for parameter in parameters]
    if True in keyword and not any(
        parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters
    ):
        arguments.insert(keyword.index(True), "*")
    return arguments


def argument(parameter: inspect.Parameter) -> str:
    """One argument with type and default."""
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}.get(
        parameter.kind, ""
    )
    kind = (
        ""
        if parameter.annotation is inspect.Parameter.empty
        else f": {annotation(parameter.annotation)}"
    )
    default = parameter.default
    if default is inspect.Parameter.empty:
        return f"{stars}{parameter.name}{kind}"
    return f"{stars}{parameter.name}{kind} = {value(default)}"


def value(default: Any) -> str:
    """A default as code; no address and no long object."""
    if dataclasses.is_dataclass(default):
        return f"{type(default).__name__}()"
    return re.sub(r"<(?:function|object|class) ([\w.]+).*?>|<.*?>", r"\1", repr(default)) or "..."


def annotation(found: Any) -> str:
    """A type as a reader writes it."""
    text = (
        found
        if isinstance(found, str)
        else getattr(found, "__name__", "")
        if inspect.isclass(found)
        else str(found)
    )
    text = re.sub(r"typing\.Annotated\[(.*?), Setting\(.*?fallback=[^)]*\)\]", r"\1", text)
    text = re.sub(r"(?:[a-z_]\w*\.)+(?=\w)", "", text)
    text = re.sub(r"\*<class '(\w+)'>", r"Unpack[\1]", text)
    return re.sub(r"Optional\[(\w+)\]", r"\1 | None", text)


def code(text: str) -> str:
    """A block of Python that is not run."""
    return f"```py\n{text}\n```"
