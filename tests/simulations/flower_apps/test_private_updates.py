"""fedlsg.flower.private_update, reply and PrivateUpdates: apps that keep their own training, on
Flower messages.
"""

import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg, FedMedian
from torch import nn

import fedlsg
import fedlsg.simulations.flower_apps.private_update as door
from fedlsg.accounting import epsilon as epsilon_of
from fedlsg.noise import add_gaussian
from fedlsg.privacy import LedgerError
from fedlsg.secure_sum.discrete.sum_release import plan_release
from fedlsg.simulations.client.virtual import FIRST_NODE
from fedlsg.simulations.engines.local import task_identity
from fedlsg.simulations.flower_apps.private_updates import PrivateUpdates, UpdateSettings
from fedlsg.simulations.flower_apps.whole_update import KEY
from tests.simulations.support.own_updates import (
    CLIENTS,
    Nodes,
    app_of,
    build,
    flat,
    ledgers,
    mod,
    moved_by,
    start,
    wrapped,
)

WRONG_HERE = {
    "epsilon": "8",
    "delta": "1e-5",
    "trust": "Secure",
    "colluders": "two",
    "ledger": "here",
    "record": "here",
    "weighted_by_key": 3,
}
WRONG_THERE = {
    "epsilon": "8",
    "delta": None,
    "trust": "server",
    "colluders": "two",
    "min_survivors": 1.5,
    "seed": "a",
    "method": 3,
    "codec": 3,
    "clip_norm": "1",
    "record": "here",
}


@pytest.mark.parametrize(
    ("door", "name", "value"),
    [("client", *one) for one in WRONG_HERE.items()]
    + [("server", *one) for one in WRONG_THERE.items()],
)
def test_a_wrong_setting_is_named_when_the_app_is_made(door, name, value, tmp_path):
    with pytest.raises(ValueError, match=name):
        mod(tmp_path, **{name: value}) if door == "client" else wrapped(**{name: value})


def test_a_model_that_is_built_already_is_refused_on_both_sides():
    for make in (
        fedlsg.flower.private_update,
        lambda *a, **b: fedlsg.flower.PrivateUpdates(FedAvg(), *a, **b),
    ):
        with pytest.raises(
            ValueError, match="model=Sequential: expected the class or function that builds it"
        ):
            make(build(), epsilon=8.0, delta=1e-5)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("trust", ["client", "secure"])
@pytest.mark.parametrize("method", ["dpsgd", "lsg", "rs"])
def test_the_app_trains_and_its_ledgers_say_what_it_spent(tmp_path, method, trust):
    grid = Nodes(app_of(mod(tmp_path, trust=trust)))
    result = start(wrapped(method=method, trust=trust, epsilon=8.0), grid)
    books = ledgers(tmp_path)
    assert len(books) == CLIENTS
    for book in books:
        assert [(e.round, e.unit, e.sample_rate) for e in book.entries] == [
            (r, "client", 1.0) for r in (1, 2)
        ]
        assert 7.99 <= book.epsilon(1e-5).upper <= 8.0
    numbers = result.train_metrics_clientapp[2]
    assert numbers["epsilon"] == books[0].epsilon(1e-5).upper
    assert numbers["clients"] == CLIENTS
    assert numbers["uplink_bytes_per_client"] * CLIENTS == numbers["uplink_bytes"]
    assert numbers["downlink_bytes_per_client"] * CLIENTS == numbers["downlink_bytes"]
    assert method == "dpsgd" or numbers["uplink_bytes"] < numbers["downlink_bytes"]
    assert oct(books[0].path.stat().st_mode & 0o777) == "0o600"


def test_nothing_but_the_payload_and_public_numbers_leaves(tmp_path):
    grid = Nodes(app_of(mod(tmp_path)))
    start(wrapped(), grid, rounds=1)
    for reply in grid.replies:
        assert not reply.content.array_records
        numbers = {"num-examples", "epsilon", "replies_without_noise"}
        assert set(reply.content.metric_records["metrics"]) == numbers
        assert reply.content.metric_records["metrics"]["num-examples"] == 1


def test_without_noise_the_sum_is_the_clipped_mean_of_the_apps_own_updates(tmp_path, monkeypatch):
    """The way of the data, and with the secure sum the same; a clip that is missed is seen."""
    updates: dict[int, torch.Tensor] = {}

    def recording(message: Message, context: Any, call_next: Any) -> Message:
        before = flat(message.content["arrays"])
        reply = call_next(message, context)
        updates[context.node_id] = flat(reply.content["arrays"]) - before
        return reply

    torch.manual_seed(0)
    first, tolerance = flat(ArrayRecord(build().state_dict())), 2e-3
    for trust in ("client", "secure"):
        grid = Nodes(app_of(mod(tmp_path / trust, trust=trust, epsilon=1e9), recording))
        result = start(
            wrapped(trust=trust, epsilon=None, noise_multiplier=1e-3, clip_norm=0.1), grid, rounds=1
        )
        moved = flat(result.arrays) - first
        clipped = torch.stack([u * min(1.0, 0.1 / float(u.norm())) for u in updates.values()]).mean(
            0
        )
        assert all(float(u.norm()) > 0.11 for u in updates.values())  # the clip matters
        assert float((moved - clipped).norm()) < tolerance
        unclipped = torch.stack(list(updates.values())).mean(0)
        assert float((moved - unclipped).norm()) > 10 * tolerance


def returned(message: Message, model: nn.Module) -> Message:
    """No update at all: what comes is noise."""
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


def noise_and_claim(folder: Path, trust: str) -> tuple[float, float]:
    """Deviation of the noise of a round's mean, and the deviation that the ledgers claim."""
    strategy = wrapped(trust=trust, epsilon=None, noise_multiplier=2.0, clip_norm=0.5)
    moved = moved_by(strategy, app_of(mod(folder, trust=trust), answer=returned))
    entry = ledgers(folder)[0].entries[0]
    shares = 1.0 if trust == "client" else 1 / (entry.min_survivors - entry.colluders)
    return float(moved.std()), entry.noise_multiplier * entry.clip_norm * math.sqrt(
        CLIENTS * shares
    ) / CLIENTS


@pytest.mark.parametrize("trust", ["client", "secure"])
def test_the_noise_is_what_the_ledger_says(tmp_path, trust):
    found, claimed = noise_and_claim(tmp_path, trust)
    assert found == pytest.approx(claimed, rel=0.12)


PLANTS = {
    "halved": lambda stream, count: add_gaussian(torch.zeros(count), 0.5, stream),
    "reused": lambda stream, count: torch.randn(count, generator=torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_planted_noise_is_seen(plant, tmp_path, monkeypatch):
    def planted(total, how, stream):
        return total + PLANTS[plant](stream, len(total)) * how.noise_std

    monkeypatch.setattr(door, "add_noise", planted)
    found, claimed = noise_and_claim(tmp_path, "client")
    assert found != pytest.approx(claimed, rel=0.12)


def test_halved_noise_in_a_secure_sum_is_seen(tmp_path, monkeypatch):
    def plan(sums, mechanism, **sizes):
        return plan_release(
            sums, replace(mechanism, noise_multiplier=mechanism.noise_multiplier / 2), **sizes
        )

    monkeypatch.setattr("fedlsg.simulations.flower_apps.whole_update.plan_release", plan)
    found, claimed = noise_and_claim(tmp_path, "secure")
    assert found != pytest.approx(claimed, rel=0.12)


@pytest.mark.parametrize("trust", ["client", "secure"])
def test_noise_is_on_the_kept_coordinates_alone(tmp_path, trust):
    """A frozen coordinate that moved would be an update, or noise, beyond the mask that was
    clipped.
    """
    settings = {"method": "rs", "sparsity": 0.5, "cooling": False}
    strategy = wrapped(trust=trust, epsilon=None, noise_multiplier=2.0, **settings)
    moved = moved_by(strategy, app_of(mod(tmp_path, trust=trust)))
    kept = torch.zeros(len(moved), dtype=torch.bool)
    kept[strategy._round.frame.indices] = True
    assert 0 < kept.sum() < len(moved)
    assert moved[~kept].abs().max() < 1e-6  # the strategy's average rounds
    assert (moved[kept].abs() > 1e-6).double().mean() > 0.95  # on a grid the noise may be 0


# nor does a type of error of the app's say anything
@pytest.mark.parametrize("error", [RuntimeError, LedgerError])
def test_a_round_is_charged_before_the_app_trains_and_stays_charged(tmp_path, error):
    def fail(message: Message, model: nn.Module) -> Message:
        raise error("row 7 has the label 3")

    grid = Nodes(app_of(mod(tmp_path), answer=fail))
    start(wrapped(), grid, rounds=1)
    assert [len(book.entries) for book in ledgers(tmp_path)] == [1] * CLIENTS
    reasons = {reply.error.reason for reply in grid.replies}
    assert len(reasons) == 1
    assert "label" not in reasons.pop()


def test_a_client_stops_at_its_own_budget(tmp_path):
    """Whatever the server asks for: three rounds fit, the fourth does not, and nothing is charged
    for it.
    """
    fits = epsilon_of(noise_multiplier=1.0, sample_rate=1.0, steps=3, delta=1e-5).upper
    grid = Nodes(app_of(mod(tmp_path, epsilon=fits)))
    start(wrapped(epsilon=None, noise_multiplier=1.0), grid, rounds=4)
    assert {len(book.entries) for book in ledgers(tmp_path)} == {3}
    assert "would pass epsilon=" in grid.replies[-1].error.reason


@pytest.mark.parametrize(
    ("settings", "given", "words"),
    [
        ({"trust": "secure"}, {}, "adds all of it"),
        ({"trust": "secure"}, {"trust": "secure", "colluders": 3}, "this client asks for 3"),
        ({"unit": "example", "epsilon": None}, {}, "unit='example'"),
    ],
)
def test_a_client_refuses_weaker_terms_and_pays_nothing(tmp_path, settings, given, words):
    grid = Nodes(app_of(mod(tmp_path, **given)))
    start(wrapped(**settings), grid, rounds=1)
    assert not ledgers(tmp_path)
    assert all(words in reply.error.reason for reply in grid.replies)


def lie(settings: UpdateSettings, **own: Any) -> None:
    """A server that has gone around its own checks."""
    object.__setattr__(settings, "own", {**settings.own, **own})


def test_mechanisms_without_epsilon_and_foreign_servers_are_refused(tmp_path):
    grid = Nodes(app_of(mod(tmp_path)))
    torch.manual_seed(0)
    with task_identity():
        FedAvg(fraction_evaluate=0.0).start(grid, ArrayRecord(build().state_dict()), num_rounds=1)
    assert all("PrivateUpdates" in reply.error.reason for reply in grid.replies)
    with pytest.raises(ValueError, match="no epsilon"):
        wrapped(mechanism="clip-only")
    lying = wrapped()
    lie(lying.settings, mechanism="clip-only")
    start(lying, grid, rounds=1)
    assert "no epsilon" in grid.replies[-1].error.reason
    assert not ledgers(tmp_path)


@pytest.mark.parametrize("kind", ["train.default", "train.other"])
def test_training_under_another_name_is_private_too(tmp_path, kind):
    """Flower calls @app.train() for "train.default" as well: a server may ask for it by that
    name.
    """
    app = app_of(mod(tmp_path))
    app.train("other")(
        lambda message, context: Message(RecordDict(dict(message.content)), reply_to=message)
    )

    class Renamed(Nodes):
        def deliver(self, messages: Any, timeout: float | None) -> Any:
            return super().deliver(
                [Message(m.content, m.metadata.dst_node_id, kind) for m in messages], timeout
            )

    grid = Renamed(app)
    start(wrapped(), grid, rounds=1)
    assert all(set(reply.content) == {"fedlsg.update", "metrics"} for reply in grid.replies)
    assert [len(book.entries) for book in ledgers(tmp_path)] == [1] * CLIENTS


def test_a_server_cannot_ask_for_a_share_of_the_noise_alone(tmp_path):
    lying = wrapped()
    lie(lying.settings, noise_share=0.01)
    grid = Nodes(app_of(mod(tmp_path)))
    with pytest.raises(ValueError, match="noise_share"):
        start(lying, grid, rounds=1)
    terms = lying.settings.terms(1, 1, 1.0, CLIENTS)
    content = RecordDict({"arrays": ArrayRecord(build().state_dict()), KEY: terms.record()})
    with task_identity():
        list(grid.send_and_receive([Message(content, FIRST_NODE, "train")]))
    assert "follow from trust" in grid.replies[-1].error.reason
    assert not ledgers(tmp_path)


def test_clients_that_were_told_other_noise_are_in_no_sum_together(tmp_path):
    """Each ledger counts on the noise of the others: with a clip of 1e-3, theirs would be a
    thousandth of it.
    """

    class Lying(Nodes):
        def deliver(self, messages: Any, timeout: float | None) -> Any:
            for message in messages:
                if message.metadata.dst_node_id != FIRST_NODE:
                    record = message.content[KEY]
                    record["settings"] = json.dumps(
                        {**json.loads(record["settings"]), "clip_norm": 1e-3}
                    )
            return super().deliver(messages, timeout)

    grid = Lying(app_of(mod(tmp_path, trust="secure")))
    result = start(wrapped(trust="secure", min_survivors=CLIENTS - 1), grid, rounds=1)
    assert not result.train_metrics_clientapp
    assert not ledgers(tmp_path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"method": "gep"}, "whole updates"),
        ({"method": "lora"}, "whole updates"),
        ({"epsilon": None}, "give epsilon"),
        ({"min_survivors": 3}, "trust='secure'"),
        ({"rnk": 4, "method": "lsg"}, "rank"),
        ({"unit": "row"}, "unit"),
        ({"codec": "float33"}, "float33"),
        ({"trust": "secure", "codec": "float16"}, "no codec"),
        ({"trust": "secure", "unit": "example", "epsilon": None}, "unit='client'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_at_once(given, words):
    with pytest.raises(ValueError, match=words):
        wrapped(**given)


def test_a_strategy_that_compares_clients_needs_to_see_them():
    PrivateUpdates(FedMedian(), build, epsilon=8.0)
    with pytest.raises(
        ValueError, match=r"FedMedian compares .* their mean alone: give trust='client'"
    ):
        PrivateUpdates(FedMedian(), build, epsilon=8.0, trust="secure")


def test_the_log_says_that_a_mask_grows_and_that_nobody_trained(tmp_path, caplog):
    grid = Nodes(app_of(mod(tmp_path, least_noise_multiplier=1e6)))
    with caplog.at_level(logging.INFO, "flwr"):
        result = start(wrapped(method="rs", sparsity=0.5), grid, rounds=2)
        start(wrapped(), Nodes(app_of(mod(tmp_path / "other"))), rounds=1)
    assert not result.arrays
    assert caplog.text.count("Result.arrays is empty") == 1
    assert caplog.text.count("0.5 of the values are frozen at the end, growing from 0") == 1
    reasons = {reply.error.reason for reply in grid.replies}
    assert "More rounds, or a smaller epsilon" in reasons.pop()
    assert not reasons  # one sentence in every round


@pytest.mark.parametrize(
    ("clients", "values", "words"),
    [
        (2, 4810, "would move a weight only"),  # 57 % were measured with 10
        (20, 62_006, "moves the 62,006 values 7.5 times as far"),  # 68 % were measured
        (50, 62_006, None),  # 87 %
        (100, 4810, None),  # 90 %
    ],
)
def test_noise_is_compared_with_the_updates_of_all_values(clients, values, words):
    settings = wrapped(epsilon=8.0, trust="secure").settings
    said = settings.swamped(clients, 15, settings.calibrated(15), values=values)
    assert (said is None) == (words is None)
    assert words is None or words in said
    assert said is None or ("method='lsg'" in said) == (clients == 20)


def test_the_warning_counts_the_values_that_the_method_sends(tmp_path, monkeypatch):
    counted = dict[str, int]()
    for method, own in (("dpsgd", {}), ("lsg", {"rank": 1})):
        monkeypatch.setattr(
            UpdateSettings,
            "swamped",
            lambda *a, values, m=method: counted.update({m: values}),
        )
        start(wrapped(method=method, **own), Nodes(app_of(mod(tmp_path / method))), rounds=1)
    assert counted["dpsgd"] == sum(p.numel() for p in build().parameters())
    assert counted["lsg"] < counted["dpsgd"]


def test_a_simulated_client_says_which_clip_norm_its_update_needs(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        start(wrapped(clip_norm=10.0), Nodes(app_of(mod(tmp_path))), rounds=1)
    sizes = re.findall(r"update: ([\d.]+), .*what a clip norm.*clip_norm=([\d.]+)\)", caplog.text)
    assert len(sizes) == CLIENTS
    assert all(float(advised) == pytest.approx(float(norm), rel=0.05) for norm, advised in sizes)
    assert door.clip_advice(0.9, 1.0) == door.clip_advice(4.0, 1.0) == ""


HIDES = "noise is likely to hide the updates of"


@pytest.mark.parametrize("trust", ["client", "secure"])
def test_one_warning_says_that_noise_hides_updates_far_below_the_clip_norm(
    trust, tmp_path, caplog, monkeypatch
):
    """The server judges by the clip norm, and accepted it; each client had a line of INFO."""
    far = {"epsilon": None, "noise_multiplier": 0.01, "trust": trust}
    for clip_norm, warnings in ((1e4, 1), (0.5, 0)):
        caplog.clear()
        app = app_of(mod(tmp_path / f"{clip_norm}", trust=trust, epsilon=1e12))
        start(wrapped(**far, clip_norm=clip_norm), Nodes(app), rounds=2)
        said = [r.getMessage() for r in caplog.records if HIDES in r.getMessage()]
        assert len(said) == warnings
    assert not said
    caplog.clear()
    monkeypatch.setattr(door, "is_simulated", lambda context: False)  # nothing about real data
    app = app_of(mod(tmp_path / "real", trust=trust, epsilon=1e12))
    assert start(wrapped(**far, clip_norm=1e4), Nodes(app), rounds=1).arrays
    assert HIDES not in caplog.text


@pytest.mark.parametrize("trust", ["client", "secure"])
def test_a_client_is_warned_once_that_its_training_diverged(trust, tmp_path, caplog, monkeypatch):
    def diverged(message: Message, model: nn.Module) -> Message:
        with torch.no_grad():
            next(model.parameters())[0, 0] = float(bad)
        content = RecordDict({"arrays": ArrayRecord(model.state_dict())})
        return Message(content, reply_to=message)

    sent: list[torch.Tensor] = []
    clip = door.clipped_update
    monkeypatch.setattr(
        door, "clipped_update", lambda *a, **b: sent.append(clip(*a, **b)) or sent[-1]
    )
    for bad, words in (
        ("nan", "the norm of its update is nan. An update of zeros was sent"),
        ("inf", "the norm of its update is inf. An update of zeros was sent"),
        ("1e30", "1e+30 times the clip norm"),
    ):
        caplog.clear()
        sent.clear()
        app = app_of(mod(tmp_path / bad, trust=trust), answer=diverged)
        start(wrapped(trust=trust), Nodes(app), rounds=2)
        warned = [r.getMessage() for r in caplog.records if "client 0, round" in r.getMessage()]
        assert len(warned) == 1, bad  # of two rounds
        assert words in warned[0]
        # what it says is what the clip gives, to which noise is added
        norms = [float(update.norm()) for update in sent]
        assert norms == pytest.approx([0.0 if bad != "1e30" else 1.0] * len(norms))
        assert len(norms) == 2 * CLIENTS
        assert [len(book.entries) for book in ledgers(tmp_path / bad)] == [2] * CLIENTS


def test_an_update_of_the_usual_size_is_no_warning(tmp_path, caplog):
    start(wrapped(), Nodes(app_of(mod(tmp_path))), rounds=1)
    assert "diverge" not in caplog.text
    assert door.divergence(900.0, 1.0) is None


def unprotected() -> Any:
    """An app without fedlsg's mod that fails, as one does that looks for weights in a message of a
    secure sum: Flower makes an error reply of its exception.
    """

    def call(message: Message, context: Any) -> Message:
        error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "KeyError: 'arrays'")
        return Message(error, reply_to=message)

    return call


@pytest.mark.parametrize("trust", ["client", "secure"])
def test_clients_without_the_mod_are_named_in_the_first_round(trust):
    for app, said in ((unprotected(), ""), (app_of(), "had no noise and was not used")):
        if trust == "secure" and said:
            continue  # it fails
        with pytest.raises(RuntimeError, match=f"no client has fedlsg's mod.*{said}.*mods=") as e:
            start(wrapped(trust=trust), Nodes(app), rounds=1)
        assert "private_update" in str(e.value)


def test_clients_that_refuse_do_have_the_mod(tmp_path, caplog):
    result = start(wrapped(), Nodes(app_of(mod(tmp_path, epsilon=0.01))), rounds=1)
    assert not result.arrays  # and no error
    assert "fedlsg's mod" not in caplog.text


def test_one_client_without_the_mod_does_not_end_the_round(tmp_path):
    private, plain = app_of(mod(tmp_path)), app_of()

    def either(message: Message, context: Any) -> Message:
        first = context.node_config["partition-id"] == 0
        return (plain if first else private)(message, context)

    result = start(wrapped(), Nodes(either), rounds=1)
    assert result.train_metrics_clientapp[1]["clients"] == CLIENTS - 1
