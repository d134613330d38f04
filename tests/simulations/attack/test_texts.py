"""``fedlsg attack`` on recorded runs of a tiny BERT: which tokens it gets, what it refuses, how it counts."""

import json
from pathlib import Path

import pytest
import torch

from fedlsg.attacks.observation import Guess, ThreatModel
from simulations.attack.findings import judge, summaries
from simulations.attack.observations import open_record
from simulations.attack.target import Options
from simulations.attack.texts import TEXTS, attack_texts, text_findings
from simulations.attack.texts_score import scored, summarise
from tests.simulations.support.made_texts import make_bert, write_sst2
from tests.simulations.support.own_scripts import without_scripts
from tests.simulations.support.runs import run_local

pytest.importorskip("transformers", reason="text models need the text extra")

CLIENT = ThreatModel()
QUIET = {"mechanism": "clip-only", "noise_multiplier": None}
CASES = {
    "dpsgd": {"method": "dpsgd", **QUIET},
    "rgp": {"method": "rgp", "rank": 3, **QUIET},
    "noisy": {"method": "rgp", "rank": 3, "noise_multiplier": 2.0},
    "frozen": {"method": "rgp", "rank": 3, "train_layers": 1, **QUIET},
}
BATCHES = (1, 2, 3)


def attentive(bert: Path) -> Path:
    """The same model with weights as large as trained ones: random attention is so flat that float32 hides tokens."""
    from safetensors.torch import load_file, save_file

    weights = load_file(bert / "model.safetensors")
    larger = {name: 12 * w if w.ndim == 2 and "embeddings" not in name else w for name, w in weights.items()}
    save_file(larger, bert / "model.safetensors", metadata={"format": "pt"})
    return bert


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Paths of recorded runs by case, each made once."""
    folder, made = tmp_path_factory.mktemp("texts"), {}
    bert = attentive(make_bert(folder / "bert", layers=2))
    write_sst2(folder / "data", train=60, validation=30)

    def of(case: str) -> str:
        if case not in made:
            settings = {"workload": "glue-sst2", "model": str(bert), "data_dir": str(folder / "data"), "max_length": 16}
            record = {"clients": 6, "rounds": 1, "sample_rate": None, "batch_size": 2, "record_updates": True}
            made[case] = str(run_local(folder / case, **settings, **record, **CASES[case]).path)
        return made[case]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLSG_CACHE", str(folder / "cache"))
        patch.delenv("FEDLSG_DATA", raising=False)
        yield of


def attacked(path: str, names: str = "span", threat: ThreatModel = CLIENT, batches: tuple[int, ...] = BATCHES):
    options = Options(batches=batches, examples=3, attacks=names, naive=False, seconds=0.5, seed=0)
    return attack_texts(open_record(path, threat), threat, options, lambda share, text: None)


@pytest.mark.parametrize("case", ["dpsgd", "rgp"])
def test_tokens_come_back_without_noise(case, recorded):
    found = attacked(recorded(case), "span,matching", batches=(1,))
    single = [
        r for t, results in zip(found.targets, found.results, strict=True) if len(t.truth.rows) == 1 for r in results
    ]
    assert {result.attack for result in single} == {"span", "matching"}
    assert all(result.recall == 1 and result.exact == 1 for result in single)
    assert {row.batch for row in summaries(found, summarise)} == {1}


def test_noise_leaves_nothing_to_be_read(recorded):
    found = attacked(recorded("noisy"))
    assert found.results == ((),) * len(found.targets)
    assert "noise hides every direction" in found.refused["span"]
    assert 0.01 < found.membership < 0.1
    assert judge(summaries(found, summarise), TEXTS).startswith("no attack applies")
    matched = attacked(recorded("noisy"), "matching", batches=(1,))
    assert summaries(matched, summarise)[0].mean_gain <= 0.35
    assert "bits" in text_findings(matched).facts["at most"]


def test_scores_by_hand():
    truth = torch.tensor([[2, 7, 8, 3], [2, 9, 3, 0]])
    ignored = frozenset((0, 2, 3))

    def nothing(count: int) -> list[int]:
        return []

    swapped = scored("x", Guess(inputs=truth.flip(0)), truth, lambda count: [7, 7, 5][:count], ignored, 1.0)
    assert (swapped.recall, swapped.exact) == (1.0, 2)  # a batch has no order
    assert swapped.blind == pytest.approx(1 / 3)
    assert torch.equal(swapped.tokens, truth)
    moved = scored("x", Guess(inputs=torch.tensor([[2, 8, 7, 3]])), truth[:1], nothing, ignored, 1.0)
    assert (moved.recall, moved.exact) == (1.0, 0)
    short = scored("x", Guess(inputs=truth[:1]), truth, nothing, ignored, 1.0)
    assert (short.recall, short.exact) == (pytest.approx(2 / 3), 1)
    many = Guess(inputs=torch.tensor([[4, 5, 6, 1], [4, 5, 6, 1]]))
    # Negative control: an attack that names more tokens is held against a blind guess that may do so too.
    assert scored("x", many, truth, lambda count: [7, 8, 9] * (count // 8), ignored, 1.0).blind == 1.0


def test_the_command_writes_numbers_and_one_page(fedlsg, recorded, tmp_path):
    out = tmp_path / "out"
    options = ("--batch", "1,2,3", "--images", "1", "--seconds", "0.5", "--out", str(out))
    status, said, error = fedlsg("attack", recorded("rgp"), recorded("noisy"), *options)
    assert status == 0, said + error
    assert "span does not apply: noise hides every direction" in said
    runs = json.loads((out / "attack.json").read_text())["runs"]
    assert [run["label"] for run in runs] == ["rgp, no noise", "rgp, sigma 2"]
    assert max(row["recall"] for row in runs[0]["summary"]) == 1.0
    update = runs[0]["updates"][0]
    assert update["tokens"][0][0] == "[CLS]"
    assert update["attacks"][0]["tokens"][0] == update["tokens"][0]
    page = without_scripts((out / "attack.html").read_text())
    for words in (
        "original",
        "blind",
        "What the adversary is granted",
        "epsilon",
        "Struck through",
        "public test texts",
    ):
        assert words in page
    assert "http" not in page
    assert "data:image" not in page
    assert 'class="wrong"' in page
    assert page.count('data-label="verdict">too few for a verdict<') == 2, "in short, not the whole sentence"


def test_wrong_attacks_are_one_line(fedlsg, recorded, tmp_path):
    status, _, error = fedlsg(
        "attack", recorded("rgp"), "--attacks", "spam", "--batch", "1,2,3", "--out", str(tmp_path)
    )
    assert status == 1
    assert "unknown attack 'spam'" in error
    assert "did you mean 'span'" in error
    assert Path(recorded("rgp")).is_dir()
