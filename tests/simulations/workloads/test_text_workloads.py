"""GLUE and hf-text from made shards and a tiny BERT: columns, labels, splits, the token cache, and
what goes wrong.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from fedlsg.simulations import workloads
from fedlsg.simulations.workloads import LoadedWorkload, Options
from tests.simulations.support.made_texts import make_bert, sentences, write_pairs, write_split

pytest.importorskip("transformers", reason="text models need the text extra")


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch):
    for variable in ("FEDLSG_DATA", "FEDLSG_CACHE"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_bert(tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def mirror(tmp_path) -> Path:
    root = tmp_path / "data"
    write_pairs(
        root,
        "mnli",
        ("premise", "hypothesis"),
        {"train": 30, "validation_matched": 9, "validation_mismatched": 6},
        3,
    )
    write_pairs(root, "qqp", ("question1", "question2"), {"train": 20, "validation": 8}, 2)
    return root


def load(
    name: str, root: Path, bert: Path, said: list[str] | None = None, **options: object
) -> LoadedWorkload:
    options.setdefault("model", str(bert))
    return workloads.load(
        name,
        data_dir=root,
        cache_dir=root.parent / "cache",
        options=Options(**options),
        progress=(said if said is not None else []).append,
    )


def test_pairs_are_tokenised_as_the_tokenizer_says(mirror, bert):
    """Oracle: transformers' own padding of the same pairs, to the padded length of the longest."""
    from transformers import AutoTokenizer

    workload = load("glue-qqp", mirror, bert)
    rows = torch.tensor([3, 0, 17])
    groups = workload.train.groups[rows]
    inputs, targets = workload.train.batch(rows)
    first, second = (
        np.array(sentences(20, seed), dtype=object)[rows.numpy()].tolist() for seed in (0, 1)
    )
    oracle = AutoTokenizer.from_pretrained(bert)(
        first,
        second,
        padding="max_length",
        max_length=int(workload.train.inputs.widths[groups.max()]),
        return_tensors="pt",
    )
    assert set(inputs) == {"input_ids", "attention_mask", "token_type_ids"} == set(oracle)
    for name, tensor in inputs.items():
        assert torch.equal(tensor, oracle[name]), name
    assert targets.tolist() == [1, 0, 1]


def replace_split(root: Path, **columns: object) -> None:
    defaults = {"question1": ["a"], "question2": ["b"], "label": [0]}
    write_split(root / "glue" / "qqp", "validation", {**defaults, **columns})


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"label": [-1]}, r"labels in 0..1 in validation, got -1..-1; -1 is a hidden label"),
        ({"label": [2]}, r"labels in 0..1 in validation, got 2..2$"),
        ({"label": [0.5]}, r"an integer in column label, row 0 of .*, got 0.5"),
        ({"label": [None]}, r"an integer in column label, row 0 of .*, got None"),
        ({"question2": [None]}, r"text in column question2, row 0 of .*, got None"),
        ({"question2": [7]}, r"text in column question2, row 0 of .*, got 7"),
        ({"question1": [], "question2": [], "label": []}, r"holds no rows"),
    ],
)
def test_rows_that_do_not_belong_are_named(mirror, bert, columns, message):
    replace_split(mirror, **columns)
    with pytest.raises(ValueError, match=message):
        load("glue-qqp", mirror, bert)
    assert not list((mirror.parent / "cache").glob("glue*"))


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """The tiny BERT has 32 positions."""
    monkeypatch.setattr("fedlsg.simulations.workloads.text_workload.MAX_LENGTH", 32)


def test_a_group_has_one_padded_length_and_is_padded_or_not_as_a_whole(mirror, bert):
    """What a text is padded to depends on the text alone, and encoders that skip a mask of ones
    skip it for all.
    """
    train = load("glue-qqp", mirror, bert, max_length=14).train
    rows = torch.arange(len(train))
    groups = train.apart(rows)
    assert sorted(torch.cat(groups).tolist()) == rows.tolist()
    assert len(groups) > 2
    for group in groups:
        shapes = {
            tuple(train.batch(rows[place : place + 1])[0]["input_ids"].shape) for place in group
        }
        padded = (train.batch(rows[group])[0]["attention_mask"] == 0).any(1)
        assert len(shapes) == 1
        assert padded.all() or not padded.any()
    # those that were cut
    assert not (train.batch(rows[groups[-1]])[0]["attention_mask"] == 0).any()
    # negative control: two groups, one length
    mixed = train.batch(rows[torch.cat(groups[-2:])])[0]["attention_mask"]
    assert 0 < int((mixed == 0).any(1).sum()) < len(mixed)
