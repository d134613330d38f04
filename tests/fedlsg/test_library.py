"""What counts as library code: library models are, and every planted piece of own code is found and
named.
"""

import base64
import functools
import hashlib
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.overrides import TorchFunctionMode

from fedlsg.carriers import Lora, prepare_model
from fedlsg.gradients import per_example_loss
from fedlsg.simulations import workloads
from fedlsg.simulations.models import vision
from fedlsg.simulations.workloads import build_model
from fedlsg.user_code import library
from fedlsg.user_code.library import own_code

Model = Callable[[], nn.Module]


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def bert() -> Any:
    made = pytest.importorskip("transformers")
    size = {
        "num_hidden_layers": 2,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 8,
    }
    return made.BertForSequenceClassification(made.BertConfig(vocab_size=20, **size))


def with_lora() -> nn.Module:
    model = mlp()
    prepare_model(model, Lora(rank=1), seed=0)
    return model


class OwnSizes(nn.Sequential):
    """Only sizes of its own: no pass runs ``__init__``."""

    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))


LIBRARY: dict[str, Model] = {
    "mlp": mlp,
    "encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, batch_first=True), 2),
    "encoder with F.gelu": lambda: nn.TransformerEncoderLayer(8, 2, activation=F.gelu),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "recurrent": lambda: nn.LSTM(3, 4, num_layers=2),
    "weight norm": lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 4))),
    "compiled": lambda: torch.compile(mlp()),  # type: ignore[dict-item, return-value]
    "own sizes": lambda: OwnSizes(7),
    "lists": lambda: nn.Sequential(
        nn.ModuleDict({"a": nn.Linear(3, 3)}), nn.ModuleList([nn.Linear(3, 3)])
    ),
    "transformers": bert,
    "LoRA": with_lora,
}


@pytest.mark.parametrize("name", LIBRARY)
def test_models_of_libraries_are_library_code(name: str) -> None:
    model = LIBRARY[name]()
    assert own_code(model) is None
    assert own_code(model) is None  # from what was found before


def test_hooks_that_a_library_leaves_behind_are_library_code() -> None:
    model = bert()
    model(input_ids=torch.ones(1, 3, dtype=torch.int64), output_hidden_states=True)
    assert own_code(model) is None


@pytest.mark.thinned(9)
@pytest.mark.parametrize("name", vision(3, 32, 10))
def test_models_that_ship_are_library_code(name: str) -> None:
    assert own_code(vision(3, 32, 10)[name]()) is None


def test_a_workload_that_ships_is_library_code() -> None:
    workload = workloads.load("digits")
    assert own_code(build_model(workload, None, 0)) is None
    assert own_code(workload.loss) is None


LOSSES: dict[str, tuple[Any, bool]] = {
    "module": (nn.CrossEntropyLoss(weight=torch.ones(2)), True),
    "function": (F.mse_loss, True),
    "partial": (functools.partial(F.cross_entropy, reduction="none"), True),
    "per example": (per_example_loss(nn.CrossEntropyLoss()), True),
    "lambda": (lambda outputs, targets: outputs.sum(1), False),
    "partial of a lambda": (
        functools.partial(lambda outputs, targets, *, k: outputs.sum(1), k=1),
        False,
    ),
    "per example of a lambda": (per_example_loss(lambda outputs, targets: outputs.sum(1)), False),
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(name: str) -> None:
    loss, is_library = LOSSES[name]
    assert (own_code(loss) is None) == is_library


def mixing(x: torch.Tensor, *more: Any, **named: Any) -> torch.Tensor:
    return x - x.mean(0)


class OwnLinear(nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return mixing(super().forward(input))


class OwnName(nn.Linear):
    def _get_name(self) -> str:
        return "mine"


class OwnWeight(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return mixing(x)


class OwnTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class OwnMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def changed(change: Callable[[nn.Sequential], object]) -> Model:
    def build() -> nn.Module:
        model = mlp()
        change(model)
        return model

    return build


def with_method(model: nn.Sequential) -> None:
    model[1].forward = types.MethodType(mixing, model[1])  # type: ignore[method-assign]


def with_class(model: nn.Sequential) -> None:
    model[0].__class__ = type(
        "Linear", (nn.Linear,), {"forward": mixing, "__module__": "torch.nn.modules.linear"}
    )


def with_copied_code(model: nn.Sequential) -> None:
    """Code of a library over globals of the user's own."""
    forward = types.FunctionType(
        nn.Linear.forward.__code__, {"F": types.SimpleNamespace(linear=mixing)}
    )
    model[0].__class__ = type("Linear", (nn.Linear,), {"forward": forward})


PLANTED: dict[str, Model] = {
    "a module of its own": changed(lambda m: m.append(OwnWeight())),
    "an override": changed(lambda m: m.append(OwnLinear(2, 2))),
    "another override": changed(lambda m: m.append(OwnName(2, 2))),
    "forward of an instance": changed(with_method),
    "a class with the name of a library's": changed(with_class),
    "code of a library over other globals": changed(with_copied_code),
    "a hook": changed(lambda m: m[1].register_forward_hook(lambda module, args, out: mixing(out))),
    "a hook before": changed(
        lambda m: m[0].register_forward_pre_hook(lambda module, args: (mixing(args[0]),))
    ),
    "a hook backward": changed(lambda m: m[0].register_full_backward_hook(lambda *a: None)),
    "a partial as hook": changed(lambda m: m[0].register_forward_hook(functools.partial(mixing))),
    "a hook on a parameter": changed(lambda m: m[0].weight.register_hook(lambda g: g)),
    "a parametrization": changed(
        lambda m: parametrize.register_parametrization(m[0], "weight", OwnWeight())
    ),
    "an activation": lambda: nn.TransformerEncoderLayer(8, 2, activation=mixing),
    "compiled code with arguments": lambda: nn.TransformerEncoderLayer(
        8, 2, activation=partial(torch.renorm, p=2, dim=0, maxnorm=1.0)
    ),
    "a method by its name": lambda: nn.TransformerEncoderLayer(
        8, 2, activation=methodcaller("renorm", 2, 0, 1.0)
    ),
    "a function in a list": changed(lambda m: setattr(m[0], "held", [1, {"a": mixing}])),
    "a bound method": changed(lambda m: setattr(m[0], "held", OwnLinear(2, 2).forward)),
    "a module that is no child": changed(lambda m: m[0].__dict__.update(held=OwnLinear(2, 2))),
    "a tensor with code": changed(
        lambda m: m.register_buffer("held", torch.ones(2).as_subclass(OwnTensor))
    ),
    "torch.jit": changed(lambda m: m.append(torch.jit.script(nn.Linear(2, 2)))),
    "torch.fx": lambda: torch.fx.symbolic_trace(mlp()),
    "compiled": lambda: torch.compile(nn.Sequential(OwnLinear(2, 2))),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("name", PLANTED)
@pytest.mark.filterwarnings("ignore")
def test_own_code_is_found(name: str) -> None:
    assert own_code(PLANTED[name]())


def test_an_activation_with_arguments_that_changes_each_number_is_library_code() -> None:
    gelu = partial(F.gelu, approximate="tanh")
    assert own_code(nn.TransformerEncoderLayer(8, 2, activation=gelu)) is None


def test_the_text_names_place_kind_and_file() -> None:
    said = own_code(nn.ModuleDict({"body": mlp(), "head": nn.Sequential(OwnLinear(2, 2))}))
    assert said == "head.0: OwnLinear.forward is code of test_library.py"
    assert own_code(OwnLinear(2, 2)) == "OwnLinear: OwnLinear.forward is code of test_library.py"


PATCHES = {
    "forward of a class": (nn.Linear, "forward"),
    "the call of every module": (nn.Module, "__call__"),
    "a function that forward names": (F, "relu"),
    "a builtin that forward names": (F, "linear"),
    "a method of every tensor": (torch.Tensor, "relu_of_mine"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patched_libraries_are_own_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    assert own_code(model) is None
    with monkeypatch.context() as patch:
        patch.setattr(*PATCHES[name], mixing, raising=False)
        assert "test_library.py" in str(own_code(model))
    assert own_code(model) is None


class Mixes:
    """Called as an object, by a method, or as a class."""

    def __new__(cls, *given: Any) -> Any:
        return mixing(*given) if given else super().__new__(cls)

    def __call__(self, *given: Any) -> Any:
        return mixing(*given)

    method = __call__


def scripted(x: torch.Tensor) -> torch.Tensor:
    return x - x.mean(0)


with warnings.catch_warnings(action="ignore"):
    SCRIPTED = torch.jit.script(scripted)


@pytest.mark.parametrize("owner", [F, torch])
@pytest.mark.parametrize(
    "other",
    [Mixes(), Mixes, Mixes().method, partial(mixing), functools.lru_cache(mixing), SCRIPTED],
)
def test_what_is_no_function_in_place_of_one_is_own_code(
    other: Any, owner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, "relu", other)
    assert "test_library.py" in str(own_code(mlp()))
    monkeypatch.setattr(library, "_stands_for_users", lambda value: False)
    assert own_code(mlp()) is None, "negative control: functions alone are read"


def test_code_that_is_put_into_a_function_is_own_code(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    assert own_code(model) is None
    monkeypatch.setattr(nn.ReLU.forward, "__code__", mixing.__code__)
    assert "test_library.py" in str(own_code(model))


def test_an_attention_of_ones_own_is_own_code() -> None:
    made, model = pytest.importorskip("transformers"), bert()
    made.AttentionInterface.register("mine", mixing)
    try:
        assert "mixing" in str(own_code(model))
    finally:
        made.AttentionInterface._global_mapping.pop("mine")
    assert own_code(model) is None


def test_what_sees_every_module_is_own_code() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *a: None)
    try:
        assert "all modules" in str(own_code(mlp()))
    finally:
        handle.remove()
    with OwnMode():
        assert "OwnMode" in str(own_code(mlp()))
    with torch.device("cpu"):
        assert own_code(mlp()) is None


SOURCE = (
    "from torch import nn\n\n\nclass Layer(nn.Linear):\n    def forward(self, x):\n        return "
    "super().forward(x)\n"
)


def install(
    folder: Path, *, listed: bool = True, digest: bool = True, editable: bool = False
) -> Path:
    """A distribution "timm" in a folder as an installer leaves it; ``editable``: its code is
    elsewhere.
    """
    place = folder / "elsewhere" if editable else folder / "site-packages"
    file = place / "timm" / "__init__.py"
    file.parent.mkdir(parents=True)
    file.write_text(SOURCE)
    info = folder / "site-packages" / "timm-9.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: timm\nVersion: 9.9\n")
    said = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).decode().rstrip("=")
    line = f"timm/__init__.py,{f'sha256={said}' if digest else ''},{file.stat().st_size}\n"
    if listed and not editable:
        (info / "RECORD").write_text(line)
    return file


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], nn.Module]]:
    if "timm" in sys.modules or importlib.util.find_spec("timm") is not None:
        pytest.skip("timm is installed")
    for folder in ("elsewhere", "site-packages"):
        monkeypatch.syspath_prepend(tmp_path / folder)

    def layer() -> nn.Module:
        sys.modules.pop("timm", None)
        importlib.invalidate_caches()
        made: nn.Module = importlib.import_module("timm").Layer(2, 2)
        return made

    yield layer
    sys.modules.pop("timm", None)


def test_an_installed_library_is_library_code(
    tmp_path: Path, imported: Callable[[], nn.Module]
) -> None:
    install(tmp_path)
    assert own_code(imported()) is None


def test_an_edited_file_is_own_code(tmp_path: Path, imported: Callable[[], nn.Module]) -> None:
    file = install(tmp_path)
    assert own_code(imported()) is None
    file.write_text(SOURCE.replace("forward(x)\n", "forward(x - x.mean(0))\n"))
    assert "not as timm 9.9 was installed" in str(own_code(imported()))


@pytest.mark.parametrize("how", [{"listed": False}, {"digest": False}, {"editable": True}], ids=str)
def test_a_library_without_hashes_of_its_files_is_own_code(
    how: dict[str, bool], tmp_path: Path, imported: Callable[[], nn.Module]
) -> None:
    install(tmp_path, **how)
    assert own_code(imported())
