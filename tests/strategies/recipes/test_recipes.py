"""Recipes: found by their files' names, wrong names and settings named, and docs/methods.md lists
every one.
"""

import re
import sys
from inspect import signature
from pathlib import Path

import pytest

from fedlsg import strategies
from fedlsg.carriers import Dense, Factors, Lora, LowRank, LowRankChange, RandomCarriers
from fedlsg.masks.mask import Mask
from fedlsg.masks.pruning import Prune
from fedlsg.method import Compression, Method
from fedlsg.privacy.mechanism import Mechanism
from fedlsg.strategies import _build, names, own_settings, recipe, recipes
from tests.places import REPOSITORY

FOLDER = Path(strategies.recipes.__path__[0])
NONE = Mechanism(kind="none")
GOLDEN = {
    "dpsgd": Method(name="dpsgd"),
    "lsg": Method(name="lsg", carrier=LowRank(rank=4), mask=Mask(kind="units", sparsity=0.3)),
    "rgp": Method(name="rgp", carrier=LowRankChange(rank=4, warmup=1)),
    "rgp-random": Method(name="rgp-random", carrier=RandomCarriers(rank=4)),
    "rs": Method(name="rs", mask=Mask(kind="uniform", sparsity=0.5, cooling=True)),
    "sgd": Method(name="sgd", mechanism=NONE),
    "lora": Method(name="lora", carrier=Lora(rank=8)),
    "lsg-lora": Method(
        name="lsg-lora", carrier=Lora(rank=8), mask=Mask(kind="units", sparsity=0.3)
    ),
    "sparse-dpsgd": Method(name="sparse-dpsgd", mask=Mask(kind="magnitude", sparsity=0.5)),
    "dp-ssgd": Method(
        name="dp-ssgd",
        mask=Mask(kind="drop", drop="random", sparsity=0.5),
        prune=Prune(kind="synflow", rate=0.3, epsilon_share=0.1, clip_norm=1.0),
    ),
    "dp-powersgd": Method(name="dp-powersgd", carrier=Factors(rank=4)),
    "linear-probe": Method(name="linear-probe", carrier=Dense(train="classifier")),
    "topk": Method(
        name="topk", mechanism=NONE, compression=Compression(topk_rate=0.01, error_feedback=True)
    ),
    "powersgd": Method(
        name="powersgd",
        carrier=Factors(rank=4),
        mechanism=NONE,
        compression=Compression(error_feedback=True),
    ),
    "bitfit": Method(name="bitfit", carrier=Dense(train="biases")),
    "ffa-lora": Method(name="ffa-lora", carrier=Lora(rank=8, train="up")),
    "dp-tl": Method(name="dp-tl", carrier=Dense(train="classifier")),
    "fed-svd": Method(name="fed-svd", carrier=Lora(rank=8, train="up", orthonormal=True)),
    "fed-sb": Method(name="fed-sb", carrier=Lora(rank=16, train="core", power_steps=4)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_defaults_of_a_recipe(name):
    assert recipe(name) == GOLDEN[name]


def test_recipes_are_found_by_the_names_of_their_files():
    """Those that are listed here are all there; others may be, and every one says its own name."""
    files = {path.stem.replace("_", "-") for path in FOLDER.glob("*.py")}
    assert set(GOLDEN) <= set(names()) <= files
    assert [recipe(name).name for name in names()] == list(names())


def test_what_each_recipe_can_be_told():
    assert {name: set(own_settings(name)) for name in GOLDEN} == {
        "dpsgd": set(),
        "sgd": set(),
        "rgp-random": {"rank"},
        "linear-probe": set(),
        "bitfit": set(),
        "rs": {"sparsity", "cooling", "redraw", "ranking", "sparsity_from", "carrier", "rank"},
        "rgp": {
            "rank",
            "power_steps",
            "warmup",
            "residual",
            "history",
            "factors",
            "trained",
        },
        "lsg": {
            "rank",
            "sparsity",
            "power_steps",
            "direction",
            "importance",
            "sparsity_from",
            "residual",
        },
        "lora": {"rank", "lora_alpha", "train_embeddings"},
        "ffa-lora": {"rank", "lora_alpha"},
        "dp-tl": {"sparsity", "cooling"},
        "fed-svd": {"rank", "lora_alpha"},
        "fed-sb": {"rank", "lora_alpha"},
        "lsg-lora": {"rank", "sparsity", "lora_alpha", "train_embeddings", "direction"},
        "sparse-dpsgd": {"sparsity", "refresh", "convolutions_alone", "sparsity_from"},
        "dp-ssgd": {
            "prune",
            "prune_rate",
            "prune_epsilon_share",
            "prune_clip_norm",
            "drop",
            "drop_rate",
        },
        "dp-powersgd": {"rank", "power_steps", "warmup"},
        "powersgd": {"rank", "power_steps", "warmup"},
        "topk": {"topk_rate"},
    }


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "lgs",
            {},
            rf"unknown method 'lgs'; did you mean 'lsg'\? known: {', '.join(names()[:3])}, ",
        ),
        ("strategy", {}, "unknown method 'strategy'"),
        ("rgp_random", {}, "did you mean 'rgp-random'"),
        ("", {}, "unknown method ''"),
        ("lsg", {"ranks": 4}, "method 'lsg' has no setting 'ranks'; did you mean 'rank'"),
        ("dpsgd", {"rank": 4}, "method 'dpsgd' has no setting 'rank'"),
        ("lsg", {"cooling": True}, "method 'lsg' has no setting 'cooling'"),
        ("lsg", {"kind": "dp"}, "method 'lsg' has no setting 'kind'"),
        (
            "sgd",
            {"mechanism": "dp"},
            "method 'sgd' adds no noise, got mechanism 'dp'; choose method 'dpsgd'",
        ),
        ("sgd", {"mechanism": "noise-only"}, "adds no noise"),
    ],
)
def test_a_wrong_name_or_setting_is_named(name, settings, message):
    with pytest.raises(ValueError, match=message):
        recipe(name, **settings)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder whose files are recipes, too."""
    monkeypatch.setattr(
        strategies.recipes, "__path__", [*strategies.recipes.__path__, str(tmp_path)]
    )
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("fedlsg.strategies.recipes."):
            del sys.modules[name]


def test_a_new_file_is_a_new_method(folder):
    (folder / "bottom_lsg.py").write_text(
        "from fedlsg.strategies.recipes import lsg\n"
        "def recipe(*, rank=3, mechanism, server):\n"
        "    return lsg.recipe(rank=rank, direction='bottom', mechanism=mechanism, server=server)\n"
    )
    assert "bottom-lsg" in names()
    method = recipe("bottom-lsg", rank=2, noise_multiplier=3.0)
    assert (method.carrier.rank, method.mask.direction, method.mechanism.noise_multiplier) == (
        2,
        "bottom",
        3.0,
    )


PAGE = (REPOSITORY / "docs" / "methods.md").read_text()
ROWS = {
    cells[1].strip("` "): cells for line in PAGE.splitlines() if len(cells := line.split("|")) == 9
}
VARIANTS = [line.split("|")[3] for line in PAGE.splitlines() if len(line.split("|")) == 5]


def parameters(name: str) -> list[str]:
    """``name=default`` of what a recipe's own function takes, in its order."""
    taken = signature(_build(name)).parameters.values()
    return [f"{p.name}={p.default}" for p in taken if p.name in strategies.own_settings(name)]


def listed(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_every_recipe_has_its_row():
    rows = set(ROWS) - {"recipe", "---"}
    missing, gone = set(names()) - rows, rows - set(names())
    assert not missing, (
        f"write a row of docs/methods.md for {missing}: in the first table, with parameters and "
        "defaults"
    )
    assert not gone, f"docs/methods.md has rows of {gone}, which are no recipes"


def test_every_recipe_is_in_the_guide_of_its_folder():
    lines = (recipes.__doc__ or "").splitlines()
    listed = {word for line in lines if line.startswith("    ") for word in line[25:].split(", ")}
    assert listed == {name.replace("-", "_") for name in names()}, (
        "name each recipe once in the guide of strategies/recipes/__init__.py"
    )


@pytest.mark.parametrize("name", sorted(ROWS.keys() & set(names())))
def test_parameters_are_those_of_the_recipe(name):
    assert listed(ROWS[name][5]) == parameters(name)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if "=" in v])
def test_variants_build(variant):
    """Each ``key=value`` of a variant is taken by a recipe that has it, with a value that is
    allowed there.
    """
    words = listed(variant)
    method = next((word for word in words if word in names()), None)
    assert [word for word in words if "=" in word]
    for group in variant.split(";"):
        given = dict(word.split("=") for word in listed(group) if "=" in word)
        values = {key: value if key in TEXT else _number(value) for key, value in given.items()}
        takers = [method] if method else [n for n in names() if _takes(n, values)]
        assert takers, group
        recipe(takers[0], **values)


TEXT = (
    "importance",
    "direction",
    "estimator",
    "redraw",
    "ranking",
    "mechanism",
    "carrier",
    "drop",
    "prune",
    "history",
    "factors",
    "trained",
)


def _number(word: str) -> float | bool:
    return word == "true" if word in ("true", "false") else float(word)


def _takes(name: str, values: dict[str, object]) -> bool:
    try:
        recipe(name, **values)
    except ValueError:
        return False
    return True
