"""``fedlsg attack`` on recorded runs of digits: what it gets, what it grants, what it refuses."""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlsg.attacks.inversion.linear import input_of_linear
from fedlsg.attacks.inversion.prior import Prior
from fedlsg.attacks.metrics import Interval
from fedlsg.attacks.observation import Guess, Knowledge, ThreatModel
from simulations.attack.curves import caption, curves, sigma_lines, sparsity_lines
from simulations.attack.images.attack import IMAGE_ATTACKS, attack_images, attacks_named, image_prior, strongest
from simulations.attack.images.page import COLUMNS
from simulations.attack.images.score import EXACT_DB, scored, summarise, verdict
from simulations.attack.recorded.observations import open_record
from simulations.attack.recorded.report import attacks_in_order, privacy_facts, style_of, summaries
from simulations.attack.recorded.rows import Best, shown_name
from simulations.attack.recorded.target import Options, batch_sizes, chosen_places, membership_of, truth_of
from simulations.attack.recording import variants
from simulations.report.table import make_table
from simulations.rundir.files import sealed
from simulations.rundir.rundir import RunDir
from tests.fedlsg.support.observed import digits, mlp, observe
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import run_local

CLIENT, SUM = ThreatModel(), ThreatModel(view="aggregate")
RECORDING = {"clients": 3, "rounds": 2, "sample_rate": None, "batch_size": 2, "record_updates": True}
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
            made[case] = str(run_local(folder / case.replace(" ", "-"), **{**RECORDING, **CASES[case]}).path)
        return made[case]

    return of


@pytest.fixture
def copied(recorded, tmp_path):
    """A copy of a recorded run that a test may damage."""
    return lambda case: shutil.copytree(recorded(case), tmp_path / "run")


def nowhere(share: float, text: str) -> None:
    """A progress that nobody watches."""


def attacked(path: str, threat: ThreatModel = CLIENT, **options):
    chosen = {"batches": (1,), "examples": 2, "attacks": None, "naive": False, "seconds": 0.5, "seed": 0}
    return attack_images(open_record(path, threat), threat, Options(**{**chosen, **options}), nowhere)


@pytest.mark.parametrize("case", CASES)
def test_frames_are_derived_anew_for_every_round(case, recorded):
    """Every payload names its frame's digest, so that reading them all says that all frames are right."""
    threat = SUM if case == "sum" else CLIENT
    record = open_record(recorded(case), threat)
    assert sorted(record.payloads) == [1, 2]
    for round in record.payloads:
        seen = record.pick(round, threat)
        assert len(seen) == (1 if threat.view == "aggregate" else 3)
        assert all(bool(one.values.isfinite().all()) for one in seen)


def test_the_sum_has_the_noise_of_all(recorded):
    record = open_record(recorded("noisy lsg"), CLIENT)
    each, whole = record.pick(1, CLIENT), record.pick(1, SUM)[0]
    torch.testing.assert_close(whole.values, sum(one.values.double() for one in each).float())
    assert whole.noise_std == pytest.approx(math.sqrt(3) * each[0].noise_std)
    assert each[0].noise_std == pytest.approx(2.0 * record.base.method.mechanism.clip_norm)
    assert whole.clients == (0, 1, 2)


@pytest.mark.parametrize("case", ["dpsgd", "rgp"])
def test_a_first_layer_without_noise_gives_its_input_back(case, recorded):
    """From the recorded float32 payload, with batch of one; labels and truth are not looked at."""
    found = attacked(recorded(case), attacks="first-layer", batches=(1, 2, 3))
    single = [results[0] for t, results in zip(found.targets, found.results, strict=True) if len(t.truth.rows) == 1]
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
                    guess = attack.run(seen, Knowledge(), prior, torch.Generator().manual_seed(0), 0.1, lambda *a: None)
                    assert guess.inputs.shape[1:] == prior.shape
    with pytest.raises(ValueError, match=r"updates-truth.*is missing: without the batches"):
        attacked(str(path))


def test_what_is_granted_has_no_order(recorded):
    record = open_record(recorded("noisy lsg"), SUM)
    seen = record.pick(1, SUM)[0]
    truth = truth_of(record, seen)
    granted = truth.grant(ThreatModel(view="aggregate"))
    assert granted.labels.tolist() == sorted(truth.labels.tolist())
    assert truth.grant(ThreatModel(labels="unknown")).labels is None
    unknown = truth.grant(ThreatModel(labels="unknown", examples="unknown"))
    assert (unknown.labels, unknown.examples) == (None, None)
    assert sum(batch_sizes(record)[1].values()) == len(truth.rows)


def test_noise_leaves_the_blind_guess(recorded):
    """The most probable batch under this much noise is about the prior's own; nothing is claimed over it."""
    found = attacked(recorded("noisy lsg"), batches=(1, 2, 3), examples=3)
    rows = {row.attack: row for row in summaries(found, summarise)}
    assert abs(rows["map"].mean_gain) < 3
    assert 0.01 < found.membership < 0.1
    assert "first-layer" not in rows
    words = verdict([row for row in summaries(found, summarise) if row.attack == "map"])
    assert "LEAK" not in words


def test_membership_of_a_sum_is_weaker(recorded):
    record = open_record(recorded("noisy lsg"), CLIENT)
    assert membership_of(record.pick(1, SUM)[0]) < membership_of(record.pick(1, CLIENT)[0])
    assert membership_of(open_record(recorded("two steps"), CLIENT).pick(1, CLIENT)[0]) is None


PLAIN = Prior(shape=(1, 8, 8), low=0.0, high=1.0)
BLIND = torch.full((2, 1, 8, 8), 0.5, dtype=torch.float64)


def test_scores_by_hand():
    truth = torch.zeros(2, 1, 8, 8)
    truth[1] = 1.0
    blind = torch.full_like(truth, 0.5)
    swapped = Guess(inputs=truth.flip(0).clone())
    result = scored("x", swapped, truth, blind, PLAIN, 1.0)
    assert result.psnr == (EXACT_DB, EXACT_DB)  # a batch has no order
    assert result.blind == pytest.approx((10 * math.log10(4),) * 2)
    assert torch.equal(result.images, truth.double())
    unknown = truth.clone()
    unknown[:, :, :, :4] = math.nan
    half = scored("x", Guess(inputs=unknown), truth, blind, PLAIN, 1.0)
    assert half.psnr == pytest.approx((10 * math.log10(8),) * 2)  # half of the pixels are the blind guess
    assert bool(half.images[..., :4].isnan().all())
    one = scored("x", Guess(inputs=truth[:1]), truth, blind, PLAIN, 1.0)
    assert one.psnr == pytest.approx((EXACT_DB, 10 * math.log10(4)))  # what is not guessed is the blind image
    assert summarise([half, result], 2).psnr == pytest.approx((EXACT_DB + 10 * math.log10(8)) / 2)


def test_the_blind_guess_is_paired_as_the_others_are():
    """Negative control: with labels in another order than the truth, an unpaired baseline would look worse."""
    truth = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
    result = scored("x", Guess(inputs=truth), truth, truth.flip(0).double(), PLAIN, 1.0)
    assert result.blind == (EXACT_DB, EXACT_DB)


def test_verdicts():
    truth = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    blind = torch.full_like(truth, 0.5).double()
    exact, nothing = (
        scored(name, Guess(inputs=x), truth, blind, PLAIN, 1.0) for name, x in (("a", truth), ("b", blind))
    )
    assert verdict([summarise([exact], 4)]).startswith("THESE UPDATES LEAK IMAGES")
    assert verdict([summarise([nothing], 4)]).startswith("no image recovered better")
    assert verdict([]).startswith("no attack applies")
    assert "too few" in verdict([replace(summarise([exact], 1), gain=None)])


def test_the_verdict_goes_by_what_is_sure():
    """A wide interval is neither a leak nor safety, and the row of the largest mean is not always the surest one."""
    row = summarise([scored("a", Guess(inputs=torch.rand(2, 1, 8, 8)), torch.rand(2, 1, 8, 8), BLIND, PLAIN, 1.0)], 2)

    def of(attack: str, psnr: float, low: float, high: float):
        return replace(
            row, attack=attack, psnr=psnr, gain=Interval(mean=psnr, low=low, high=high, confidence=0.95, count=2)
        )

    assert "LEAK IMAGES: the strongest attack (dlg" in verdict([of("map", 5, -1, 11), of("dlg", 4, 3, 5)])
    assert "LEAK" in verdict([of("map", 40, 30, 50), replace(of("dlg", 100, 0, 0), gain=None)])
    assert verdict([of("map", 13, -8, 36)]).startswith("undecided, too few images")
    assert verdict([of("map", -1, -2, 0.5)]).startswith("no image recovered")


def test_a_search_that_did_not_converge_is_no_evidence():
    """It is said so, whatever the interval, unless another search explains what was received."""
    row = summarise([scored("a", Guess(inputs=torch.rand(2, 1, 8, 8)), torch.rand(2, 1, 8, 8), BLIND, PLAIN, 1.0)], 2)
    nothing = replace(row, gain=Interval(mean=0, low=-0.2, high=0.2, confidence=0.95, count=2))
    stuck, done = replace(nothing, unexplained=0.4), replace(nothing, unexplained=0.001)
    for rows in ([stuck], [stuck, replace(stuck, gain=None)]):
        assert verdict(rows).startswith("undecided, no search converged (the best guess leaves 40 % of an update")
    for rows in ([nothing], [done], [stuck, done]):
        assert verdict(rows).startswith("no image recovered")
    leak = replace(stuck, gain=Interval(mean=9, low=5, high=12, confidence=0.95, count=2))
    assert "LEAK" in verdict([leak])  # what was recovered needs no converged search


def test_a_search_says_what_it_leaves_unexplained(recorded):
    found = attacked(recorded("dpsgd"), attacks="first-layer,dlg,dlg-naive", examples=1, seconds=10.0).results[0]
    assert [one.unexplained is None for one in found] == [True, False, True]
    assert found[1].unexplained < 0.01


def test_more_guesses_than_examples_are_not_chosen_by_the_truth():
    """Negative control: with the nearest of ten random guesses, chance alone would look like a gain."""
    generator = torch.Generator().manual_seed(0)
    gains = []
    for _ in range(200):
        images = torch.rand(11, 1, 8, 8, generator=generator)
        blind = torch.rand(1, 1, 8, 8, generator=generator).double()
        gains += scored("x", Guess(inputs=images[1:]), images[:1], blind, PLAIN, 1.0).gains
    assert abs(sum(gains) / len(gains)) < 0.15


def test_unknown_pixels_are_those_of_the_guess_own_class():
    prior = Prior(shape=(1, 8, 8), mean=torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)]))
    nothing = torch.full((2, 1, 8, 8), math.nan)
    truth = prior.expected(2, torch.tensor([0, 1])).float()
    found = scored("x", Guess(inputs=nothing, labels=torch.tensor([1, 0])), truth, truth.double(), prior, 1.0)
    assert found.psnr == (EXACT_DB, EXACT_DB)


def test_batches_of_other_data_are_noticed(copied):
    path = copied("dpsgd")
    file = next((path / "updates-truth").rglob("client-000001.npy"))
    other = open_record(str(path), CLIENT).base.parts[0][:2].numpy()
    for rows in (other, other.astype(float), np.array([-1]), np.array([10**6])):
        sealed.save_array(file, rows)
        with pytest.raises(ValueError, match="names rows that client 1 does not hold"):
            attacked(str(path), attacks="first-layer")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--compare", "lsg,nope"], "nope"),
        (["--compare", "lsg,lsg"], "names a method twice"),
        (["--compare", "lsg", "-c", "epsilon=8"], "equal sigma: give noise_multiplier"),
        (["--compare", "dpsgd,sgd"], "sgd adds no noise: leave it out, or compare all methods without noise"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_recorded(fedlsg, options, why, tmp_path):
    status, _, error = fedlsg("attack", *options, "--out", str(tmp_path / "out"))
    assert status == 1
    assert why in " ".join(error.split())
    assert not (tmp_path / "out").exists()


def test_reproducible_runs_are_not_called_private(tmp_path):
    path = run_local(tmp_path, **{**RECORDING, "noise_multiplier": 2.0, "reproducible": True}).path
    record = open_record(str(path), CLIENT)
    seen = record.observation(1, 0)
    assert "NOT PRIVATE: the noise is reproducible" in " ".join(privacy_facts(record, seen, None).values())
    (path / "summary.json").write_text("[1]")
    assert "unknown (the run has no summary" in " ".join(privacy_facts(record, seen, None).values())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda p: (p / "updates/round-000002/client-000001.bin").write_bytes(b"junk"), r"client-000001\.bin: "),
        (lambda p: _cut(p / "updates/round-000002/client-000001.bin"), r"client-000001\.bin: .*record is damaged"),
        (lambda p: _shift(p / "updates/round-000002/weights.npy"), r"record is damaged, or other weights"),
        (lambda p: (p / "updates/round-000002/weights.npy").write_bytes(b"x"), r"cannot read the weights of round 2"),
        (lambda p: _flip(p / "updates/round-000002/weights.npy"), r"it is not what weights\.npy\.sha256 says"),
        (
            lambda p: (p / "updates/round-000002/weights.npy.sha256").unlink(),
            r"it is not what weights\.npy\.sha256 says",
        ),
        (lambda p: (p / "updates/round-000002/weights.npy").unlink(), r"cannot read the weights of round 2"),
        (lambda p: (p / "ledger/run.jsonl").unlink(), r"holds no entry of round 2"),
    ],
)
def test_a_damaged_record_is_noticed(damage, message, copied):
    path = copied("noisy lsg")
    damage(path)
    record = open_record(str(path), CLIENT)
    with pytest.raises(ValueError, match=message):
        record.pick(2, CLIENT)


def _flip(path) -> None:
    content = bytearray(path.read_bytes())
    content[-100] ^= 64
    path.write_bytes(content)


def _cut(path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _shift(path) -> None:
    """Other weights, rightly stored: the payload's own digest tells."""
    sealed.save_array(path, np.load(path) * 1.5)


def test_what_cannot_be_attacked_is_said(recorded, tmp_path, copied):
    plain = run_local(tmp_path / "plain").path
    with pytest.raises(ValueError, match=r"holds no recorded updates; record one with"):
        open_record(str(plain), CLIENT)
    with pytest.raises(ValueError, match=r"nobody is assumed to see a single payload"):
        open_record(recorded("sum"), CLIENT)
    with pytest.raises(ValueError, match=r"no recorded update holds 500 examples, there are updates of"):
        attacked(recorded("noisy lsg"), batches=(500,))
    with pytest.raises(ValueError, match=r"no recorded sum holds 500 examples, there are sums of .* among them$"):
        attacked(recorded("sum"), threat=ThreatModel(view="aggregate"), batches=(500,))
    with pytest.raises(ValueError, match=r"choose examples='known'"):
        ThreatModel(labels="known", examples="unknown")
    with pytest.raises(ValueError, match=r"unknown attack 'dgl'.*did you mean 'dlg'"):
        attacks_named("map,dgl")
    with pytest.raises(ValueError, match=r"'group' was removed; commit 293cb648.* choose 'smooth-relu'"):
        attacks_named("map, group-naive")
    assert set(IMAGE_ATTACKS) >= {
        "smooth-relu",
        "first-layer",
        "relu-batch",
        "dlg",
        "inverting-gradients",
        "map",
        "dlg-naive",
    }


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
    assert page.count("data:image/png;base64,") > 2 * 3, "originals, blind guesses, and what was recovered"
    assert "http://" not in page
    assert "https://" not in page
    for words in ("What the adversary is granted", "blind", "epsilon", "An attack that fails proves nothing"):
        assert words in page


@pytest.mark.slow
def test_compare_records_and_attacks(fedlsg, tmp_path):
    out = tmp_path / "out"
    options = ("--compare", "dpsgd,rgp", "-c", "rounds=2", "-c", "clients=6", "--attacks", "map", "--seconds", "0.1")
    status, said, error = fedlsg("attack", *options, "--batch", "1,2,3", "--images", "1", "--out", str(out))
    assert status == 0, said + error
    runs = json.loads((out / "attack.json").read_text())["runs"]
    assert [run["label"] for run in runs] == ["dpsgd", "rgp"]
    assert all(run["facts"]["sigma"] == "1 per payload" for run in runs)
    assert (out / "rgp" / "updates").is_dir()


def test_wrong_options_are_one_line(fedlsg, recorded):
    for options, part in (
        ((), "give either run directories, or --compare"),
        ((recorded("dpsgd"), "--compare", "rs"), "give either run directories, or --compare"),
        ((recorded("dpsgd"), "-c", "rank=3"), "a run has its settings; leave out rank"),
        (("--compare", "rs", "--record"), "--compare records runs of its own"),
        ((recorded("dpsgd"), "--sigmas", "1,2"), "--sparsities and --sigmas are of runs that --compare records"),
        ((recorded("dpsgd"), "--view", "both"), "expected view in"),
        ((recorded("dpsgd"), "--batch", "x"), "expected --batch as numbers"),
        ((recorded("dpsgd"), "--images", "0"), "--images 0 >= 1"),
    ):
        status, _, error = fedlsg("attack", *options)
        assert status == 1
        assert part in error
        assert "Traceback" not in error


def test_the_smallest_recorded_batches_are_chosen():
    """By hand: updates of 3, 1, none, 2 and 1 examples."""
    sizes = {(1, 0): 3, (1, 1): 1, (2, 0): 0, (2, 1): 2, (3, 0): 1}

    def of(batches: tuple[int, ...] | None, examples: int) -> list[tuple[int, int]]:
        return chosen_places(sizes, Options(batches=batches, examples=examples, attacks=None, naive=False,
                                            seconds=None, seed=0))  # fmt: skip

    assert of(None, 1) == [(1, 1)]
    assert of(None, 3) == [(1, 1), (3, 0), (2, 1)]
    assert of(None, 100) == [(1, 1), (3, 0), (2, 1), (1, 0)]
    assert of((3, 2), 3) == [(1, 0), (2, 1)]
    assert of((1,), 1) == [(1, 1)]
    assert of((9,), 1) == []


def test_default_seconds_end_in_two_minutes_on_small_images():
    options = Options(batches=None, examples=8, attacks=None, naive=False, seconds=None, seed=0)
    assert options.budget(16, small=True).seconds * 16 <= 90
    assert options.budget(1, small=True).seconds == options.budget(99, small=False).seconds == 20
    assert replace(options, seconds=3.0).budget(99, small=True).seconds == 3.0


def test_a_run_without_small_batches_is_recorded_again(fedlsg, tmp_path):
    """The short run has the run's method and sigma, and batches that can be attacked; a second call reuses it."""
    run = run_local(tmp_path / "run", method="rgp", rank=3, noise_multiplier=2.0, rounds=2, reproducible=True)
    status, _, error = fedlsg("attack", str(run.path))
    assert status == 1
    assert "holds no recorded updates" in error
    assert "add --record" in error
    options = ("--record", "--images", "2", "--attacks", "map", "--seconds", "0.05")
    status, said, error = fedlsg("attack", str(run.path), *options)
    assert status == 0, said + error
    assert "recording 4 rounds of rgp" in said
    numbers = json.loads((run.path / "attack.json").read_text())["runs"][0]
    assert [row["batch"] for row in numbers["summary"]] == [1]
    short = RunDir.open(str(run.path / "recorded")).read_config()
    assert (short.method, short.parameters["rank"], short.noise_multiplier) == ("rgp", 3, 2.0)
    status, said, _ = fedlsg("attack", str(run.path), *options)
    assert status == 0
    assert "recording" not in said
    status, _, error = fedlsg("attack", str(run.path), *options, "-c", "rank=2")
    assert status == 1
    assert "was recorded with rank=3, not 2" in " ".join(error.split())


def best(method: str, p: float | None, sigma: float, gain: float) -> Best:
    """A point of the curves."""
    return Best(method=method, sparsity=p, sigma=sigma, attack="map", unit="dB", gain=gain, low=gain - 1, high=gain + 1)


def test_curves_are_over_what_differs():
    """Lines by hand: over p at each sigma, over sigma at each p; a point that differs in nothing is in no line."""
    points = [best("lsg", p, sigma, 10 * p) for p in (0.0, 0.5) for sigma in (0.0, 1.0)]
    assert {name: len(some) for (_, name), some in sparsity_lines(points).items()} == {
        "lsg, no noise": 2, "lsg, sigma 1": 2
    }  # fmt: skip
    assert {name for _, name in sigma_lines([*points, best("dpsgd", None, 1.0, 3)])} == {"lsg, p 0", "lsg, p 0.5"}
    assert {name for _, name in sigma_lines([best("dpsgd", None, s, 3) for s in (0.1, 1.0)])} == {"dpsgd"}
    assert curves(points[:1]) == ()
    assert curves([best("lsg", 0.5, 1.0, 3), best("rgp", 0.0, 1.0, 4)]) == ()
    charts = curves([*points, best("lsg", 0.9, 0.0, 160)])
    assert [chart.x.label for chart in charts] == ["sparsity p", "sigma: noise over clip norm"]
    assert max(max(one.y) for chart in charts for one in chart.series) == 40.0
    assert "drawn at 40 dB" in caption([best("lsg", 0.9, 0.0, 160)])
    assert "drawn at 40 dB" not in caption(points)


def test_rows_have_the_order_of_the_figure_with_naive_forms_after_their_own():
    """The naive form of a weaker attack that happens to gain most does not move up."""
    truth = torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))

    def of(attack: str, psnr: float):
        one = scored(attack, Guess(inputs=truth), truth, BLIND, PLAIN, 1.0)
        return replace(one, psnr=(psnr, psnr), blind=(10.0, 10.0))

    target = SimpleNamespace(truth=SimpleNamespace(rows=[0, 1]))
    one = SimpleNamespace(
        targets=[target], results=[[of("dlg", 11), of("map", 20), of("dlg-naive", 30), of("map-naive", 5)]]
    )
    rows = summaries(one, summarise)
    assert attacks_in_order(rows) == ["map", "map-naive", "dlg", "dlg-naive"]
    table = make_table(COLUMNS, rows, style=style_of)
    assert [row.cells[:2] for row in table.rows][1] == ("map", "naive")
    assert [row.style for row in table.rows] == ["", "dim", "", "dim"]
    assert shown_name("dlg-naive") == "naive dlg"


def test_a_run_is_recorded_for_each_sparsity_and_sigma():
    """Sigma 0 is a run that only clips; dpsgd has no sparsity."""
    assert dict(variants("lsg", (0.0, 0.5), (0.0, 2.0))) == {
        "lsg-p0-sigma0": {"method": "lsg", "sparsity": 0.0, "mechanism": "clip-only"},
        "lsg-p0-sigma2": {"method": "lsg", "sparsity": 0.0, "noise_multiplier": 2.0},
        "lsg-p0.5-sigma0": {"method": "lsg", "sparsity": 0.5, "mechanism": "clip-only"},
        "lsg-p0.5-sigma2": {"method": "lsg", "sparsity": 0.5, "noise_multiplier": 2.0},
    }
    assert dict(variants("dpsgd", (0.0, 0.5), None)) == {"dpsgd": {"method": "dpsgd"}}


@pytest.mark.slow
def test_a_sparsity_curve_is_recorded_and_drawn(fedlsg, tmp_path):
    out = tmp_path / "out"
    axes = ("--compare", "lsg", "--sparsities", "0,0.5", "--sigmas", "2")
    small = ("-c", "rounds=1", "-c", "clients=6", "--images", "1", "--attacks", "map", "--seconds", "0.05")
    small += ("-c", "reproducible=true")
    status, said, error = fedlsg("attack", *axes, *small, "--out", str(out))
    assert status == 0, said + error
    labels = [run["label"] for run in json.loads((out / "attack.json").read_text())["runs"]]
    assert labels == ["lsg, p 0", "lsg, p 0.5"]
    assert "All runs" in said
    assert (out / "attack-curves.png").read_bytes().startswith(b"\x89PNG")
    assert "Over sparsity and noise" in (out / "attack.html").read_text()


def test_damaged_kept_positions_are_noticed(copied):
    path = copied("ranked rs")
    (path / "updates/round-000002/kept.npy").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"kept\.npy: cannot read the kept positions"):
        open_record(str(path), CLIENT).pick(2, CLIENT)


def test_the_classifier_gives_labels_and_features_away(recorded):
    """Without noise all of them; sigma 2 leaves the features at chance."""
    leak = attacked(recorded("rgp"), examples=4, seconds=0.01).leak
    assert leak is not None
    assert leak.labels == leak.examples > 0
    assert leak.features == pytest.approx(1.0, abs=1e-5)
    assert leak.cosine_of_expected < 0.99
    noisy = attacked(recorded("noisy lsg"), examples=4, seconds=0.01).leak
    assert noisy is not None
    assert noisy.features < 0.9


def test_a_first_layer_without_a_bias_is_scaled_by_the_rest_of_the_model():
    inputs, labels = digits(1)
    seen = observe("rgp", mlp(bias=False), 0.3 * inputs, labels)
    guess = IMAGE_ATTACKS["first-layer"].run(
        seen, Knowledge(examples=1), Prior(shape=(1, 8, 8)), torch.Generator(), 1.0, lambda *_: None
    )
    torch.testing.assert_close(guess.inputs, 0.3 * inputs, rtol=1e-6, atol=1e-7)
