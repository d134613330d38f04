"""``fedlsg audit``: its verdicts and exit status, audit.json, both modes, and what it refuses."""

import io
import json
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch.testing import assert_close

from fedlsg.simulations.attacks.audit.audit_command import audit_command, results_place
from fedlsg.simulations.attacks.audit.audited import audited_run, audited_settings
from fedlsg.simulations.attacks.audit.training import (
    KINDS,
    choose_canaries,
    settings_of,
    with_canaries,
)
from fedlsg.simulations.planning.plan import Plan, make_plan
from tests.simulations.support.runs import SMALL, Run, reconfigure, run_local

SETTINGS = {key: value for key, value in SMALL.items() if key != "reproducible"} | {
    "rounds": 6,
    "sample_rate": 0.5,
}
TRAINING = SETTINGS | {"train_rows": 480}
"""Of the training mode, which replays each payload with every row of its client."""


def audit(
    tmp_path: Path, run: str | None = None, given=SETTINGS, **options
) -> tuple[int, dict, str]:
    """Exit status, audit.json and what was printed."""
    out = tmp_path / "audit.json"
    console = Console(record=True, width=200, file=io.StringIO())
    options = {"canaries": 200, "seed": 0} | options
    status = audit_command(run, given if run is None else {}, console, out=str(out), **options)
    return status, json.loads(out.read_text()), console.export_text()


@pytest.mark.slow
def test_correct_code(tmp_path):
    status, found, text = audit(tmp_path)
    assert status == 0
    assert found["verdict"] == "not falsified"
    assert text.rstrip().splitlines()[-2] == "not falsified"
    assert "verified" not in text + json.dumps(found)
    assert found["not_covered"] == ["backward pass of each example"]
    assert "not covered: backward pass of each example" in text
    assert found["paths"]["clip and sums of a shared pass"] > 0
    assert found["canaries"] == 200
    assert found["significance_of_each_bound"] == 0.001
    assert all(check["significance"] <= 1e-5 for check in found["checks"])
    assert found["gdp_estimate"]["kind"] == "estimate, no bound"
    assert found["f_dp_one_run_bound"]["epsilon"] <= found["claimed"]["epsilon"]
    assert "secret" in found["threat_model"]
    page = (tmp_path / "audit.html").read_text()
    assert "Not falsified: the claim is epsilon" in page
    assert "That does not verify the claim." in page


def test_a_check_without_power_is_not_among_those_that_passed(tmp_path):
    """The card said "29 of 29 passed" where 3 of them could not have failed."""
    _, found, _ = audit(tmp_path, canaries=20, given=SETTINGS | {"sample_rate": 0.01})
    checks = found["checks"]
    powerless = sum(check["error"] > 1 for check in checks)
    assert powerless > 0, "the settings leave a check without power"
    assert all(check["passed"] for check in checks)
    page = (tmp_path / "audit.html").read_text()
    assert f"{len(checks) - powerless} of {len(checks)}" in page
    assert f"{powerless} had no power here" in page


@pytest.mark.slow
def test_an_audit_with_a_plant_leaves_the_page_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = Console(quiet=True)
    assert audit_command(None, SETTINGS, console, canaries=50, seed=0) == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"audit.json", "audit.html"}
    assert audit_command(None, SETTINGS, console, canaries=50, seed=0, plant="no-clip") == 1
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.items() <= after.items()
    assert json.loads(after["audit-2.json"])["plant"] == "no-clip"


SECURE = SETTINGS | {"trust": "secure", "clients": 5, "min_survivors": 4, "colluders": 1}
CLIENTS = {key: value for key, value in SETTINGS.items() if key != "sample_rate"} | {
    "unit": "client",
    "batch_size": 20,
    "rounds": 3,
}
MODES = {
    "client": SETTINGS,
    "aggregate": SETTINGS | {"trust": "aggregate", "clients": 4},
    "secure": SECURE,
    "secure, clients": CLIENTS
    | {"trust": "secure", "clients": 5, "min_survivors": 4, "colluders": 1},
    "server": CLIENTS | {"trust": "server", "clients": 30, "clients_per_round": 9},
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_correct_code_of_every_mode(tmp_path, mode):
    """No false alarm; below, a plant of each is found."""
    status, found, text = audit(tmp_path, given=MODES[mode], canaries=40)
    assert status == 0, text
    assert (found["trust"], found["unit"]) == (
        mode.split(",")[0],
        "example" if "unit" not in MODES[mode] else "client",
    )
    assert found["canary_kind"] == ("gradients" if found["unit"] == "example" else "updates")
    assert found["reader"] in (tmp_path / "audit.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        ("client", "nine-tenths-of-noise"),
        ("secure", "shares-for-all"),
        ("secure", "rotation-doubles"),
        ("aggregate", "noise-left-out"),
        ("aggregate", "noise-permuted"),
        ("secure, clients", "readers-not-counted"),
        ("server", "tenth-of-noise"),
        ("server", "clip-misses-block"),
    ],
)
def test_a_plant_of_a_mode_is_falsified(tmp_path, mode, plant):
    status, found, _ = audit(tmp_path, given=MODES[mode], canaries=20, plant=plant)
    assert status == 1
    assert found["plant"] == plant


def test_a_run_at_client_level_is_held_to_the_server_s_ledger(tmp_path):
    run = run_local(
        tmp_path / "run", **MODES["server"] | {"reproducible": False, "sample_rate": None}
    )
    run.directory.summary.unlink()
    found = audited_run(str(run.path))
    assert found.source == "the server's ledger"
    assert (found.claim.sample_rate, found.claim.steps) == (0.3, 3)
    assert found.claim.noise_multiplier == pytest.approx(2.0, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["halved-noise", "per-block-clip"])
def test_a_plant_is_falsified(tmp_path, plant):
    status, found, text = audit(tmp_path, plant=plant)
    assert status == 1
    assert found["verdict"] == "falsified"
    assert found["falsified_by"]
    assert f"falsified by: {', '.join(found['falsified_by'])}" in text


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Run:
    """A run of six rounds."""
    return run_local(tmp_path_factory.mktemp("audit") / "run", **SETTINGS)


@pytest.mark.slow
def test_a_reproducible_claim_is_not_private(tmp_path):
    """Not falsified, and void: of settings, of a run, and of one whose ledger alone says so."""
    words = "NOT PRIVATE: the noise is reproducible"
    run = run_local(tmp_path / "run", **(SETTINGS | {"reproducible": True}))
    for how in ({"given": SETTINGS | {"reproducible": True}}, {"run": str(run.path)}):
        status, found, text = audit(tmp_path, canaries=60, **how)
        assert status == 0
        assert (found["reproducible"], found["not_private"]) == (True, words)
        assert text.splitlines()[1] == words
        assert any(line.startswith("claimed") and words in line for line in text.splitlines())
    reconfigure(run, reproducible=False)
    assert audited_run(str(run.path)).not_private == words


@pytest.mark.slow
def test_training_mode(tmp_path):
    status, found, text = audit(tmp_path, mode="training", given=TRAINING, canaries=100)
    assert status == 0, text
    assert found["mode"] == "training"
    assert found["canary_kind"] == "two-tone"
    assert found["gdp_estimate"]["mu"]["high"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("plant", ["halved-noise", "noise-reused"])
def test_training_mode_finds_less_noise(tmp_path, plant):
    status, found, _ = audit(tmp_path, mode="training", given=TRAINING, canaries=100, plant=plant)
    assert status == 1
    assert {"noise deviation", "fresh noise"} & set(found["falsified_by"])


@pytest.mark.slow
def test_training_mode_finds_full_batches(tmp_path):
    given = TRAINING | {"rounds": 10, "noise_multiplier": 1.0}
    options = {"mode": "training", "canaries": 200}
    assert audit(tmp_path, given=given, **options)[0] == 0
    status, found, _ = audit(tmp_path, given=given, plant="full-batches", **options)
    assert status == 1
    assert "sensitivity" in found["falsified_by"]


@pytest.mark.thinned(9)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "other"}, "expected --mode"),
        ({"plant": "other"}, "expected --plant"),
        (
            {"canary_kind": "other", "mode": "training"},
            "expected --canary-kind in mislabelled, two-tone",
        ),
        ({"canary_kind": "two-tone"}, "with --mode training"),
        ({"canaries": 3}, "canaries=3"),
        ({"given": {"method": "sgd"}}, "claims no epsilon"),
        ({"given": SETTINGS | {"local_steps": 2}, "mode": "training"}, "local_steps=1"),
        ({"given": SETTINGS | {"trust": "aggregate"}, "mode": "training"}, "trust=client"),
        ({"given": MODES["server"], "mode": "training"}, "trust=client"),
        ({"plant": "shares-for-all"}, "take trust=secure, got trust=client"),
        ({"given": MODES["server"], "plant": "noise-left-out"}, "take tenth-of-noise"),
        ({"mode": "training", "canaries": 1400}, "half of"),
    ],
)
def test_refuses(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        audit(tmp_path, **options)


def test_refuses_settings_next_to_a_run_and_a_run_without_releases(tmp_path, finished):
    with pytest.raises(ValueError, match="leave out method"):
        audit_command(str(finished.path), {"method": "rgp"}, Console())
    with pytest.raises(ValueError, match="no run directory"):
        audit_command(str(tmp_path / "absent"), {}, Console())
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="is a file; give --out as a folder"):
        audit_command(None, SETTINGS, Console(), out=str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("out", "place"),
    [
        (None, ("", None)),
        ("new", ("new", None)),
        ("there.d", ("there.d", None)),
        ("mine.json", ("", "mine.json")),
        ("new/audit.json", ("new", "audit.json")),
    ],
)
def test_out_is_a_folder_or_has_a_suffix(out, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.d").mkdir()
    folder, name = place
    assert results_place(None, out) == (tmp_path / folder, name)


SECRET_SMALL = {key: value for key, value in SMALL.items() if key != "reproducible"}


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A run on digits that was never started."""
    return make_plan(settings_of(audited_settings(SECRET_SMALL).subject.base.settings, 0))


@pytest.mark.parametrize("kind", KINDS)
def test_everybody_else_stays_where_they_are(plan, kind):
    inserted = choose_canaries(plan, 100, 0)
    made = with_canaries(plan, inserted, kind)
    everything = torch.arange(len(plan.workload.train))
    before, after = (one.workload.train.batch(everything) for one in (plan, made))
    others = ~torch.isin(everything, inserted.rows)
    assert_close(after[0][others], before[0][others], rtol=0, atol=0)
    assert_close(after[1][others], before[1][others])
    gone = torch.cat(list(plan.parts))[
        ~torch.isin(torch.cat(list(plan.parts)), torch.cat(list(made.parts)))
    ]
    assert torch.equal(gone.sort().values, inserted.rows[~inserted.included])
    assert made.divisor == plan.divisor
    assert all(
        torch.isin(row, plan.parts[client])
        for row, client in zip(inserted.rows, inserted.clients, strict=True)
    )
    if kind == "mislabelled":
        assert_close(after[0], before[0], rtol=0, atol=0)
        assert bool((after[1] != before[1])[inserted.rows].all())
    else:
        assert bool((after[0] != before[0])[inserted.rows].flatten(1).any(1).all())


@pytest.mark.slow
def test_a_run_that_was_configured_otherwise_than_its_ledger_says(tmp_path, finished):
    """The ledger's claim stands: code that would run with half of its noise is falsified."""
    copy = Run(shutil.copytree(finished.path, tmp_path / "run"))
    reconfigure(copy, **{"noise-multiplier": 1.0})
    status, found, _ = audit(tmp_path, run=str(copy.path))
    assert found["claimed"]["noise_multiplier"] == pytest.approx(2.0, rel=0.01)
    assert status == 1
