"""``fedlsg attack`` on recorded runs of digits: what it gets, what it grants, what it refuses."""

import json
import re
import shutil
from dataclasses import replace

import pytest
import torch

from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.metrics import Interval
from fedlsg.attacks.observation import Guess, Knowledge, ThreatModel
from fedlsg.simulations.attacks.findings import judge, summaries
from fedlsg.simulations.attacks.images_attack import Images, image_prior, strongest
from fedlsg.simulations.attacks.images_score import Summary, scored
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import Options, attack_each, batch_sizes
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
    prior = image_prior(record.base.workload)
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


def test_noise_leaves_the_blind_guess(recorded):
    """The most probable batch under this much noise is about the prior's own; nothing is claimed
    over it.
    """
    found = attacked(recorded("noisy lsg"), batches=(1, 2, 3), examples=3)
    rows = {row.attack: row for row in summaries(found)}
    assert abs(rows["map"].mean_gain) < 3
    assert 0.01 < found.membership < 0.1
    assert "first-layer" not in rows
    words = judge([row for row in summaries(found) if row.attack == "map"])
    assert "updates leak" not in words


PLAIN = Prior(shape=(1, 8, 8), low=0.0, high=1.0)
BLIND = torch.full((2, 1, 8, 8), 0.5, dtype=torch.float64)


def test_a_search_that_did_not_converge_is_no_evidence():
    """It is said so, whatever the interval, unless another search explains what was received."""
    row = Summary.of(
        [
            scored(
                "a", Guess(inputs=torch.rand(2, 1, 8, 8)), torch.rand(2, 1, 8, 8), BLIND, PLAIN, 1.0
            )
        ],
        2,
    )
    nothing = replace(row, gain=Interval(mean=0, low=-0.2, high=0.2, confidence=0.95, count=2))
    stuck, done = replace(nothing, unexplained=0.4), replace(nothing, unexplained=0.001)
    for rows in ([stuck], [stuck, replace(stuck, gain=None)]):
        assert judge(rows).startswith(
            "undecided, no search converged (the best guess leaves 40 % of an update"
        )
    for rows in ([nothing], [done], [stuck, done]):
        assert judge(rows).startswith("no image recovered")
    leak = replace(stuck, gain=Interval(mean=9, low=5, high=12, confidence=0.95, count=2))
    assert "updates leak" in judge([leak])  # what was recovered needs no converged search


def test_the_strongest_attack_is_that_of_the_largest_gain_unless_another_is_surely_better():
    row = Summary.of(
        [
            scored(
                "a", Guess(inputs=torch.rand(2, 1, 8, 8)), torch.rand(2, 1, 8, 8), BLIND, PLAIN, 1.0
            )
        ],
        2,
    )
    unsure = replace(
        row, mean_gain=1.0, gain=Interval(mean=1, low=-9, high=11, confidence=0.95, count=2)
    )
    one = replace(row, attack="b", batch=1, mean_gain=20.0, gain=None)
    sure = replace(
        row,
        attack="c",
        mean_gain=3.0,
        gain=Interval(mean=3, low=2, high=4, confidence=0.95, count=2),
    )
    assert "the strongest attack (b, batch of 1)" in judge([unsure, one])
    assert "the strongest attack (c, batch of 2)" in judge([unsure, one, sure])


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
