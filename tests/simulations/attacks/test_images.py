"""``fedlsg attack`` on recorded runs of digits: what it gets, what it grants, what it refuses."""

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.inversion.matching import ATTACKS
from fedlsg.attacks.metrics import Interval
from fedlsg.attacks.observation import Knowledge, ThreatModel
from fedlsg.attacks.recognition import Recognition
from fedlsg.simulations.attacks import images_score, observations
from fedlsg.simulations.attacks.attack_page import (
    curves,
    in_short,
    outcome,
    without_privacy,
    worst_first,
)
from fedlsg.simulations.attacks.findings import (
    FEWEST_OF_MEAN,
    Best,
    Findings,
    Judged,
    Score,
    Update,
    best_of,
    common_figures,
    findings_of,
    judge,
    summaries,
)
from fedlsg.simulations.attacks.images_attack import Images, strongest
from fedlsg.simulations.attacks.images_score import Summary, public_images
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import Options, attack_each, batch_sizes
from fedlsg.simulations.client import process_state, train
from tests.places import REPOSITORY
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import run_local
from tests.simulations.support.secure_clients import Seen, recorded_sum, run_five

CLIENT, SUM = ThreatModel(), ThreatModel(view="aggregate")
RECORDING = {
    "clients": 3,
    "rounds": 2,
    "sample_rate": None,
    "batch_size": 2,
    "record_updates": True,
}
CASES = {
    "dpsgd": {"method": "dpsgd", "mechanism": "clip-only", "noise_multiplier": None},
    "rgp": {"method": "rgp", "rank": 8, "mechanism": "clip-only", "noise_multiplier": None},
    "noisy lsg": {"method": "lsg", "noise_multiplier": 2.0},
    "ranked rs": {"method": "rs", "ranking": "gradients", "noise_multiplier": 2.0},
    "two steps": {"method": "dp-powersgd", "local_steps": 2, "noise_multiplier": 2.0},
    "probe": {"method": "probe", "probes": 20, "refresh_rounds": 2, "noise_multiplier": 2.0},
    "sum": {"method": "lora", "trust": "aggregate", "noise_multiplier": 2.0},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Paths of recorded runs by case, each made once."""
    folder, made = tmp_path_factory.mktemp("recorded"), {}

    def of(case: str) -> str:
        if case not in made:
            made[case] = str(
                run_local(folder / case.replace(" ", "-"), **{**RECORDING, **CASES[case]}).path
            )
        return made[case]

    return of


@pytest.fixture
def copied(recorded, tmp_path):
    """A copy of a recorded run that a test may damage."""
    return lambda case: shutil.copytree(recorded(case), tmp_path / "run")


def nowhere(share: float, text: str) -> None:
    """A progress that nobody watches."""


def attacked(path: str, threat: ThreatModel = CLIENT, **options):
    chosen = {
        "batches": (1,),
        "examples": 2,
        "attacks": None,
        "naive": False,
        "seconds": 0.5,
        "seed": 0,
    }
    record = open_record(path, threat)
    return attack_each(Images(record), record, threat, Options(**{**chosen, **options}), nowhere)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("case", CASES)
def test_frames_are_derived_anew_for_every_round(case, recorded):
    """Every payload names its frame's digest, so that reading them all says that all frames are
    right.
    """
    threat = SUM if case == "sum" else CLIENT
    record = open_record(recorded(case), threat)
    assert sorted(record.payloads) == [1, 2]
    for round in record.payloads:
        seen = record.pick(round, threat)
        assert len(seen) == (1 if threat.view == "aggregate" else 3)
        assert all(bool(one.values.isfinite().all()) for one in seen)


def test_every_attack_is_named_in_its_document():
    page = (REPOSITORY / "docs" / "attacks.md").read_text()
    assert [name for name in ("first-layer", *ATTACKS) if f"`{name}`" not in page] == []


def plans_of_clients_and_of_their_replay(path, monkeypatch):
    """Of a recorded run: what each client was told and derived, and what the attacks compute."""
    plans, honest = {}, train.train_round

    def watched(here, account, plan, *rest, **more):
        plans[plan.round, account.client] = plan
        return honest(here, account, plan, *rest, **more)

    monkeypatch.setattr(train, "train_round", watched)
    settings = {"local_steps": 2, "rounds": 2, "cooling": True, "method": "rs", "proximal": 0.1}
    record = open_record(str(run_local(path, **{**RECORDING, **settings}).path), CLIENT)
    replayed = {
        (round, client): record.plan(round, client, record.model_of(round))
        for round, client in plans
    }
    return plans, replayed


def parts_of(plan):
    """All that a client's step depends on."""
    return plan.frame.digest, plan.mechanism, plan.local, plan.sums, plan.unit


def test_a_replay_knows_all_that_clients_were_told(tmp_path, monkeypatch):
    """Each value that the server tells has to reach ``Record.plan``, too."""
    plans, replayed = plans_of_clients_and_of_their_replay(tmp_path / "run", monkeypatch)
    assert len(plans) == 6
    for key, plan in plans.items():
        ours, theirs = parts_of(plan), parts_of(replayed[key])
        assert theirs[1].noise_multiplier == pytest.approx(ours[1].noise_multiplier)
        mechanism = replace(theirs[1], noise_multiplier=ours[1].noise_multiplier)
        assert (theirs[0], mechanism, *theirs[2:]) == ours


def test_a_value_that_clients_alone_are_told_is_noticed(tmp_path, monkeypatch):
    """Planted: another rate of local steps, which no ledger has."""
    honest = process_state.plan_round

    def told(*given):
        plan = honest(*given)
        return replace(plan, local=replace(plan.local, learning_rate=plan.local.learning_rate / 2))

    monkeypatch.setattr(process_state, "plan_round", told)
    plans, replayed = plans_of_clients_and_of_their_replay(tmp_path / "run", monkeypatch)
    assert all(parts_of(plan)[2] != parts_of(replayed[key])[2] for key, plan in plans.items())


def test_a_replay_of_another_clip_norm_is_refused(recorded, monkeypatch):
    """Planted: a replay that does not know what was told."""
    honest = observations.plan_round
    monkeypatch.setattr(
        observations,
        "plan_round",
        lambda *given: honest(*given).at_clip_norm(0.25),
    )
    record = open_record(recorded("dpsgd"), CLIENT)
    with pytest.raises(ValueError, match=r"client 0 was charged .*clip_norm=.*, not 0\.25, which"):
        record.plan(1, 0, record.model_of(1))


@pytest.mark.parametrize("case", ["dpsgd", "rgp"])
def test_a_first_layer_without_noise_gives_its_input_back(case, recorded):
    """From the recorded float32 payload, with batch of one; labels and truth are not looked at."""
    found = attacked(recorded(case), attacks="first-layer", batches=(1, 2, 3))
    single = [
        results[0]
        for t, results in zip(found.targets, found.results, strict=True)
        if len(t.truth.rows) == 1
    ]
    assert single
    assert min(value for result in single for value in result.psnr) > 100


def test_the_attack_needs_no_truth(copied):
    """The truth is deleted: every attack still runs, and only scoring says what it misses."""
    path = copied("dpsgd")
    shutil.rmtree(path / "updates-truth")
    record = open_record(str(path), CLIENT)
    prior = public_images(record.base.workload).prior
    for seen in record.pick(1, CLIENT):
        if seen.values.norm() > 0:
            assert input_of_linear(seen, prior).inputs.shape[1:] == prior.shape
            for attack in strongest(seen, Knowledge(), naive=True):
                if attack.name != "relu-batch":
                    guess = attack.run(
                        seen,
                        Knowledge(),
                        prior,
                        torch.Generator().manual_seed(0),
                        0.1,
                        lambda *a: None,
                    )
                    assert guess.inputs.shape[1:] == prior.shape
    with pytest.raises(ValueError, match=r"updates-truth.*is missing: without the batches"):
        attacked(str(path))


@pytest.mark.slow
def test_noise_leaves_the_blind_guess(recorded):
    """The most probable batch under this much noise is about the prior's own; nothing is claimed
    over it.
    """
    found = attacked(recorded("noisy lsg"), batches=(1, 2, 3), examples=3)
    rows = {row.attack: row for row in summaries(found)}
    assert abs(rows["map"].mean_gain) < 3
    assert 0.01 < found.membership < 0.1
    assert "first-layer" not in rows
    assert verdicts(found) == {"not told apart"}


def verdicts(found) -> set[str]:
    """Of all examples and attacks."""
    scores = [score for scores in found.results for score in scores]
    return {one.verdict for score in scores for one in score.recognitions}


@pytest.mark.parametrize("case", ["dpsgd", "rgp"])
def test_one_exact_image_is_a_leak(case, recorded):
    """However few: no interval over images is asked for."""
    found = attacked(recorded(case), attacks="first-layer", examples=1)
    assert verdicts(found) == {"recovered"}
    made = findings_of(found)
    assert made.verdict.startswith("these updates leak images: 1 of 1 image recovered")
    assert outcome([made]) == ("the attack succeeded", "bad")


def row(attack: str = "a", *, gain: tuple[float, float] | None = None, **more) -> Summary:
    """A row of made-up figures; ``gain``: the ends of its interval."""
    interval = (
        None
        if gain is None
        else Interval(mean=0, low=gain[0], high=gain[1], confidence=0.95, count=2)
    )
    figures = {"attack": attack, "batch": 2, "blind": 10.0, "mean_gain": 0.0, "seconds": 1.0}
    figures |= {
        "examples": 2,
        "recognised": 0,
        "recovered": 0,
        "psnr": 10.0,
        "ssim": 0.0,
        "gain": interval,
    }
    return Summary(**{**figures, **more})


def words(rows: Sequence[Summary], updates: Sequence[Update]) -> str:
    return judge(rows, updates).words


def update(*verdicts: str, left: float | None = None, close: int = 0) -> Update:
    among = 101 if {YES, ALMOST} & {*verdicts} else 0
    return Update(verdicts=verdicts, unexplained=left, close=close, among=among)


NO, YES, ALMOST, OPEN = "not told apart", "recovered", "recognisable", "undecided"


def test_a_search_that_did_not_converge_is_no_evidence():
    """It is said of each update; one that converged does not speak for the others."""
    some = [row(gain=(-0.2, 0.2))]
    assert words(some, [update(OPEN, left=0.4)]).startswith(
        "undecided, no search converged (the best guess leaves 40 % of such an update"
    )
    mixed = [update(NO, left=0.001), update(OPEN, left=0.4), update(NO, left=0.0)]
    assert "no search converged on 1 of 3 updates" in words(some, mixed)
    stuck = [update(OPEN, left=0.4), update(OPEN, left=0.25)]
    assert "on 2 of 2 updates (the best guess leaves 25 to 40 %" in words(some, stuck)
    assert words(some, [update(NO, left=0.001)]).startswith("no image recognised")
    assert words(some, [update(OPEN)]).startswith("undecided, too few public examples")


def test_single_images_decide_and_the_mean_is_said_in_addition():
    """The control: no interval makes a leak, or hides one."""
    far, none = row(gain=(5.0, 12.0)), row(gain=(-9.0, 11.0))
    assert words([far], [update(NO, NO)]).startswith("none of 2 images recognised, slightly better")
    said = words([none], [update(YES, NO), update(OPEN, left=0.4)])
    assert said.startswith("these updates leak images: 1 of 3 images recovered")
    said = words([none], [update(YES, ALMOST), update(NO)])
    assert (
        "1 of 3 images recovered and 1 of 3 images recognisable, nearest to its own original"
        in (said)
    )
    assert words([row()], [update(YES)]).startswith("these updates leak images: 1 of 1 image ")


def test_an_attack_that_recovers_an_example_outweighs_the_others():
    """Closed forms and naive searches that fail are no evidence next to a search that is stuck."""

    def score(verdict: str, left: float | None):
        rank = 1 if verdict in (YES, ALMOST) else 101
        one = Recognition(similarity=0.0, rival=0.5, rank=rank, among=101, verdict=verdict)
        return Score(
            attack="a", seconds=1, objective=0, note="", unexplained=left, recognitions=(one,)
        )

    closed, stuck, done = score(NO, None), score(OPEN, 0.4), score(NO, 0.0)
    assert Update.of([closed, stuck], 1) == update(OPEN, left=0.4)
    assert Update.of([closed, stuck, done], 1) == update(NO, left=0.0)
    assert Update.of([stuck, score(ALMOST, None), done], 1).verdicts == (ALMOST,)
    assert Update.of([stuck, score(YES, None), score(ALMOST, 0.0)], 1) == update(YES, left=0.0)
    assert Update.of([closed], 1) == update(NO)
    assert Update.of([], 1) == update(OPEN)


def test_a_first_rank_that_a_mixture_shares_is_not_outvoted():
    """A search that found nothing does not make it "not told apart"."""
    one = Recognition(similarity=0.5, rival=0.4, rank=1, among=101, verdict=OPEN)
    near = Score(attack="a", seconds=1, objective=0, note="", unexplained=0.0, recognitions=(one,))
    done = replace(near, recognitions=(replace(one, rank=101, verdict=NO),))
    found = Update.of([near, done], 1)
    assert found == update(OPEN, left=0.0, close=1)
    assert "1 of 1 nearer to the original than to any public image" in words([row()], [found])


def test_the_badge_is_that_of_the_verdict_and_the_worst_run_gives_both():
    """A run that is better than guessing was "undecided" by its badge."""
    gains = {"none": (-0.1, 0.1), "better": (0.5, 1.0)}
    made = [judge([row(gain=gain)], [update(NO)]) for gain in gains.values()]
    assert [one.grade for one in made] == ["nothing", "better"]
    runs = [run_of(one) for one in made]
    assert [outcome([one]) for one in runs] == [
        ("no attack succeeded", "good"),
        ("nothing recognised, better than a blind guess", "limited"),
    ]
    assert outcome(runs) == (
        "nothing recognised, better than a blind guess in 1 of 2 runs",
        "limited",
    )
    assert worst_first(runs)[0] is runs[1]
    assert outcome([run_of(judge([], []))])[0] == "no attack applies"


@pytest.mark.parametrize("private", [False, True])
def test_a_page_of_updates_without_privacy_says_so_above_its_verdict(private):
    """The folder may be that of a private run, whose updates were recorded without noise."""
    said = without_privacy([run_of(judge([], []), private=private)])
    assert bool(said) is not private
    assert all("made without privacy" in words for words in said)


def run_of(judged: Judged, *, rows: Sequence[Summary] = (), **more) -> Findings:
    """A run of made-up figures."""
    best = best_of(rows, made_record(), made_record()) if rows else None
    empty = {
        "private": True,
        "facts": {},
        "table": None,
        "shown": None,
        "numbers": {},
        "refused": {},
    }
    figures = {"label": "a", "verdict": judged.words, "grade": judged.grade, "best": best}
    return Findings(**{**empty, **figures, "granted": {}, "limits": "", **more})


def made_record() -> Mock:
    """Stands for a record, and for an update without noise."""
    seen = {"noise_std": 0.0, "mechanism.clips": False, "mechanism.clip_norm": 1.0}
    return Mock(**{"base.settings.parameters": {}, **seen})


def test_attacks_and_runs_have_one_order():
    """The strongest attack recognises most; the largest gain comes second, everywhere."""
    sharp = row("sharp", recognised=1, mean_gain=2.0)
    far = row("far", mean_gain=9.0)
    leak, none = judge([sharp, far], [update(ALMOST)]), judge([far], [update(NO)])
    leaking, other = run_of(leak, rows=[sharp, far]), run_of(none, rows=[far])
    assert leaking.best.attack == "sharp"
    assert "the strongest attack (sharp, batch of 2)" in leaking.verdict
    assert worst_first([other, leaking]) == [leaking, other]
    assert in_short([other, leaking]).rows[0].cells[:2] == ("a", "sharp")


@pytest.mark.parametrize("most", [2.0, 10.0, 1e4, 1e9])
def test_a_run_without_noise_has_a_place_of_its_own(most):
    """With distant sigmas its label was left out, and it was drawn at the least sigma."""
    points = [
        Best(
            method="lsg",
            sparsity=None,
            sigma=sigma,
            attack="map",
            unit="dB",
            gain=gain,
            low=None,
            high=None,
            strength=(0.0, 0.0, gain),
        )
        for sigma, gain in ((0.0, 9.0), (1.0, 3.0), (most, 1.0))
    ]
    (chart,) = curves(points)
    place, words = chart.x.ticks[0]
    assert words == "no noise"
    assert place < 1
    assert list(chart.series[0].x) == [place, 1.0, most]
    assert list(chart.series[0].y) == [9.0, 3.0, 1.0]


def test_few_images_have_no_interval(recorded):
    """The control: five have one. It was -16.4 to 20.7 dB of two images."""
    found = attacked(recorded("dpsgd"), attacks="first-layer", examples=2)
    assert [one.gain for one in summaries(found)] == [None]
    assert "interval" not in findings_of(found).verdict
    gains = torch.arange(float(FEWEST_OF_MEAN))
    made = [found.results[0][0]] * FEWEST_OF_MEAN
    figures = common_figures(made, 1, score=2.0, blind=0.0, gains=gains)
    assert figures["gain"].count == FEWEST_OF_MEAN


def test_the_headline_names_the_row_that_stands_first(recorded):
    found = attacked(recorded("dpsgd"), attacks="dlg,first-layer", batches=(1,))
    rows = summaries(found)
    assert [one.strength for one in rows] == sorted((one.strength for one in rows), reverse=True)
    said = findings_of(found).verdict
    assert f"the strongest attack ({rows[0].attack}, batch of 1)" in said


@pytest.mark.slow
def test_the_second_question_leaves_the_page_of_the_first(fedlsg, recorded, tmp_path):
    """By planted equal questions the page is replaced."""
    first = ("attack", recorded("dpsgd"), "--images", "1", "--attacks", "first-layer")
    first = (*first, "--out", str(tmp_path))
    assert fedlsg(*first)[0] == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"attack.html", "attack.json"}
    status, said, _ = fedlsg(*first, "--labels", "unknown")
    assert status == 0
    assert "attack-2.html, attack-2.json" in said
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {"attack-2.html", "attack-2.json"}
    assert fedlsg(*first)[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == after.keys()


@pytest.mark.slow
def test_the_command_writes_numbers_and_one_page(fedlsg, recorded, tmp_path):
    out = tmp_path / "out"
    options = ("--batch", "1,2", "--images", "2", "--seconds", "0.1", "--naive", "--out", str(out))
    status, said, _ = fedlsg("attack", recorded("dpsgd"), recorded("noisy lsg"), *options)
    assert status == 0, said
    assert "over the blind guess" in said
    numbers = json.loads((out / "attack.json").read_text())
    assert [run["label"] for run in numbers["runs"]] == ["dpsgd", "lsg"]
    assert max(row["psnr"] for row in numbers["runs"][0]["summary"]) > 100
    assert numbers["threat_model"] == {"view": "client", "labels": "known", "examples": "known"}
    page = without_scripts((out / "attack.html").read_text())
    assert page.count("data:image/png;base64,") > 2 * 3, (
        "originals, blind guesses, and what was recovered"
    )
    heads = re.findall(r'<th scope="col">([^<]+)</th>', page.partition('class="gallery"')[2])
    assert (heads[0], heads[2]) == ("original", "blind guess"), (
        "a phone shows the strongest attack next to the original"
    )
    assert "http://" not in page
    assert "https://" not in page
    for words in (
        "What the adversary is granted",
        "blind",
        "epsilon",
        "An attack that fails proves nothing",
    ):
        assert words in page


SUM_OF_SECURE_RECORDS = ThreatModel(view="aggregate")


def given_up_first(stage: str, how: str):
    """Two clients drop out in the first round."""
    left = [2]

    def drop(at: str, client: int) -> str | None:
        if at != stage or client not in (2, 3) or not left[0]:
            return None
        left[0] -= 1
        return how

    return Seen(drop=drop)


@pytest.mark.slow
@pytest.mark.parametrize(
    "stage", ["unmask", *(pytest.param(s, marks=pytest.mark.slow) for s in ("masked", "agree"))]
)
def test_a_round_that_was_given_up_is_not_attacked(stage, tmp_path):
    """Its payloads are recorded, and stay masked."""
    settings = {"rounds": 2, "batch_size": 1, "sample_rate": None, "reproducible": True}
    run = run_five(tmp_path / "run", given_up_first(stage, "raises"), **settings)
    assert [row.answered for row in run.rows] == ["", "0 1 2 3 4"]
    assert any("round-000001" in name for name in run.payloads)
    record = open_record(str(run.path), SUM_OF_SECURE_RECORDS)
    assert list(batch_sizes(record)) == [2]
    (seen,) = record.pick(2, SUM_OF_SECURE_RECORDS)
    assert seen.values.equal(recorded_sum(run, 2).float())
    with pytest.raises(ValueError, match=r"round 1 .* revealed no sum: it was given up"):
        record.pick(1, SUM_OF_SECURE_RECORDS)


def test_as_many_public_images_are_read_as_fit_into_memory_of_all_classes(recorded, monkeypatch):
    """A folder is in the order of its classes: its first images would be of the first class."""
    workload = open_record(recorded("dpsgd"), CLIENT).base.workload
    order = workload.test.labels.argsort()
    monkeypatch.setattr(images_score, "PUBLIC_NUMBERS", 64 * 100)
    split = workload.test
    in_order = replace(split, inputs=split.inputs[order], labels=split.labels[order])
    found = public_images(replace(workload, test=in_order))
    assert len(found.images) == len(found.others) == 100
    assert found.labels is not None
    assert len(found.labels.unique()) == 10
