"""Methods that some settings refuse, found without data, and what a comparison and an attack say of them."""

import pytest
from rich.console import Console

import strategies
from simulations.attack.recording import accepted as accepted_by_attack
from simulations.compare.cells.grid import Entry, Grid
from simulations.compare.command import accepted
from simulations.settings.refusals import left_out, refusal

QUIET, FACTORS = {"sgd", "topk", "powersgd"}, {"dp-powersgd"}


def grid(*methods: str, **settings: object) -> Grid:
    return Grid(workload="digits", entries=tuple(Entry(label=m, method=m) for m in methods), settings=settings)


def test_secure_sums_refuse_methods_without_noise_or_with_factors_and_no_other():
    made, refused = accepted(grid(*strategies.names(), trust="secure"))
    assert set(refused) == QUIET | FACTORS
    assert {entry.label for entry in made.entries} == set(strategies.names()) - QUIET - FACTORS


@pytest.mark.parametrize("settings", [{}, {"trust": "aggregate"}, {"rank": 0}])
def test_other_settings_leave_the_grid_as_it_is(settings):
    """Also those that a run refuses for another reason: its cell reports that."""
    made = grid("lsg", "sgd", **settings)
    assert accepted(made) == (made, {})


def test_one_line_for_each_reason():
    refused = {name: refusal({"method": name, "trust": "secure"}) for name in ("sgd", "topk")}
    refused["dp-ssgd"] = refusal({"method": "dp-ssgd", "prune": "dp-snip", "trust": "secure"})
    lines = left_out(refused)
    assert [line.split(": ")[1] for line in lines] == ["sgd, topk", "dp-ssgd"]
    assert "needs mechanism=dp" in lines[0]
    assert "prunes by sums" in lines[1]


def test_no_method_left_is_an_error_with_the_reason():
    with pytest.raises(ValueError, match=r"no method is left: sgd: trust=secure .* needs mechanism=dp"):
        accepted(grid("sgd", trust="secure"))
    with pytest.raises(ValueError, match="no method is left: sgd, topk: trust=secure"):
        accepted_by_attack(["sgd", "topk"], {"trust": "secure"}, Console())


def test_an_attack_goes_on_with_the_others(capsys):
    assert accepted_by_attack(["lsg", "sgd"], {"trust": "secure"}, Console()) == ["lsg"]
    assert capsys.readouterr().out.startswith("left out: sgd: trust=secure")
    assert accepted_by_attack(["lsg", "dpsgd"], {}, Console()) == ["lsg", "dpsgd"]
    assert capsys.readouterr().out == ""
