"""``fedlsg attack --against``: the same clients, rows and weights under two settings, side by side."""

import html
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from fedlsg.attacks.observation import ThreatModel
from fedlsg.attacks.recognition import LEAKS
from fedlsg.simulations.attacks import kind_of, recording
from fedlsg.simulations.attacks.before_after import (
    caption,
    check_alike,
    headline,
    outcome_of_run,
    replace_zero_sigma,
    side_names,
    updates_in,
)
from fedlsg.simulations.attacks.findings import VERDICTS, read_each
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.privacy_facts import privacy_facts
from fedlsg.simulations.attacks.recording import (
    find_or_record,
    record_like,
    record_pair,
    with_changes,
)
from fedlsg.simulations.attacks.target import Options, attack_each, rows_of
from fedlsg.simulations.planning.plan import make_plan
from fedlsg.simulations.settings.settings import from_mapping, values_of
from fedlsg.simulations.storage.run_directory import RunDir
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import run_local

CONSOLE = Console(quiet=True)
HERE = (CONSOLE, "cpu")
OPTIONS = ("--method", "dpsgd", "--noise-multiplier", "2", "--images", "3")
QUICK = ("--attacks", "first-layer", "--seconds", "0.2")


@pytest.fixture
def out(fedlsg, tmp_path_factory) -> Path:
    """The folder of one pair on digits; it is recorded once, and reused."""
    folder = tmp_path_factory.getbasetemp() / "before-after-pair"
    if not (folder / "before-after.json").exists():
        options = ("--against", "mechanism=clip-only", *OPTIONS, *QUICK, "--out", str(folder))
        status, said, errors = fedlsg("attack", *options)
        assert status == 0, errors
        assert (
            "Pictures that the server recognises: without noise, 3 of 3; with noise, 0 of 3" in said
        )
    return folder


@pytest.fixture
def sides(out):
    """The records of the pair: without noise, and with noise."""
    return [record_of(out / "before-after" / name) for name in ("against", "run")]


def record_of(path: Path):
    return open_record(str(path), ThreatModel())


def payloads(path: Path) -> dict[str, bytes]:
    return {str(one.relative_to(path)): one.read_bytes() for one in path.rglob("client-*.bin")}


@pytest.mark.slow
def test_one_command_shows_the_same_examples_with_and_without_noise(out):
    numbers = json.loads((out / "before-after.json").read_text())
    pair, (before, after) = numbers["same_examples"], numbers["runs"]
    assert [before["label"], after["label"]] == ["without noise", "with noise"]
    for one in (before, after):
        assert [(u["clients"], u["rows"]) for u in one["updates"]] == [
            (u["clients"], u["rows"]) for u in pair["updates"]
        ]
    assert [before["summary"][0]["blind"]] == [after["summary"][0]["blind"]]
    count = len(pair["updates"])
    assert pair["verdicts"]["without noise"] == ["recovered"] * count
    assert not set(LEAKS) & set(pair["verdicts"]["with noise"])
    assert "not told apart" in pair["verdicts"]["with noise"]
    assert count >= 2
    assert after["facts"]["privacy"] == "NOT PRIVATE: the noise is reproducible"
    page = without_scripts((out / "before-after.html").read_text())
    assert page.count("data:image/png;base64,") == 4 * count
    card = page.partition('<ul class="versions"')[2].partition("</li>")[0]
    assert re.findall("<b>(.+?)</b>", card) == [
        "original",
        "blind guess",
        "without noise",
        "with noise",
    ]
    assert "this is the person's picture" in html.unescape(card)
    # that of a guess that is the nearest by chance is "undecided"
    assert VERDICTS[pair["verdicts"]["with noise"][0]][0] in card
    for words in (
        "with noise of sigma 2",
        "Both runs have the same examples",
        "training examples of the clients",
    ):
        assert words in page
    assert "batches of its own" not in page
    assert page.count("were made without privacy") == 1  # those of "without noise" alone


def test_both_runs_see_the_same_rows_and_equal_settings_the_same_payloads(out, tmp_path):
    """Only the noise differs: planted equal settings give the same bytes."""
    before, after = (record_of(out / "before-after" / name) for name in ("against", "run"))
    check_alike(before, after, {"mechanism": "clip-only"})
    assert len({one for number, one in updates_in(after) if len(rows_of(after, number, one))}) >= 2
    settings = {k: v for k, v in values_of(after.base.settings).items() if k != "run_dir"}
    again = Path(find_or_record(settings, tmp_path / "again", CONSOLE, "cpu"))
    assert payloads(again) == payloads(after.run.path) != payloads(before.run.path)


@pytest.mark.parametrize(
    ("change", "what"), [({"batch_size": 3}, "rows"), ({"seed": 1}, "weights")]
)
def test_other_rows_and_other_weights_are_refused(change, what, out, tmp_path):
    after = record_of(out / "before-after" / "run")
    settings = {k: v for k, v in values_of(after.base.settings).items() if k != "run_dir"}
    other = record_of(Path(find_or_record({**settings, **change}, tmp_path / "r", CONSOLE, "cpu")))
    with pytest.raises(ValueError, match=f"do not have the same {what}"):
        check_alike(other, after, change)


def test_the_same_rows_of_other_data_are_refused(out, monkeypatch):
    before, after = (record_of(out / "before-after" / name) for name in ("against", "run"))
    batch = type(before.base.workload.train).batch
    rows = before.base.workload.train
    monkeypatch.setattr(
        type(rows),
        "batch",
        lambda self, at: (lambda x, y: (x + (self is rows), y))(*batch(self, at)),
    )
    with pytest.raises(ValueError, match="do not have the same examples"):
        check_alike(before, after, {"normalise": "own"})


@pytest.fixture
def wanted(monkeypatch) -> list[dict]:
    """The settings of runs that would be recorded."""
    found: list[dict] = []

    def note(settings, directory, *_):
        found.append(settings)
        return str(directory)

    monkeypatch.setattr(recording, "find_or_record", note)
    return found


def test_the_sigma_is_that_of_all_rounds_of_the_run(wanted, tmp_path):
    """Calibrated for the one round that is recorded, it would be much less."""
    given = {"method": "dpsgd", "epsilon": 8.0, "rounds": 50}
    pair = record_pair(None, given, {"mechanism": "none"}, tmp_path, CONSOLE, "cpu", examples=3)
    before, after = wanted
    assert after["rounds"] == 1
    assert after["noise_multiplier"] > 1
    assert "noise_multiplier" not in before
    assert [one.epsilon for one in pair] == [None, 8.0]
    assert before.items() - {("mechanism", "none")} <= after.items()


@pytest.mark.parametrize(
    ("against", "epsilon"),
    [({"clip_norm": 2.0}, 8.0), ({"local_steps": 4}, None), ({"delta": 0.01}, None)],
)
def test_a_side_claims_the_runs_epsilon_only_where_the_ledger_would_count_the_same(
    against, epsilon, wanted, tmp_path
):
    """Four steps a round at one sigma cost more than one."""
    given = {"method": "dpsgd", "epsilon": 8.0, "rounds": 50}
    pair = record_pair(None, given, against, tmp_path, CONSOLE, "cpu", examples=3)
    assert [one.epsilon for one in pair] == [epsilon, 8.0]


def test_a_run_gives_its_settings_and_its_sigma(wanted, out, tmp_path):
    path = str(out / "before-after" / "run")
    record_pair(path, {}, {"method": "sgd"}, tmp_path, CONSOLE, "cpu", examples=3)
    before, after = wanted
    assert after["noise_multiplier"] == 2
    assert before["method"] == "sgd"
    assert not {"mechanism", "noise_multiplier"} & before.keys()
    assert all(before[name] == after[name] for name in before.keys() - {"method"})


def test_settings_that_change_nothing_are_refused(wanted, out, tmp_path):
    path = str(out / "before-after" / "run")
    with pytest.raises(ValueError, match=r"--against mechanism=dp is what the run has"):
        record_pair(path, {}, {"mechanism": "dp"}, tmp_path, CONSOLE, "cpu", examples=3)
    assert not wanted


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--compare", "lsg,dpsgd"), "leave out --compare"),
        (("--record",), "leave out --record"),
        (("--against", "noise"), "expected --against KEY=VALUE, got 'noise'"),
        (("--against", "nose=1"), "unknown setting 'nose'"),
        (("--membership",), "leave out --against"),
    ],
)
def test_the_command_refuses_what_does_not_go_with_two_settings(options, words, fedlsg):
    status, _, errors = fedlsg("attack", "--against", "mechanism=none", *options)
    assert status == 2 or status == 1
    assert words in errors


def test_what_a_change_makes_void_is_left_out():
    run = {"method": "lsg", "rank": 4, "mechanism": "dp", "clip_norm": 1.0, "noise_multiplier": 2.0}
    assert with_changes(run, {"mechanism": "none"}).keys() == {"method", "rank", "mechanism"}
    assert "noise_multiplier" not in with_changes(run, {"epsilon": 3.0})
    assert "rank" not in with_changes(run, {"method": "dpsgd"})
    assert with_changes(run, {"rank": 2}) == {**run, "rank": 2}
    assert replace_zero_sigma({"noise_multiplier": "0"}) == {"mechanism": "clip-only"}
    assert replace_zero_sigma({"noise_multiplier": "0.5"}) == {"noise_multiplier": "0.5"}


@pytest.mark.parametrize("verdict", ["recovered", "recognisable"])
def test_each_leak_is_recognised_by_badge_and_headline(verdict):
    """A plain truck of little similarity was "nothing recognisable"."""
    verdicts = {"without noise": [verdict, "undecided"], "with noise": ["not told apart"] * 2}
    assert outcome_of_run("picture", "without noise", verdicts["without noise"], None)[1] == "bad"
    assert outcome_of_run("picture", "with noise", verdicts["with noise"], None)[1] == "good"
    assert "without noise, 1 of 2, 1 undecided; with noise, 0 of 2" in headline("picture", verdicts)


@pytest.mark.parametrize(
    ("against", "names"),
    [
        ({"mechanism": "clip-only"}, ("without noise", "with noise")),
        ({"clip_norm": "2"}, ("with clip norm 2", "with clip norm 0.5")),
        ({"epsilon": "1"}, ("with epsilon 1", "with epsilon 8")),
        ({"epsilon": "8"}, ("with epsilon 8", "as the run is")),
        ({"rank": "3"}, ("with rank 3", "as the run is")),
        ({"noise_multiplier": "1"}, ("with noise multiplier 1", "with noise multiplier 2")),
    ],
)
def test_sides_have_two_names_in_words(against, names, sides):
    """Sides of one name would be one side: the epsilon of a short run is in none of its settings."""
    before, after = sides
    first = before if against == {"mechanism": "clip-only"} else after
    assert side_names(first, replace(after, whole_epsilon=8.0), against) == names
    assert RunDir.open(str(after.run.path)).read_config().reproducible


def test_sides_without_noise_of_which_one_clips_are_named_by_that(sides):
    quiet = sides[0]
    plain = replace(
        quiet,
        base=replace(
            quiet.base,
            method=replace(
                quiet.base.method,
                mechanism=replace(quiet.base.method.mechanism, kind="none"),
            ),
        ),
    )
    assert side_names(plain, quiet, {"mechanism": "none"}) == ("without a clip", "with a clip")


@pytest.fixture
def summed(sides):
    """What attacks find on the sum of all clients."""
    record, threat = sides[0], ThreatModel(view="aggregate")
    options = Options(
        batches=None, examples=3, attacks="dlg", naive=False, seconds=0.01, seed=0, device="cpu"
    )
    return attack_each(kind_of(record), record, threat, options, lambda share, text: None)


def test_each_original_of_a_sum_is_of_its_own_client(summed):
    """Planted "client 0" for all is seen: the clients hold other rows."""
    truth, parts = summed.targets[0].truth, summed.record.base.parts
    assert len(set(truth.clients)) >= 2
    assert all(row in parts[of] for row, of in zip(truth.rows, truth.clients, strict=True))
    cards = summed.kind.compared(summed, {"one side": read_each(summed)}).cards
    count = len(parts)
    assert [card[0].words for card in cards] == [
        f"of client {of} of the {count} recorded" for of in truth.clients
    ]


def test_the_caption_says_whose_update_it_is_and_what_the_blind_guess_is_granted(summed):
    clients = len(summed.targets[0].seen.clients)
    words = caption(summed.kind, {"without noise": summed, "with a clip": summed})
    assert f"in the sum of {clients} clients' updates without noise" in words
    assert "the client's update" not in words
    assert "mean of the public test pictures of its class. It is granted the class" in words
    unknown = replace(summed, threat=replace(summed.threat, labels="unknown"))
    words = caption(summed.kind, {"without noise": unknown, "with a clip": unknown})
    assert "mean of all public test pictures" in words
    assert "class" not in words


def test_an_epsilon_is_named_for_what_it_covers(sides):
    """A round whose noise anybody can repeat has none, and the whole run has one of its own."""
    record = replace(sides[1], whole_epsilon=8.0)
    seen = record.observation(*updates_in(record)[0])
    words = privacy_facts(record, seen, None)["epsilon"]
    assert words.startswith("8 at delta 1e-05, of the whole run that has this noise; none of")
    assert "inf" not in words
    assert "whole run" not in privacy_facts(sides[1], seen, None)["epsilon"]


@pytest.fixture(scope="module")
def budgets(tmp_path_factory):
    """A short run whose clients have epsilons of their own."""
    own = {"client_epsilons": "#0=1", "epsilon": 8.0, "noise_multiplier": None}
    folder = tmp_path_factory.mktemp("budgets") / "run"
    run_local(folder, method="dpsgd", **own, reproducible=False, rounds=1)
    return str(folder)


def test_own_budgets_of_clients_give_the_least_sigma_and_its_epsilon(budgets, wanted, tmp_path):
    """The largest would hide more than most clients do. A short run has no budgets of its own."""
    one = record_like(budgets, {}, tmp_path, CONSOLE, "cpu", examples=3)
    pair = record_pair(budgets, {}, {"mechanism": "none"}, tmp_path, CONSOLE, "cpu", examples=3)
    charges = RunDir.open(budgets).charges
    sigmas = [charges.of(client).entries[0].noise_multiplier for client in charges.clients()]
    assert all("client_epsilons" not in settings for settings in wanted)
    assert wanted[0]["noise_multiplier"] == wanted[2]["noise_multiplier"]
    assert wanted[0]["noise_multiplier"] == pytest.approx(min(sigmas))
    assert min(sigmas) < max(sigmas) / 2
    assert one.epsilon == pytest.approx(8.0, abs=0.01)
    assert pair[1].epsilon == one.epsilon
    for settings in wanted:
        make_plan(from_mapping(settings))
    assert record_like(budgets, {"mechanism": "none"}, tmp_path, *HERE, examples=3).epsilon is None


def test_clients_of_a_secure_sum_that_add_no_noise_send_to_the_server(wanted, tmp_path):
    given = {"method": "dpsgd", "trust": "secure", "noise_multiplier": 1.0, "colluders": 1}
    for against in ({"mechanism": "none"}, {"mechanism": "none", "trust": "client"}):
        record_pair(None, given, against, tmp_path, *HERE, examples=3)
        quiet, run = wanted[-2:]
        assert (quiet["trust"], run["trust"]) == ("client", "secure")
        assert "colluders" not in quiet
    make_plan(from_mapping(quiet))
    make_plan(from_mapping(run))
    assert with_changes({**given, "rank": 2}, {"clip_norm": 2.0}).items() >= given.items()


def test_another_question_is_recorded_next_to_the_first(tmp_path):
    """Also where it leaves out a setting; the same question is recorded once."""
    plain = {"method": "dpsgd", "clients": 2, "rounds": 1, "batch_size": 1, "mechanism": "none"}
    first = find_or_record({**plain, "learning_rate": 0.5}, tmp_path / "r", *HERE)
    assert find_or_record(plain, tmp_path / "r", *HERE) == f"{first}-2"
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("client-*")}
    assert find_or_record({**plain, "learning_rate": 0.5}, tmp_path / "r", *HERE) == first
    assert find_or_record(plain, tmp_path / "r", *HERE) == f"{first}-2"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("client-*")} == before


def test_an_unknown_attack_is_refused_before_anything_is_recorded(fedlsg, tmp_path):
    options = ("--against", "mechanism=none", "--attacks", "guess", *OPTIONS)
    status, _, errors = fedlsg("attack", *options, "--out", str(tmp_path / "a"))
    assert status != 0
    assert "unknown attack 'guess'" in errors
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("side", "trust"), [("-c", "secure"), ("-c", "aggregate"), ("--against", "aggregate")]
)
def test_single_payloads_that_nobody_sees_are_refused_before_anything_is_recorded(
    side, trust, fedlsg, tmp_path
):
    """Sums would answer another question than --view client asks."""
    options = ("--against", "clip_norm=2", side, f"trust={trust}", "--view", "client")
    status, _, errors = fedlsg("attack", *OPTIONS, *options, "--out", str(tmp_path / "a"))
    assert status != 0
    assert f"trust={trust}" in errors
    assert "attack the sum with --view aggregate" in errors
    assert not (tmp_path / "a").exists()


@pytest.mark.slow
def test_a_secure_sum_is_compared_with_the_sum_without_noise(fedlsg):
    options = (
        "--method",
        "dpsgd",
        "-c",
        "trust=secure",
        "--noise-multiplier",
        "2",
        "--images",
        "2",
    )
    options = (*options, "--attacks", "dlg", "--seconds", "0.1", "--out", "pair")
    status, said, errors = fedlsg("attack", "--against", "mechanism=none", *options)
    assert status == 0, errors
    assert "Pictures that the server recognises: without noise" in said
    assert "of the sum of 6 payloads" in said
    numbers = json.loads(Path("pair/before-after.json").read_text())
    assert numbers["granted"]["sees"] == "the sum of all payloads"


@pytest.mark.parametrize(("rate", "badge"), [(0.718, "limited"), (0.02, "good")])
def test_a_badge_says_what_who_knows_the_batch_finds(rate, badge):
    """A green "nothing recognisable" was over a closed block with 71.8 %."""
    words, style = outcome_of_run("picture", "with noise", ["not told apart"] * 8, rate)
    assert style == badge
    assert f"no picture recognised; membership in a known batch: {rate:.0%}" in words
