"""Which cells a grid has, what it varies, which cannot run, and what is refused before the
first.
"""

import os
import shutil
from pathlib import Path

import pytest

from fedlsg.simulations.cli.runs import listed
from fedlsg.simulations.compare.compare_command import accepted
from fedlsg.simulations.compare.grid.grid_file import check_cells, parse_varied, read_varied
from fedlsg.simulations.compare.results.comparison_table import sentences
from fedlsg.simulations.compare.results.lines import lines, quantile
from fedlsg.simulations.storage.results import Result
from fedlsg.simulations.storage.tensorboard_events import EVENTS
from tests.simulations.support.compare_cases import grid, result
from tests.simulations.support.runs import run_local


def test_the_cells_of_a_small_grid_by_hand():
    cells = grid(seeds=2, epsilons=[1.0, 3.0], ranks=[4, 8]).cells()
    assert [cell.name for cell in cells] == [
        f"{name}-seed{seed}"
        for seed in (0, 1)
        for name in (
            "lsg-epsilon1-rank4",
            "sgd",
            "lsg-epsilon1-rank8",
            "lsg-epsilon3-rank4",
            "lsg-epsilon3-rank8",
        )
    ]
    assert cells[2].given == {
        "workload": "digits",
        "method": "lsg",
        "seed": 0,
        "engine": "local",
        "epsilon": 1.0,
        "rank": 8,
    }
    assert cells[2].varied == ()
    assert cells[1].given == {"workload": "digits", "method": "sgd", "seed": 0, "engine": "local"}


REFUSED = {
    "no method": ({"methods": {}}, "at least one method: give --methods"),
    "unknown method": ({"methods": {"lsgg": {}}}, "unknown method 'lsgg'.*did you mean 'lsg'"),
    "unknown key": (
        {"epsilon": [1.0]},
        "unknown key of a grid file 'epsilon'.*did you mean 'epsilons'",
    ),
    "unknown setting": ({"settings": {"sparcity": 1}}, "unknown setting 'sparcity'"),
    "hostile label": ({"methods": {"../../lsg": {"method": "lsg"}}}, "expected a method label"),
    "a name for people as a label": (
        {"methods": {"LoRA 50%": {"method": "lora"}}},
        r"take 'LoRA-50', .* by labels=\{'LoRA-50': 'LoRA 50%'\}, or --label",
    ),
    "seed as a setting": (
        {"settings": {"seed": 3}},
        "seed is an axis of the grid: give --seeds in its place",
    ),
    "epsilon as a setting": (
        {"methods": {"lsg": {"epsilon": 3}}},
        "epsilon is an axis of the grid",
    ),
    "a preset in a grid": (
        {"methods": {"lsg": {"preset": "x"}}},
        "a preset is the setting of one run",
    ),
    "twice": ({"epsilons": [1.0, 1.0]}, "epsilons without repetitions"),
    "noise and epsilon": (
        {"epsilons": [1.0], "settings": {"noise_multiplier": 2}},
        "either --epsilons or",
    ),
    "nobody has it": (
        {"settings": {"drop_rate": 0.5}},
        "none of the methods lsg, sgd has a setting drop_rate",
    ),
    "no number": ({"ranks": ["four"]}, "expected ranks as a list of numbers"),
    "half a rank": ({"ranks": [1.5]}, "expected ranks as a list of numbers"),
    "epsilon below 0": ({"epsilons": [-1.0]}, "expected epsilons > 0 and finite, got -1"),
    "no rank": ({"ranks": [-1, 4]}, "expected rank=-1 >= 0"),
    "all frozen": ({"sparsities": [1.0]}, r"expected .*sparsity=1.0 < 1"),
    "an axis that nobody has": (
        {"methods": {"dpsgd": {}}, "ranks": [4]},
        "none of the methods dpsgd has a setting rank: leave --ranks out",
    ),
    "no seed": ({"seeds": 0}, "one seed at least"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_a_grid_refuses(kind):
    keys, message = REFUSED[kind]
    with pytest.raises(ValueError, match=message):
        grid(**keys)


SMALL = {"rounds": 2, "noise_multiplier": 2.0}


def cells(methods, **settings):
    vary = settings.pop("vary", {})
    return grid(methods=methods, settings=SMALL | settings, vary=vary, seeds=2).cells()


def test_cells_that_run_are_accepted():
    check_cells(cells({"lsg": {}, "dpsgd": {}, "sgd": {}}))


@pytest.mark.parametrize(
    ("methods", "settings", "words"),
    [
        ({"lsg": {"rank": 4000}}, {}, r"lsg-seed0, lsg-seed1: rank=4000 carries no layer"),
        (
            {"lsg": {}},
            {"vary": {"clients": [2, 5000]}},
            r"lsg-clients5000-seed0, .*: expected clients in 1..1437",
        ),
        (
            {"lsg": {}},
            {"vary": {"rank": [4, 4000]}},
            r"lsg-rank4000-seed0.*rank=4000 carries no layer",
        ),
        (
            {"lsg": {}},
            {"vary": {"rank": [0, 4]}},
            r"lsg-rank0-seed0, .*: expected rank=0 >= 1 for low-rank",
        ),
        (
            {"lsg": {"sample_rate": 0.1, "batch_size": 3}},
            {},
            "lsg-seed0, lsg-seed1: .* give either sample_rate",
        ),
    ],
)
def test_those_that_cannot_are_named_with_the_reason(methods, settings, words):
    with pytest.raises(ValueError, match=f"cells cannot run, so none was started: {words}"):
        check_cells(cells(methods | {"dpsgd": {}}, **settings))


def test_a_method_is_left_out_only_if_every_cell_of_it_is_refused():
    varied = grid(methods={"dpsgd": {}, "sgd": {}}, vary={"trust": ["client", "secure"]})
    assert accepted(varied) == (varied, {})
    with pytest.raises(ValueError, match="sgd-trustsecure-seed0: trust=secure"):
        check_cells(varied.cells())


CLIPS, NOISES = (0.1, 1.0, 10.0), (0.5, 2.0)
METHODS = {"dpsgd": {}, "lsg": {}, "sgd": {}, "lsg-c3": {"method": "lsg", "clip_norm": 3.0}}


def test_every_method_is_run_with_all_combinations_of_the_settings_that_it_has():
    made = grid(methods=METHODS, vary={"clip_norm": [1, 0.1], "rank": [2, 4]})
    assert [cell.name for cell in made.cells()] == [
        "dpsgd-clip_norm0.1-seed0",
        "lsg-clip_norm0.1-rank2-seed0",
        "sgd-seed0",
        "lsg-c3-rank2-seed0",
        "lsg-clip_norm0.1-rank4-seed0",
        "lsg-c3-rank4-seed0",
        "dpsgd-clip_norm1-seed0",
        "lsg-clip_norm1-rank2-seed0",
        "lsg-clip_norm1-rank4-seed0",
    ]
    assert made.cells()[4].given.items() >= {"clip_norm": 0.1, "rank": 4}.items()
    assert made.cells()[4].varied == (("clip_norm", 0.1), ("rank", 4))
    assert made.dropped() == [("dpsgd", "rank"), ("sgd", "clip_norm"), ("sgd", "rank")]


@pytest.mark.parametrize(
    ("texts", "more", "words"),
    [
        (["clip_norm"], {}, "expected --vary NAME=A,B,C, got 'clip_norm'"),
        (["clip_norm=1,2", "clip-norm=1,2"], {}, "--vary clip_norm is given twice"),
        (["clip_norn=1,2"], {}, "unknown setting 'clip_norn'; did you mean 'clip_norm'"),
        (["learning_rate=x0.5,x2"], {}, '--search "learning_rate=x0.5,x2"'),
        (["clip_norm=1"], {}, "expected two values of clip_norm at least"),
        (["clip_norm=0,1"], {}, "expected 1e-30 <= clip_norm=0"),
        (["epsilon=1,3"], {}, "epsilon is an axis of its own: give it as --epsilons"),
        (
            ["clip_norm=1,2"],
            {"settings": {"clip_norm": 1.0}},
            "clip_norm is varied, and given elsewhere",
        ),
        (["rank=1,2"], {"ranks": [1, 2]}, "rank is varied, and given elsewhere"),
        (["noise_multiplier=1,2"], {"epsilons": [3.0]}, "give either --epsilons or"),
        (["damping=0.1,0.2"], {}, "none of the methods lsg, sgd has a setting damping"),
    ],
)
def test_what_cannot_be_varied_is_refused(texts, more, words):
    with pytest.raises(ValueError, match=words):
        grid(vary=parse_varied(read_varied(texts)), **more)


def accuracy(clip: float, noise: float) -> float:
    """Different for every pair, and not symmetric: best at clip 1, noise 0.5."""
    return (
        0.9
        - 0.2 * abs(CLIPS.index(clip) - 1)
        - 0.07 * NOISES.index(noise)
        - 0.01 * CLIPS.index(clip)
    )


EVIL = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


@pytest.fixture
def folder(small, stopped, tmp_path: Path) -> Path:
    """A finished run, an interrupted one, one of a comparison, a damaged one, and names that want
    to be obeyed.
    """
    place = tmp_path / "runs"
    shutil.copytree(small.path, place / "done")
    shutil.copytree(stopped.path, place / "half")
    shutil.copytree(small.path, place / "grid" / "cells" / "lsg-seed0")
    shutil.copytree(small.path, place / "broken")
    (place / "broken" / "summary.json").write_text("{")
    shutil.copytree(small.path, place / EVIL)
    (place / "no run").mkdir()
    return place


def test_the_list(folder, fedlsg):
    status, out, err = fedlsg("runs", str(folder), "--sort", "run", width=160)
    assert (status, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "finished" in lines["done"]
    assert "interrupted" in lines["half"]
    assert "so far" not in lines["half"]  # a reproducible run claims none
    assert lines["done"].count("NOT PRIVATE") == 1
    assert "grid/lsg-seed0" in lines
    assert "left out: broken: " in out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\x1b[31m\x202e" in out


def test_the_list_says_that_epsilons_of_several_runs_are_not_added_up(tmp_path, fedlsg):
    for name in ("first", "second"):
        run_local(tmp_path / "runs" / name, reproducible=False, rounds=1)
        status, out, _ = fedlsg("runs", width=160)
        assert status == 0
        assert ("cost up to the sum of their epsilons" in " ".join(out.split())) == (
            name == "second"
        )


def runs(method: str, *accuracies: float, **more: object) -> list[Result]:
    return [
        result(accuracy, method=method, seed=seed, **more)
        for seed, accuracy in enumerate(accuracies)
    ]  # type: ignore[arg-type]


def said(*groups: list[Result]) -> list[str]:
    return sentences(lines([run for group in groups for run in group]))


def test_a_clear_lead_and_an_unclear_one():
    """Leads of 10, 11 and 12 points: 11 ± 0.58; of -10, 15 and -2: 1 ± 7.37, by hand."""
    clear = said(runs("dpsgd", 0.90, 0.92, 0.94), runs("lsg", 0.80, 0.81, 0.82))[0]
    assert clear == (
        "At epsilon 3, dpsgd has the highest mean accuracy, 92.0 ± 2.0 %, 11.0 points above lsg "
        "with a standard error of 0.6 (paired over 3 seeds), with 4.0x fewer uplink bytes than "
        "dense updates."
    )
    unclear = said(runs("dpsgd", 0.80, 0.95, 0.90), runs("lsg", 0.90, 0.80, 0.92))[0]
    assert "with a standard error of 7.4 (paired over 3 seeds; the lead may be chance)" in unclear
    alone = said(runs("dpsgd", 0.9), runs("lsg", 0.8))[0]
    assert "10.0 points above lsg (one seed, so the lead may be chance)" in alone


def test_two_seeds_show_little():
    """Leads of 10 and 12 points are 11 standard errors, and two seeds need 12.7."""
    two = said(runs("dpsgd", 0.90, 0.93), runs("lsg", 0.80, 0.81))[0]
    assert "standard error of 1.0 (paired over 2 seeds; the lead may be chance)" in two
    assert quantile(2) == pytest.approx(12.706, abs=1e-3)  # a table of Student's t
    assert quantile(3) == pytest.approx(4.303, abs=1e-3)


def test_what_privacy_costs_next_to_a_run_without():
    public = runs("sgd", 0.97, epsilon=None)
    assert said(runs("lsg", 0.9), runs("lsg", 0.8, epsilon=1.0), public)[-1] == (
        "Without privacy: sgd, 97.0 %; at epsilon 3, lsg is 7.0 points behind it."
    )


def test_what_is_not_supported_is_not_said():
    assert said(runs("lsg", 0.10, 0.11)) == ["At epsilon 3 no method is better than guessing."]
    assert said(runs("sgd", 0.97, epsilon=None)) == ["No run is private: sgd, 97.0 %."]
    assert said([result(None)]) == ["No run is finished."]
    seeded = said([result(0.9, private=False), result(0.91, seed=1, private=False)])
    assert seeded == ["No run is private: lsg, 90.5 ± 0.7 %."]


def test_a_copy_began_when_its_run_did(stopped, tmp_path):
    """By its first event; by the time of its settings where there are no events, or none with a
    time.
    """
    copy = Path(shutil.copytree(stopped.path, tmp_path / "copy"))
    os.utime(copy / "config.toml", (9.0, 9.0))
    assert listed(copy, "a").began == pytest.approx(
        (stopped.path / "config.toml").stat().st_mtime, abs=300
    )
    (copy / EVENTS).write_bytes(b"short")
    assert listed(copy, "a").began == 9.0


def test_an_epsilon_that_no_noise_reaches_is_refused_before_the_first_cell():
    made = grid(methods={"lsg": {}, "sgd": {}}, settings={"rounds": 2}, epsilons=[3, 1e9])
    with pytest.raises(
        ValueError,
        match=r"1 of 3 cells cannot run, .*: lsg-epsilon1e\+09-seed0: .*almost without noise",
    ):
        check_cells(made.cells())
