"""``python -m docs._sphinx.typed``: the types of settings in signatures, from their declarations.

Editors and type checkers read them: ``simulate(learning_rate=0.5)``, ``PrivateStep(..., rank=4)``.
``tests/documents/test_typed.py`` compares the files with what this makes.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from inspect import Parameter, formatannotation, signature
from pathlib import Path
from typing import Any

from fedlsg import strategies
from fedlsg.config import Declared
from fedlsg.simulations.run.simulate import MORE, simulate
from fedlsg.simulations.settings.settings import AUTOMATIC, RATE, all_settings
from fedlsg.simulations.workloads import Workload
from fedlsg.strategies.private_step import PrivateStep

ROOT = Path(__file__).resolve().parents[2]
MADE = "Made by ``python -m docs._sphinx.typed``: do not edit."
INTERNAL = ("auto", "from_preset", "run_dir", "settings")
"""Settings that a run writes and nobody gives."""
STRATEGIES, API = "strategies/method_settings_typed.py", "simulations/run/run_settings_typed.py"
SHARES = ("noise_share", "colluders")


def files() -> dict[str, str]:
    """Text of each file by its path."""
    return {STRATEGIES: _of_methods(), API: _of_runs()}


def _of_methods() -> str:
    own = {**strategies.common_settings(), **strategies.recipe_settings()}
    named = explicit(PrivateStep.__init__)
    step = {name: own[name] for name in sorted(own) if name not in (*named, *SHARES)}
    rest = {name: own[name] for name in sorted(own) if name in named}
    return "\n".join(
        [
            f'"""Types of the settings of methods. {MADE}"""',
            "",
            "from typing import Literal, TypedDict",
            "",
            "",
            *_class(
                "StepSettings",
                "TypedDict",
                "Settings of a private step: of a recipe, of clip and noise, of the optimizer.",
                step,
            ),
            "",
            "",
            *_class("MethodSettings", "StepSettings", "Settings of a method.", rest),
            "",
        ]
    )


def _of_runs() -> str:
    runs = all_settings()
    methods = {*strategies.common_settings(), *strategies.recipe_settings()} - {*SHARES}
    skipped = {*INTERNAL, *explicit(simulate)}
    known = {name: runs[name] for name in sorted(runs) if name not in {*skipped, *methods}}
    more = {
        field.name: _written(field.name, field.type)
        for field in fields(Workload)
        if field.name in MORE - known.keys()
    }
    lines = [
        f'"""Types of the settings of runs. {MADE}"""',
        "",
        "from collections.abc import Callable, Sequence",
        "from typing import Any, Literal",
        "",
        "from fedlsg.carriers.probe.carrier import Draw",
        "from fedlsg.strategies.method_settings_typed import MethodSettings",
        "",
        "",
    ]
    return "\n".join(
        [
            *lines,
            *_class(
                "RunSettings",
                "MethodSettings",
                "Settings of a run, and further arguments of ``Workload``.",
                known,
                more,
            ),
            "",
        ]
    )


def explicit(of: Callable[..., Any]) -> list[str]:
    """Names that a signature has itself."""
    return [
        name
        for name, one in signature(of).parameters.items()
        if one.kind is not Parameter.VAR_KEYWORD
    ]


def _class(
    name: str, base: str, summary: str, known: Mapping[str, Declared], more: Mapping[str, str] = {}
) -> Iterable[str]:
    yield f"class {name}({base}, total=False):"
    yield f'    """{summary}"""'
    yield ""
    for setting, one in known.items():
        yield f"    {setting}: {_type(one)}"
    for argument, words in more.items():
        yield f"    {argument}: {words}"


def _written(name: str, kind: Any) -> str:
    """An annotation of ``Workload`` as its file has it."""
    words = formatannotation(kind).replace("collections.abc.", "").replace("typing.", "")
    return "Draw | None" if name == "probe" else words


def _type(one: Declared) -> str:
    if one.choices and not one.setting.others and all(isinstance(c, str) for c in one.choices):
        words = f"Literal[{', '.join(repr(choice).replace(chr(39), chr(34)) for choice in one.choices)}]"
        words = words if len(words) < 80 else "str"
    else:
        words = one.kind.__name__
    if one.name == RATE:  # auto, or a multiple as x0.5
        return f"{words} | str"
    words += ' | Literal["auto"]' if one.name in AUTOMATIC and one.kind is not str else ""
    return f"{words} | None" if one.optional else words


def main() -> None:
    """Write the files."""
    for path, text in files().items():
        (ROOT / path).write_text(text)
        print(path)


if __name__ == "__main__":
    main()
