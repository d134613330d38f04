"""``fedlsg attack`` on recorded runs of a tiny BERT: which tokens it gets, what it refuses, how it
counts.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks.before_after import check_alike
from fedlsg.simulations.attacks.findings import read_each, summaries
from fedlsg.simulations.attacks.observations import open_record
from fedlsg.simulations.attacks.target import Options, attack_each
from fedlsg.simulations.attacks.texts_attack import Texts
from fedlsg.simulations.attacks.texts_score import ScoredText, TextSummary
from tests.simulations.support.made_texts import make_bert, write_sst2
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
    """The same model with weights as large as trained ones: random attention is so flat that
    float32 hides tokens.
    """
    from safetensors.torch import load_file, save_file

    weights = load_file(bert / "model.safetensors")
    larger = {
        name: 12 * w if w.ndim == 2 and "embeddings" not in name else w
        for name, w in weights.items()
    }
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
            settings = {
                "workload": "glue-sst2",
                "model": str(bert),
                "data_dir": str(folder / "data"),
                "max_length": 16,
            }
            record = {
                "clients": 6,
                "rounds": 1,
                "sample_rate": None,
                "batch_size": 2,
                "record_updates": True,
            }
            made[case] = str(run_local(folder / case, **settings, **record, **CASES[case]).path)
        return made[case]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLSG_CACHE", str(folder / "cache"))
        patch.delenv("FEDLSG_DATA", raising=False)
        yield of


def attacked(
    path: str, names: str = "span", threat: ThreatModel = CLIENT, batches: tuple[int, ...] = BATCHES
):
    options = Options(batches=batches, examples=3, attacks=names, naive=False, seconds=0.5, seed=0)
    record = open_record(path, threat)
    return attack_each(Texts(record), record, threat, options, lambda share, text: None)


def test_an_interval_of_shares_ends_at_all_and_at_nothing():
    common: dict[str, Any] = {
        "attack": "span",
        "objective": None,
        "note": "",
        "seconds": 0.1,
        "tokens": torch.zeros(1, 4, dtype=torch.int64),
    }
    right, wrong = (
        ScoredText(recall=recall, blind=1 - recall, exact=0, **common) for recall in (1.0, 0.0)
    )
    assert TextSummary.of([right, wrong], 1).gain is None  # of few
    gain = TextSummary.of([right, wrong, right, wrong, right], 1).gain
    assert gain is not None
    assert (gain.low, gain.high) == (-1.0, 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dpsgd", "rgp"])
def test_tokens_come_back_without_noise(case, recorded):
    found = attacked(recorded(case), "span,matching", batches=(1,))
    single = [
        r
        for t, results in zip(found.targets, found.results, strict=True)
        if len(t.truth.rows) == 1
        for r in results
    ]
    assert {result.attack for result in single} == {"span", "matching"}
    assert all(result.recall == 1 and result.exact == 1 for result in single)
    assert {row.batch for row in summaries(found)} == {1}
    assert {one.verdict for result in single for one in result.recognitions} == {"recovered"}


@pytest.mark.slow
def test_a_text_is_read_without_and_with_noise_under_one_original(recorded):
    """Two runs that differ in the noise alone; a noisy reading is not word for word."""
    paths = {"without noise": recorded("rgp"), "with noise": recorded("noisy")}
    before, after = (open_record(path, CLIENT) for path in paths.values())
    check_alike(before, after, {"mechanism": "clip-only"})
    sides = {name: attacked(path, "span,matching", batches=(1,)) for name, path in paths.items()}
    read = {name: read_each(side) for name, side in sides.items()}
    verdicts = {name: {one.verdict for each in of for one in each} for name, of in read.items()}
    assert verdicts["without noise"] == {"recovered"}
    assert "recovered" not in verdicts["with noise"]
    lines = Texts(after).compared(sides["with noise"], read).lines[:4]
    assert [line.name.partition(":")[0] for line in lines] == ["original", "blind guess", *paths]
    assert lines[2].name == "without noise: this is the person's sentence"
    original, _, quiet, noisy = ([token for token, _ in line.tokens] for line in lines)
    assert quiet == original != noisy
