"""Checkpoints of De et al. 2022: their logits after conversion, every form of file, and what is refused."""

import hashlib
import json
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from examples.convert_weights import converted, read_arrays
from simulations.models import load_pretrained, vision
from simulations.models.resnet import GainedConv2d, wide_resnet
from tests.places import REPOSITORY
from tests.simulations.support.haiku_wrn import Params, logits, made_params


def checkpoint(params: Params) -> dict[str, object]:
    """As their experiment saves it: parameters, state, averages, counters."""
    return {"params": params, "network_state": {}, "params_ema": {"avg": made_params(9)}, "update_step": np.int64(7)}


def flat(params: Params) -> dict[str, np.ndarray]:
    return {f"params/{module}/{leaf}": array for module, leaves in params.items() for leaf, array in leaves.items()}


def build(found: tuple[str, dict[str, torch.Tensor]], depth: int = 10, width: int = 1, classes: int = 5) -> nn.Module:
    model = wide_resnet(depth, width, channels=3, num_classes=classes, form="gain")
    model.load_state_dict(found[1])
    return model.double()


def furthest(model: nn.Module, params: Params, side: int) -> float:
    """Largest difference of logits from their forward pass."""
    x = np.random.default_rng(1).normal(0, 1, (2, side, side, 3))
    ours = model(torch.from_numpy(x).permute(0, 3, 1, 2)).detach().numpy()
    return float(np.abs(ours - logits(params, x)).max())


@pytest.mark.parametrize(("depth", "width", "side"), [(10, 1, 12), (16, 2, 8), (10, 2, 9)])
def test_logits_are_theirs(depth, width, side):
    params = made_params(0, depth=depth, width=width)
    found = converted(flat(params))
    assert found[0] == f"wrn-{depth}-{width}-gain"
    assert furthest(build(found, depth, width), params, side) < 1e-9


@pytest.mark.parametrize("mistake", ["gain", "padding", "axes"])
def test_a_planted_mistake_shows_in_the_logits(mistake):
    params = made_params(0)
    model = build(converted(flat(params)))
    for module in model.modules():
        if isinstance(module, GainedConv2d) and mistake == "gain":
            nn.init.ones_(module.gain)
        if isinstance(module, GainedConv2d) and mistake == "padding" and module.pads:
            module.pads, module.conv.padding = False, (1, 1)
        if isinstance(module, GainedConv2d) and mistake == "axes":
            module.conv.weight.data = module.conv.weight.data.mT.contiguous()
    assert furthest(model, params, 12) > 1e-2


# --- forms of a file


class FlatMapping(dict):  # type: ignore[type-arg]
    """Pickled under the name of Haiku's mapping."""

    def __reduce__(self):
        return (FlatMapping, (dict(self),))


class Wrapped:
    """Pickled as JAX pickles an array."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __reduce__(self):
        function, args, state = self.array.__reduce__()
        return (_reconstruct_array, (function, args, state, {"weak_type": False}))


def _reconstruct_array(*args: object) -> None:
    raise AssertionError("the reader must not call the name that a file gives")


@pytest.fixture
def of_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two names under which a checkpoint refers to Haiku and JAX, for the pickler alone."""
    for module, one in (("haiku._src.data_structures", FlatMapping), ("jax._src.array", _reconstruct_array)):
        made = types.ModuleType(module)
        setattr(made, one.__name__, one)
        monkeypatch.setattr(one, "__module__", module)
        monkeypatch.setitem(sys.modules, module, made)
        for parent in (module.split(".")[0], ".".join(module.split(".")[:2])):
            monkeypatch.setitem(sys.modules, parent, types.ModuleType(parent))


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_pickles(protocol, tmp_path):
    params = made_params(0)
    (tmp_path / "w.dill").write_bytes(pickle.dumps(checkpoint(params), protocol))
    found = converted(read_arrays(tmp_path / "w.dill"))
    assert furthest(build(found), params, 8) < 1e-9
    average = converted(read_arrays(tmp_path / "w.dill"), part="params_ema/avg")
    assert furthest(build(average), made_params(9), 8) < 1e-9


def test_pickles_of_haikus_mappings_and_jaxs_arrays(of_jax, tmp_path, monkeypatch):
    params = made_params(0)
    wrapped = FlatMapping(
        {module: FlatMapping({leaf: Wrapped(a) for leaf, a in leaves.items()}) for module, leaves in params.items()}
    )
    written = pickle.dumps({"params": wrapped, "network_state": FlatMapping()})
    assert b"haiku._src.data_structures" in written
    assert b"jax._src.array" in written
    for name in list(sys.modules):
        if name.split(".")[0] in ("haiku", "jax"):
            monkeypatch.delitem(sys.modules, name)
    (tmp_path / "w.pkl").write_bytes(written)
    assert furthest(build(converted(read_arrays(tmp_path / "w.pkl"))), params, 8) < 1e-9
    assert not {"haiku", "jax"} & sys.modules.keys()


def test_dills_own_files(tmp_path):
    dill = pytest.importorskip("dill")
    params = made_params(0)
    with (tmp_path / "w.dill").open("wb") as stream:
        dill.dump(checkpoint(params), stream)
    assert furthest(build(converted(read_arrays(tmp_path / "w.dill"))), params, 8) < 1e-9


def test_npz_with_and_without_a_key_for_the_parameters(tmp_path):
    params = made_params(0)
    bare = {name.removeprefix("params/"): array for name, array in flat(params).items()}
    for arrays in (flat(params), bare, dict(sorted(bare.items()))):
        np.savez(tmp_path / "w.npz", **arrays)
        assert furthest(build(converted(read_arrays(tmp_path / "w.npz"))), params, 8) < 1e-9


# --- what is refused


class Hostile:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self):
        return (os.mkdir, (str(self.folder),))


def test_a_pickle_cannot_run_code(tmp_path):
    """The control: ``pickle.load`` runs it."""
    file, folder = tmp_path / "w.dill", tmp_path / "made"
    file.write_bytes(pickle.dumps({"params": made_params(0), "extra": Hostile(folder)}))
    with pytest.raises(ValueError, match=r"names posix\.mkdir, which may run code: .* numpy\.savez"):
        read_arrays(file)
    assert not folder.exists()
    pickle.loads(file.read_bytes())
    assert folder.exists()


def test_an_array_of_objects_cannot_run_code(tmp_path):
    file, folder = tmp_path / "w.pkl", tmp_path / "made"
    file.write_bytes(pickle.dumps({"params": np.array([Hostile(folder)], dtype=object)}))
    with pytest.raises(ValueError, match=r"posix\.mkdir"):
        read_arrays(file)
    np.savez(tmp_path / "w.npz", w=np.array([Hostile(folder)], dtype=object))
    with pytest.raises(ValueError, match=r"cannot read .*w\.npz"):
        read_arrays(tmp_path / "w.npz")
    assert not folder.exists()


def and_also(name: str, array: np.ndarray) -> dict[str, np.ndarray]:
    return {**flat(made_params(0)), f"params/wide_res_net/{name}": array}


def without(module: str) -> dict[str, np.ndarray]:
    return {name: array for name, array in flat(made_params(0)).items() if f"/{module}/" not in name}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (without("Block_2_norm_0_1"), r"missing: group2\.0\.activate2\.1\.weight"),
        (without("Softmax"), "no classifier"),
        (and_also("Block_4Conv_0_0/w", np.ones((3, 3, 2, 2))), r"unexpected: group4"),
        (and_also("Block_1Scale_0_1/s", np.ones(1)), "other networks are not covered"),
        (and_also("Final_norm/scale", np.full(64, np.nan)), r"not finite: activate\.1"),
        (and_also("Final_norm/scale", np.ones(64, int)), r"real numbers in activate\.1"),
        ({f"ema/{name}": array for name, array in flat(made_params(0)).items()}, "give --part, one of ema/params"),
        ({"encoder/w": np.ones((2, 2))}, "of no layout that is known"),
    ],
)  # fmt: skip
def test_other_checkpoints_are_refused(arrays, message):
    with pytest.raises(ValueError, match=message):
        converted(arrays)


# --- the program


def program(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The example, run in a folder."""
    command = [sys.executable, str(REPOSITORY / "examples" / "convert_weights.py"), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_converted_folder_has_the_weights_the_digest_and_the_data_that_they_have_seen(tmp_path):
    params = made_params(0, depth=16, width=4, classes=100)
    (tmp_path / "WRN_16_4.dill").write_bytes(pickle.dumps(checkpoint(params)))
    done = program(tmp_path, "WRN_16_4.dill", "--trained-on", "cifar100", "--out", "made")
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrn-16-4-gain: 2,776,948 values, 100 classes" in done.stdout
    facts = json.loads((tmp_path / "made" / "config.json").read_text())
    assert (facts["model"], facts["pretrained_on"]) == ("wrn-16-4-gain", {"source": "data:cifar100"})
    assert facts["converted_from"]["sha256"] == hashlib.sha256((tmp_path / "WRN_16_4.dill").read_bytes()).hexdigest()
    model = vision(3, 32, 10)["wrn-16-4-gain"]()
    said: list[str] = []
    fresh = load_pretrained(model, str(tmp_path / "made"), say=said.append)
    assert fresh == ("classifier.weight", "classifier.bias")
    assert "another set of classes" in said[0]
    gain = torch.from_numpy(params["wide_res_net/First_conv"]["gain"])
    assert torch.equal(model.get_parameter("stem.gain").detach(), gain)
    again = program(tmp_path, "WRN_16_4.dill", "--out", "made")
    assert again.returncode == 1
    assert "nothing is overwritten" in again.stderr
