"""An epsilon and a delta for each client: what they say, the noise of each, the weights, and what
is refused.
"""

import math
import operator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import fedlsg
from fedlsg.simulations.planning.advice.own_choices import (
    choices,
    largest_share,
    noise_of_mean,
    share_notes,
)
from fedlsg.simulations.planning.base.clients import CAP, own_weights
from fedlsg.simulations.planning.plan import Plan, make_plan
from fedlsg.simulations.report.page_of_run.client_table import client_table
from fedlsg.simulations.report.words import privacy_line
from fedlsg.simulations.run.plan_command import worst
from fedlsg.simulations.settings.own_epsilons import (
    has_deltas,
    numbered,
    read_own,
    setting_of,
    text_of,
)
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.results import read_clients
from fedlsg.simulations.storage.run_directory import RunDir

SITES = ("east", "north", "south", "west")
OWN = {"north": 1.0, "south": 4.0, "east": 2.0, "west": 8.0}
PARTS = [torch.arange(3 * k, 3 * k + 3) for k in range(4)]


def read(text: str, names: Any = SITES, columns: Any = None) -> dict[int, float]:
    return read_own(text, names, PARTS, columns or {})


def test_clients_are_named_or_numbered():
    assert read("north=1, south = 4") == {1: 1.0, 2: 4.0}
    assert read("#0=1,#3=.5", names=None) == {0: 1.0, 3: 0.5}
    assert read("#1=2", names=("1", "2", "3", "4")) == {1: 2.0}  # a number, where 1 is a name too
    assert read("1=2", names=("1", "2", "3", "4")) == {0: 2.0}


def test_a_column_gives_the_least_of_its_rows():
    values = np.array([3, 2, 3, 1, 1, 1, 9, 8, 9, 4, 4, 4])
    assert read("consent", columns={"consent": values}) == {0: 2.0, 1: 1.0, 2: 8.0, 3: 4.0}


def test_a_file_has_two_columns(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("client,epsilon\nnorth,1\n#0,2.5\n")
    assert read(str(file)) == {1: 1.0, 0: 2.5}


def test_numbers_are_written_and_read_back():
    own = {0: 0.1, 3: 1 / 3}
    assert numbered(text_of(own)) == own
    assert setting_of({"north": 1, 0: 2.0}) == {"client_epsilons": "north=1, 0=2.0"}
    assert setting_of(3.0) == {"epsilon": 3.0}


def test_epsilons_come_in_the_forms_that_people_have():
    assert setting_of("consent") == {"client_epsilons": "consent"}
    assert setting_of("3") == {"epsilon": "3"}
    assert setting_of([1, 4.0]) == {"client_epsilons": "0=1, 1=4.0"}
    assert setting_of(pd.Series({"north": 1.0})) == {"client_epsilons": "north=1.0"}
    assert setting_of(np.float64(2)) == {"epsilon": 2.0}
    with pytest.raises(ValueError, match="names no client"):
        setting_of({})


def test_a_number_is_the_client_of_that_name_where_names_are_numbers():
    text = setting_of({2: 1.0, 0: 4.0})["client_epsilons"]
    assert read(text) == {2: 1.0, 0: 4.0}
    assert read(text, names=None) == {2: 1.0, 0: 4.0}
    assert read(text, names=("0", "1", "10", "2")) == {3: 1.0, 0: 4.0}
    with pytest.raises(ValueError, match="names '0', which is no client"):
        read(text, names=("1", "2", "3", "4"))


@pytest.mark.parametrize(
    "content",
    [
        "client;epsilon\nnorth;1,5\nsouth;4\n",
        "\ufeffclient,epsilon\nnorth,1.5\nsouth,4\n",
        "epsilon\tclient\n1.5\tnorth\n4\tsouth\n",
    ],
    ids=["semicolons", "mark", "tabs"],
)
def test_a_file_is_read_as_tables_are(tmp_path, content):
    file = tmp_path / "own.csv"
    file.write_text(content)
    assert read(str(file)) == {1: 1.5, 2: 4.0}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("client,epsilon\nnorth,\n", "epsilon of 'north'"),
        ("name,epsilon\nnorth,1\n", "client not found"),
        ("", "cannot be read"),
        (b"client,epsilon\nn\xf6rd,1\n", "UTF-8"),
    ],
)
def test_a_file_that_says_no_epsilons_is_refused(tmp_path, content, said):
    file = tmp_path / "own.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ValueError, match=said):
        read(str(file))


BAD = {
    "north": "no such file, and no column",
    "north=0": "0 < epsilon of 'north'",
    "north=inf": "0 < epsilon of 'north'",
    "north=-1": "0 < epsilon of 'north'",
    "north=one": "0 < epsilon of 'north'",
    "north=1, north=2": "twice",
    "north=1, #1=2": "by its name and by its number",
    "nord=1": "expected east, north, south, west",
    "#4=1": "expected east, north, south, west",
    "north=1, 4": "expected NAME=EPSILON",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_text_says_what_is_expected(text):
    with pytest.raises(ValueError, match=BAD[text]):
        read(text)


def test_deltas_have_the_same_forms(tmp_path):
    file = tmp_path / "own.csv"
    file.write_text("client,epsilon,delta\nnorth,1,1e-6\n#0,2,1e-5\n")
    values = np.array([3, 2, 3, 1, 1, 1, 9, 8, 9, 4, 4, 4]) / 1e6
    for text, found in {
        "north=1e-6, #0=1e-5": {1: 1e-6, 0: 1e-5},
        str(file): {1: 1e-6, 0: 1e-5},
        "consent": {0: 2e-6, 1: 1e-6, 2: 8e-6, 3: 4e-6},
    }.items():
        assert read_own(text, SITES, PARTS, {"consent": values}, "delta") == found
    assert setting_of({"north": 1e-6}, "delta") == {"client_deltas": "north=1e-06"}
    assert setting_of(1e-6, "delta") == {"delta": 1e-6}
    assert has_deltas(str(file), ())
    assert not has_deltas(str(file), (str(file),))
    with pytest.raises(ValueError, match=r"client_deltas: expected 0 < delta of 'north' < 1"):
        read_own("north=1", SITES, PARTS, {}, "delta")
    with pytest.raises(ValueError, match="above 0 and below 1 in each row"):
        read_own("consent", SITES, PARTS, {"consent": values * 1e6}, "delta")
    file.write_text("client,epsilon\nnorth,1\n")
    with pytest.raises(ValueError, match="delta not found"):
        read_own(str(file), SITES, PARTS, {}, "delta")


def test_other_bad_forms(tmp_path):
    (tmp_path / "own.csv").write_text("site,epsilon\nnorth,1\n")
    with pytest.raises(ValueError, match="client not found"):
        read(str(tmp_path / "own.csv"))
    with pytest.raises(ValueError, match="in each row of the column"):
        read("consent", columns={"consent": np.array([1.0] * 11 + [math.nan])})
    with pytest.raises(ValueError, match="has a comma or an equals sign"):
        setting_of({"a, b": 1})
    with pytest.raises(ValueError, match="is a name"):
        numbered("north=1")


def test_weights_are_those_of_least_noise():
    sigmas, batches = [4.0, 2.0, 1.0], [10.0, 20.0, 30.0]
    found = own_weights(sigmas, batches)
    assert found[1] / found[0] == pytest.approx(4)
    assert found[2] / found[1] == pytest.approx(4)
    mean = sum(w * b for w, b in zip(found, batches, strict=True))
    assert mean == pytest.approx(sum(batches))
    least = _noise(sigmas, [1.0, 4.0, 16.0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        others = torch.rand(3, generator=generator).tolist()
        assert _noise(sigmas, others) >= least * (1 - 1e-12)


def _noise(sigmas: list[float], weights: list[float]) -> float:
    """Of the mean of clients of one expected batch."""
    return math.hypot(*(w * s for w, s in zip(weights, sigmas, strict=True))) / sum(weights)


def test_equal_sigmas_have_exactly_one():
    assert own_weights([0.3] * 7, [1.1, 2.2, 3.3, 4.4, 5.5, 6.6, 7.7]) == [1.0] * 7


def test_who_names_a_huge_epsilon_counts_sixteen_times_at_most():
    found = own_weights([1.0] * 4 + [1e-6], [10.0] * 5)
    assert found[4] / found[0] == pytest.approx(CAP)


def test_of_two_clients_a_liar_is_not_half_of_the_median():
    found = own_weights([1.0, 1e-6], [10.0] * 2)
    assert found[1] / found[0] == pytest.approx(CAP)
    assert own_weights([1.0, 0.5], [10.0] * 2) == pytest.approx([0.4, 1.6])


def frame(rows: int, seed: int) -> pd.DataFrame:
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(0, 3, (rows,), generator=draw)
    inputs = torch.randn(rows, 4, generator=draw)
    inputs[:, 0] += 3 * label
    found = pd.DataFrame(inputs.numpy(), columns=list("abcd"))
    found["site"] = np.resize(np.array(sorted(SITES)), rows)
    found["label"] = label.numpy()
    return found


def net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def simulate(out: Path, **given: Any) -> fedlsg.Run:
    usual = {
        "method": "dpsgd",
        "rounds": 4,
        "sample_rate": 0.5,
        "learning_rate": 0.1,
        "engine": "local",
        "partition": "site",
        "quiet": True,
    }
    return fedlsg.simulate(
        model=net,
        train=frame(200, 0),
        test=frame(40, 1),
        inputs=list("abcd"),
        targets="label",
        loss=nn.CrossEntropyLoss(),
        out=out,
        **usual | given,
    )


def spent(out: Path) -> list[float]:
    ledger = RunDir(out).charges
    return [ledger.of(client).epsilon(1e-5).upper for client in range(4)]


@pytest.mark.slow
def test_each_client_spends_its_own(tmp_path):
    run = simulate(tmp_path / "run", epsilon=OWN, weighting="noise")
    found = spent(tmp_path / "run")
    for site, epsilon in zip(SITES, found, strict=True):
        assert 0.98 * OWN[site] < epsilon <= OWN[site]
    assert run.epsilon == max(found)
    rows = {row["name"]: row for row in run.clients}
    for site, epsilon in zip(SITES, found, strict=True):
        assert rows[site]["planned"] == OWN[site]
        assert rows[site]["epsilon"] == epsilon
        assert rows[site]["left"] == pytest.approx(OWN[site] - epsilon)
    counts = [rows[site]["weight"] for site in ("north", "east", "south", "west")]
    assert counts == sorted(counts)
    assert len(set(counts)) == 4


@pytest.mark.slow
def test_each_client_has_its_own_delta(tmp_path):
    """At one epsilon the client of a smaller delta has more noise, and counts less."""
    deltas = {"north": 1e-7, "south": 1e-3, "east": 1e-5, "west": 1e-4}
    simulate(tmp_path / "run", epsilon=2.0, delta=deltas, weighting="noise")
    ledger, rows = RunDir(tmp_path / "run").charges, read_clients(RunDir(tmp_path / "run"))
    assert {row["name"]: row["delta"] for row in rows} == deltas
    for row in rows:
        own = ledger.of(row["client"]).epsilon(deltas[row["name"]]).upper
        assert 1.96 < own <= 2.0
        assert (row["planned"], row["epsilon"]) == (2.0, own)
    assert ledger.of(1).epsilon(1e-3).upper < 1.5  # north, at the delta of south
    weights = {row["name"]: row["weight"] for row in rows}
    assert sorted(weights, key=weights.__getitem__) == ["north", "east", "west", "south"]
    assert RunDir(tmp_path / "run").read_config().delta == 1e-3


@pytest.mark.slow
def test_a_file_gives_both_and_the_run_goes_on_with_them(tmp_path):
    given = {"epsilon": str(tmp_path / "own.csv"), "reproducible": True}
    lines = [f"{name},{OWN[name]},{1e-4 / OWN[name]}" for name in SITES]
    (tmp_path / "own.csv").write_text("\n".join(["client,epsilon,delta", *lines]))
    run = simulate(tmp_path / "run", **given)
    assert {row["name"]: row["delta"] for row in run.clients} == {
        name: 1e-4 / OWN[name] for name in SITES
    }
    simulate(tmp_path / "run", resume=True, **given)
    with pytest.raises(ValueError, match="give client_deltas='#0=5e-05"):
        simulate(tmp_path / "run", resume=True, **given, delta={"north": 1e-6, "south": 1e-5})


@pytest.mark.slow
def test_equal_epsilons_are_the_run_of_one_epsilon(tmp_path):
    how = {"reproducible": True}
    alike = {"epsilon": dict.fromkeys(SITES, 3.0), "delta": dict.fromkeys(SITES, 1e-5)}
    same = simulate(tmp_path / "own", **alike, **how)
    one = simulate(tmp_path / "one", epsilon=3.0, **how)
    for ours, theirs in zip(same.model.parameters(), one.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    other = simulate(tmp_path / "other", epsilon=OWN, **how)
    assert not torch.equal(next(other.model.parameters()), next(one.model.parameters()))


@pytest.mark.slow
def test_a_run_of_own_epsilons_is_continued(tmp_path):
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2 and not (tmp_path / "again").exists():
            (tmp_path / "again").touch()
            raise RuntimeError("as if it had failed")

    given = {"client_epsilons": "north=1, west=8", "epsilon": 2.0, "reproducible": True}
    with pytest.raises(RuntimeError):
        simulate(tmp_path / "run", callbacks=[stop], **given)
    with pytest.raises(ValueError, match="as it began"):
        simulate(tmp_path / "run", resume=True, **given | {"client_epsilons": "north=2, west=8"})
    again = simulate(tmp_path / "run", resume=True, callbacks=[stop], **given)
    whole = simulate(tmp_path / "whole", **given)
    assert torch.equal(next(again.model.parameters()), next(whole.model.parameters()))


def test_a_new_run_exceeds_no_client_s_own_epsilon_without_a_word(tmp_path):
    own = {"client_epsilons": "north=1, south=2, east=4, west=8", "rounds": 1}
    simulate(tmp_path / "own", **own)
    goes_on = {"start_from": tmp_path / "own", "rounds": 1}
    for common in ({"epsilon": 12.0}, {"noise_multiplier": 2.0}):
        with pytest.raises(ValueError, match="give client_epsilons= again, for both runs") as said:
            simulate(tmp_path / "next", **goes_on, **common)
        assert "gave clients an own epsilon each (client_epsilons='#0=4, #1=1, " in str(said.value)
        assert not (tmp_path / "next").exists()
    # some are named, and the others would get more than they had
    partial = {"client_epsilons": "north=2", "epsilon": 16.0}
    with pytest.raises(ValueError, match=r"gave clients an own epsilon each .*'#0=4, #2=2, #3=8'"):
        simulate(tmp_path / "next", **goes_on, **partial)
    # negative control: the same client has more, because somebody says so
    again = {"client_epsilons": "north=2, south=3, east=5, west=9"}
    simulate(tmp_path / "next", **goes_on, **again)
    assert all(map(operator.le, spent(tmp_path / "next"), (5.0, 2.0, 3.0, 9.0)))


def test_nor_by_way_of_a_run_between(tmp_path):
    """Which gave all clients less than any had: the first run ended early."""

    def stop(row: dict[str, Any]) -> None:
        raise fedlsg.StopRun("early")

    own = {"client_epsilons": "north=4, south=8, east=8, west=8", "rounds": 60}
    simulate(tmp_path / "own", callbacks=[stop], **own)
    between = {"rounds": 1, "epsilon": 3.5}
    simulate(tmp_path / "between", start_from=tmp_path / "own", **between)
    goes_on = {"start_from": tmp_path / "between", "rounds": 1}
    with pytest.raises(ValueError, match=r"gave clients an own epsilon each .*=4"):
        simulate(tmp_path / "next", **goes_on, epsilon=7.0)
    # negative controls: nobody gets more than its own, or somebody says so, and then says no more
    simulate(tmp_path / "same", **goes_on, epsilon=3.9)
    simulate(tmp_path / "named", **goes_on, epsilon=7.0, client_epsilons="north=6")
    newest = {"start_from": tmp_path / "named", "rounds": 1}
    with pytest.raises(ValueError, match=r"gave clients an own epsilon each .*=6'"):
        simulate(tmp_path / "on", **newest, epsilon=7.5)


def test_nor_in_another_order_or_among_other_clients(tmp_path):
    """A number is then another client's: #1 was north."""
    sites = frame(200, 0)["site"].to_numpy()
    rows = {site: np.flatnonzero(sites == site).tolist() for site in SITES}
    each = {"rounds": 1, "epsilon": 8.0}
    simulate(tmp_path / "own", partition=rows, client_epsilons="north=1", **each)
    goes_on = {"start_from": tmp_path / "own", "rounds": 1, "epsilon": 16.0}
    turned = {site: rows[site] for site in ("north", "east", "south", "west")}
    fewer = {"north": rows["north"], "east": rows["east"] + rows["south"] + rows["west"]}
    for others, named in ((turned, "#1=12"), (turned, "east=12"), (fewer, "east=12")):
        with pytest.raises(ValueError, match=r"'#1=1'\) and had other data or another partition"):
            simulate(tmp_path / "next", partition=others, **goes_on | {"client_epsilons": named})
    # negative controls: each client has a word of its own, or its number is the same client's
    simulate(tmp_path / "all", partition=fewer, **goes_on, client_epsilons="north=9, east=12")
    simulate(tmp_path / "same", partition=rows, **goes_on, client_epsilons="#1=2")


def test_nor_its_own_delta(tmp_path):
    own = {"client_deltas": "north=1e-6", "epsilon": 2.0, "delta": 1e-5, "rounds": 1}
    simulate(tmp_path / "own", **own)
    with pytest.raises(ValueError, match="give client_deltas= again, for both runs together"):
        simulate(tmp_path / "next", start_from=tmp_path / "own", epsilon=4.0, delta=1e-5, rounds=1)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a secure sum": ({"trust": "secure"}, "share their noise"),
    "an assumed sum": ({"trust": "aggregate"}, "share their noise"),
    "given noise": ({"noise_multiplier": 1.0}, "calibrated to each"),
    "no noise": ({"method": "sgd"}, "client_epsilons"),
    "nobody's": ({"epsilon": {"north": 1.0}}, "gives no epsilon to 3 of 4 clients, such as 'east'"),
    "a delta of many rows": ({"delta": {"north": 0.03}}, "expected delta=0.03 < 1 / num_examples"),
    "a delta without noise": ({"method": "sgd", "epsilon": None, "delta": [1e-5] * 4}, "deltas"),
    "unknown": ({"epsilon": OWN | {"up": 1.0}}, "names 'up', which is no client"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_a_charge(name, tmp_path):
    given, why = REFUSED[name]
    with pytest.raises(ValueError, match=why):
        simulate(tmp_path / "run", **{"epsilon": OWN} | given)
    assert not list(tmp_path.rglob("ledger*"))


def test_the_three_choices_are_compared():
    settings = {"workload": "digits", "method": "dpsgd", "clients": 4, "rounds": 4, "epsilon": None}
    own = {"client_epsilons": "#0=2, #1=1, #2=4, #3=8"}
    plan = make_plan(from_mapping(settings | own))
    everyone, left_out, each = choices(plan)
    assert (everyone.clients, everyone.epsilon, everyone.delta) == (4, 1.0, 1e-5)
    assert (left_out.clients, left_out.epsilon) == (3, 2.0)
    assert each.noise < min(everyone.noise, left_out.noise)
    assert each.noise == noise_of_mean(plan.terms)
    assert worst(plan) == (pytest.approx(8.0, rel=0.01), plan.terms[3].noise_multiplier)


def test_clients_whose_rows_may_differ_count_as_under_one_epsilon():
    """By noise they count where rows are dealt at random, or where it is said. The control is the
    share of the client with the largest epsilon.
    """
    settings = {"workload": "digits", "method": "dpsgd", "clients": 4, "rounds": 4}
    settings["client_epsilons"] = "#0=1, #1=2, #2=4, #3=8"

    def plan(**given: Any) -> Plan:
        return make_plan(from_mapping(settings | given))

    at_random, differ = plan(), plan(partition="dirichlet", alpha=0.3)
    said = plan(partition="dirichlet", alpha=0.3, weighting="noise")
    weights = [terms.weight for terms in at_random.terms]
    assert weights == sorted(weights)
    assert weights[3] / weights[2] == pytest.approx(
        (at_random.terms[2].noise_multiplier / at_random.terms[3].noise_multiplier) ** 2
    )
    assert [terms.weight for terms in differ.terms] == [1.0] * 4
    assert [terms.weight for terms in said.terms] != [1.0] * 4
    offered = choices(differ)
    assert [one.name for one in offered][2:] == ["each its own", "each its own, by noise"]
    everyone, _, each, by_noise = offered
    assert by_noise.noise < each.noise < everyone.noise
    assert by_noise.noise == noise_of_mean(said.terms)
    assert by_noise.share == largest_share(said.terms)[1] > 0.5 > each.share == everyone.share
    assert [one.name for one in choices(said)][2:] == ["each its own"]
    assert not share_notes(at_random)
    assert not share_notes(differ)
    (note,) = share_notes(said)
    assert note.startswith(f"weighting=noise: client 3 has {by_noise.share:.0%} of the weight")
    sizes = plan(partition="dirichlet", alpha=0.3, weighting="clients").terms
    counts = [terms.weight * terms.sample_rate * terms.num_examples for terms in sizes]
    assert counts == pytest.approx([counts[0]] * 4)


def test_epsilon_and_sigma_that_are_shown_together_are_of_one_client(tmp_path):
    """A client of a stricter epsilon has more noise, which is not behind the largest epsilon."""
    simulate(tmp_path / "run", epsilon=8.0, client_epsilons="north=0.5", rounds=1)
    run = RunDir(tmp_path / "run")
    east, north = (run.charges.of(client).entries[0].noise_multiplier for client in (0, 1))
    assert north > 2 * east
    assert run.read_summary()["noise_multiplier"] == east
    assert f"; its sigma {east:.4g})" in privacy_line(run.read_summary())


def test_of_one_epsilon_the_strictest_have_the_smallest_delta():
    settings = {"workload": "digits", "method": "dpsgd", "clients": 4, "rounds": 4, "epsilon": 2}
    plan = make_plan(from_mapping(settings | {"client_deltas": "#0=1e-4, #1=1e-6"}))
    everyone, left_out, each = choices(plan)
    assert (everyone.delta, everyone.most_delta) == (1e-6, 1e-6)
    assert (left_out.clients, left_out.delta) == (3, 1e-5)
    assert (each.delta, each.most_delta) == (1e-6, 1e-4)
    assert each.noise < min(everyone.noise, left_out.noise)


def test_a_command_line_takes_the_table_form():
    """``--epsilon "north=1, south=4"``, as ``simulate(epsilon={...})`` does."""
    found = from_mapping({"epsilon": "north=1, south=4", "delta": {"north": 1e-6}})
    assert (found.epsilon, found.client_epsilons) == (None, "north=1, south=4")
    assert (found.delta, found.client_deltas) == (None, "north=1e-06")
    assert from_mapping({"epsilon": "4"}).epsilon == 4.0
    with pytest.raises(ValueError, match=r"got 'consent': for one of each client give epsilon="):
        from_mapping({"epsilon": "consent"})
    with pytest.raises(ValueError, match="client_epsilons is given twice"):
        from_mapping({"epsilon": "north=1", "client_epsilons": "north=2"})


def test_what_calibration_leaves_is_shown_as_nothing():
    rows = [
        {"client": 0, "planned": 1.0, "epsilon": 0.99998, "left": 2.23e-05, "weight": 1.0},
        {"client": 1, "planned": 4.0, "epsilon": 2.75, "left": 1.25, "weight": 1.0},
    ]
    shown = client_table(rows, 10)
    place = shown.columns.index("left")
    assert [row.cells[place] for row in shown.rows] == ["0", "1.25"]
