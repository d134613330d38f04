"""Carriers and masks of probes do not move when private examples do: by every source, at the start
and later.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedlsg import strategies
from fedlsg.carriers.probe import refresh_of
from fedlsg.privacy import Entry, RunLedger
from fedlsg.simulations import workloads
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.base.run_base import Base
from fedlsg.simulations.settings.settings import from_mapping
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.workloads.base import LoadedWorkload
from fedlsg.simulations.workloads.base.split import Split
from fedlsg.state.server_state import ServerState, load_weights
from tests.simulations.support.made_texts import make_bert, sentences, write_split, write_sst2
from tests.simulations.support.runs import SMALL, Run, run_local

PROBE: dict[str, Any] = {"probes": 16, "refresh_rounds": 3}
METHODS = {
    "probe": {"method": "probe", "sparsity": 0.4},
    "lsg-probe": {"method": "lsg-probe", "importance": "energy"},
    "rgp-probe": {"method": "rgp-probe"},
    "dp-kfc": {"method": "dp-kfc"},
    "gep": {"method": "gep", "rank": 8},
}
SOURCES = ("auto", "leaves", "pink", "function", "data")
"""On images; ``tokens`` has a test of its own."""
LATER = 7
"""A refresh."""


class Forbidden:
    """Stored rows that nobody may look at."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, rows: object) -> Any:
        raise AssertionError("a private example was read")


def other(split: Split, seed: int) -> Split:
    """The same number of examples, all of them others."""
    rng = np.random.default_rng(seed)
    inputs = rng.integers(0, 17, split.inputs[np.arange(len(split))].shape).astype(
        split.inputs[np.arange(1)].dtype
    )
    return replace(split, inputs=inputs, labels=torch.from_numpy(rng.integers(0, 10, len(split))))


@pytest.fixture(scope="module")
def digits() -> LoadedWorkload:
    return workloads.load("digits")


@pytest.fixture
def sources(tmp_path: Path, own_code: None) -> dict[str, str]:
    """Names of sources as a setting has them."""
    (tmp_path / "mine.py").write_text(
        "import torch\ndef draw(count, generator): return torch.randn(count, 1, 8, 8, "
        "generator=generator)\n"
    )
    torch.save(
        torch.randint(17, (30, 1, 8, 8), generator=torch.Generator().manual_seed(9)).byte(),
        tmp_path / "r.pt",
    )
    return {"function": f"{tmp_path}/mine.py:draw", "data": f"data:{tmp_path}/r.pt"}


def base_of(workload: LoadedWorkload, method: str, source: str) -> Base:
    return prepare(
        from_mapping({**SMALL, **PROBE, **METHODS[method], "source": source}), loaded=workload
    )


def frames(base: Base) -> list[bytes]:
    """Digests of the first frame, and of one at a later refresh at given weights, and of one after
    that.
    """
    state = base.initial.server()
    found = [state.frame(1).digest]
    generator = torch.Generator().manual_seed(1)
    load_weights(
        state.model, state.weights + 0.1 * torch.randn(state.weights.shape, generator=generator)
    )
    state.updates = LATER - 1
    return [*found, state.frame(LATER).digest, state.frame(LATER + 1).digest]


@pytest.mark.thinned(6)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("method", METHODS)
def test_frames_are_equal_for_all_private_data(method, source, digits, sources):
    spec = sources.get(source, source)
    mine = frames(base_of(digits, method, spec))
    for seed in range(2):
        assert (
            frames(base_of(replace(digits, train=other(digits.train, seed)), method, spec)) == mine
        )
    assert mine[0] != mine[1] == mine[2]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("method", METHODS)
def test_frames_of_texts_are_equal_for_all_private_texts(method, tmp_path):
    """By bags of words of a public vocabulary, whose lengths do not follow the private texts."""
    pytest.importorskip("transformers", reason="text models need the text extra")
    bert = make_bert(tmp_path / "bert", layers=1)

    def frames_of(name: str, texts: list[str]) -> list[bytes]:
        folder = write_sst2(tmp_path / name, train=len(texts), validation=10)
        write_split(
            folder, "train", {"sentence": texts, "label": [row % 2 for row in range(len(texts))]}
        )
        given = {
            "workload": "glue-sst2",
            "model": str(bert),
            "data_dir": str(tmp_path / name),
            "max_length": 16,
        }
        rank = {} if method == "dp-kfc" else {"rank": 4}
        return frames(
            prepare(
                from_mapping(
                    {**SMALL, **given, **PROBE, **rank, **METHODS[method], "source": "tokens"}
                )
            )
        )

    mine = frames_of("mine", sentences(40, seed=0))
    assert frames_of("long", ["very " * 12 + "dull"] * 40) == mine
    assert mine[0] != mine[1] == mine[2]


@pytest.mark.parametrize("method", METHODS)
def test_carriers_of_private_rows_are_noticed(method, digits):
    """Negative control of the test above: probes, and by them an energy mask, that are private
    examples.
    """

    def frames_of(train: Split) -> list[bytes]:
        def draw(count: int, generator: torch.Generator) -> torch.Tensor:
            return train.batch(torch.arange(count))[0]

        return frames(
            base_of(replace(digits, train=train, synthetic={"leaves": draw}), method, "leaves")
        )

    assert frames_of(digits.train) != frames_of(other(digits.train, 0))


@pytest.mark.thinned(12)
@pytest.mark.parametrize("source", [source for source in SOURCES if source != "data"])
@pytest.mark.parametrize("method", METHODS)
def test_no_private_row_is_looked_at(method, source, digits, sources):
    """(Public data are compared with the private rows once, before the run, so that these are
    refused.)
    """
    spec = sources.get(source, source)
    hidden = replace(digits, train=replace(digits.train, inputs=Forbidden(len(digits.train))))
    assert frames(base_of(hidden, method, spec)) == frames(base_of(digits, method, spec))


def test_a_source_that_reads_private_rows_is_noticed(digits):
    """Negative control of the test above."""
    hidden = replace(digits, train=replace(digits.train, inputs=Forbidden(len(digits.train))))

    def draw(count: int, generator: torch.Generator) -> torch.Tensor:
        return torch.as_tensor(hidden.train.inputs[torch.arange(count)])

    base = base_of(replace(hidden, synthetic={"leaves": draw}), "probe", "leaves")
    with pytest.raises(AssertionError, match="a private example was read"):
        base.initial.server().frame(1)


def test_a_refresh_is_charged_as_every_round(tmp_path, monkeypatch):
    settings: dict[str, Any] = {**PROBE, "method": "probe", "rounds": 4, "evaluate_every": 9}
    run = run_local(tmp_path / "shipped", **settings)
    assert [[entry.round for entry in run.entries(client)] for client in (0, 1)] == [
        [1, 2, 3, 4]
    ] * 2
    carrier = strategies.recipe("probe", **PROBE).carrier
    shipped = RunLedger.charge

    def not_at_the_second_refresh(self: RunLedger, entries: Sequence[Entry]) -> None:
        shipped(
            self, [e for e in entries if e.round == 1 or refresh_of(e.round, carrier) != e.round]
        )

    monkeypatch.setattr(RunLedger, "charge", not_at_the_second_refresh)
    with pytest.raises(RuntimeError, match=r"replied in round 4, and its ledger .* has no entry"):
        run_local(tmp_path / "planted", **settings)


def bases(run: Run) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() for path in sorted(RunDir(run.path).steps.glob("basis-*.bin"))
    }


@pytest.mark.slow
def test_runs_on_other_data_probe_the_same_from_equal_weights(tmp_path, monkeypatch):
    """The first refresh in any case; later ones where both servers leave the weights as they
    are.
    """
    load = workloads.load

    def loaded(*args: Any, **given: Any) -> LoadedWorkload:
        workload = load(*args, **given)
        return replace(workload, train=other(workload.train, 5))

    def run(name: str, *, changed: bool, still: bool) -> Run:
        with monkeypatch.context() as patch:
            if changed:
                patch.setattr(workloads, "load", loaded)
            if still:
                patch.setattr(
                    ServerState,
                    "step",
                    lambda self, *args, **given: setattr(self, "updates", self.updates + 1),
                )
            return run_local(
                tmp_path / name,
                **PROBE,
                method="probe",
                rounds=5,
                record_updates=True,
                evaluate_every=9,
            )

    moving, other_moving = (
        bases(run(f"moving-{changed}", changed=changed, still=False)) for changed in (False, True)
    )
    assert set(moving) == {"basis-000001.bin", "basis-000004.bin"}
    assert moving["basis-000001.bin"] == other_moving["basis-000001.bin"]
    # by way of the released weights alone
    assert moving["basis-000004.bin"] != other_moving["basis-000004.bin"]
    still, other_still = (
        run(f"still-{changed}", changed=changed, still=True) for changed in (False, True)
    )
    assert bases(still) == bases(other_still)
    assert still.payloads != other_still.payloads  # the clients did train on other data
