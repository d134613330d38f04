"""Laws of a federation: what it equals, how its noise adds up, when its ledger is charged."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from flwr.app import Context, Message
from torch import Tensor

import fedlsg.method
import simulations.client
from fedlsg.accounting import epsilon
from fedlsg.frame import Frame
from fedlsg.ledger import Entry, Ledger
from fedlsg.randomness import public_generator, reproducible_stream
from simulations.client_app import app
from simulations.engines import local
from simulations.outbox import Outbox
from simulations.plan import Plan
from simulations.rundir import RunDir
from strategies.state import ServerState
from strategies.wire import read_update
from tests.simulations.runs import Run, ignore, plan_at, resume_local, run_local

N = 1437  # training images of digits


# --- one client with one local step is a plain centralised loop


def gram_schmidt(A: Tensor) -> Tensor:
    """Orthonormal columns, the first along A's first."""
    columns: list[Tensor] = []
    for a in A.T:
        for q in columns:
            a = a - (q @ a) * q
        columns.append(a / a.norm())
    return torch.stack(columns, 1)


def carriers_of(W: Tensor, round: int, rank: int) -> tuple[Tensor, Tensor]:
    """One power step (000 Alg. 2)."""
    draw = torch.randn(rank, W.shape[1], generator=public_generator(0, "carriers", round, "hidden.weight"))
    L = gram_schmidt(W @ draw.double().T)
    return L, gram_schmidt((L.T @ W).T).T


def central_loop(plan: Plan, *, rank: int | None, third_term: bool = True) -> Tensor:
    """The weights after DP-SGD with momentum on all data, in float64; hidden.weight in carriers if a rank is given."""
    mechanism, q, after = plan.method.mechanism, plan.local.sample_rate, plan.method.after
    model = plan.build_model().double()
    inputs, targets = plan.workload.train.batch(plan.parts[0])
    names = [name for name, _ in model.named_parameters()]
    velocity = {name: torch.zeros_like(w) for name, w in model.named_parameters()}
    for round in range(1, plan.schedule.rounds + 1):
        weights = dict(model.named_parameters())
        L, R = carriers_of(weights["hidden.weight"].detach(), round, rank) if rank else (None, None)
        joins = reproducible_stream(0, "sampler", 0, round).bernoulli(len(inputs), q)
        total: Tensor = torch.zeros(0, dtype=torch.float64)
        for i in joins.nonzero().flatten().tolist():
            loss = F.cross_entropy(model(inputs[i : i + 1].double()), targets[i : i + 1])
            gradients = dict(zip(names, torch.autograd.grad(loss, list(weights.values())), strict=True))
            if rank:
                dW = gradients.pop("hidden.weight")
                gradients = {"dL": dW @ R.T, "dR": L.T @ dW} | gradients
            shapes = {name: g.shape for name, g in gradients.items()}
            x = torch.cat([g.flatten() for g in gradients.values()])
            x = x * min(1.0, mechanism.clip_norm / float(x.norm())) if mechanism.clips else x
            total = x if not len(total) else total + x
        if mechanism.adds_noise:
            noise = reproducible_stream(0, "noise", 0, round).normal(len(total))
            total = total + mechanism.noise_multiplier * mechanism.clip_norm * noise
        pieces = (total / (q * N)).split([s.numel() for s in shapes.values()])
        mean = {name: piece.reshape(shapes[name]) for name, piece in zip(shapes, pieces, strict=True)}
        if rank:
            dL, dR = mean.pop("dL"), mean.pop("dR")
            mean["hidden.weight"] = dL @ R + L @ dR - third_term * (L @ L.T @ dL @ R)
        with torch.no_grad():
            for name, w in weights.items():
                velocity[name] = after.momentum * velocity[name] + mean[name]
                w -= after.learning_rate * velocity[name]
    return torch.cat([w.detach().flatten() for w in model.parameters()])


def far(run: Run, expected: Tensor) -> float:
    """Distance from the expected weights, in units of how far training moved them."""
    start = torch.cat([w.detach().flatten() for w in run.plan.build_model().parameters()])
    return float((run.weights - expected).norm() / (run.weights - start).norm())


CENTRAL = {"clients": 1, "rounds": 3}
METHODS = [{"method": "lsg", "rank": 4, "sparsity": 0.0}, {"method": "dpsgd"}]


@pytest.mark.parametrize("method", METHODS, ids=["lsg", "dpsgd"])
@pytest.mark.parametrize(
    "mechanism",
    [{"mechanism": "none", "sample_rate": 1.0, "rounds": 2, "noise_multiplier": None}, {"mechanism": "dp"}],
    ids=["full batch, no noise", "private"],
)
def test_one_client_is_a_plain_central_loop(method, mechanism, tmp_path):
    run = run_local(tmp_path / "run", **CENTRAL | method | mechanism)
    assert far(run, central_loop(run.plan, rank=method.get("rank"))) < 1e-4


def test_half_of_eq_3_is_caught(tmp_path):
    """Negative control: the central loop without the third term (as the RGP authors' vision code has it)."""
    run = run_local(tmp_path / "run", **CENTRAL | METHODS[0])
    assert far(run, central_loop(run.plan, rank=4, third_term=False)) > 1e-2


# --- K clients are central training with sqrt(K) sigma, whoever answers

LOUD = {
    "method": "dpsgd",
    "rounds": 1,
    "noise_multiplier": 50.0,
    "clip_norm": 0.5,
    "learning_rate": 1.0,
    "momentum": 0.0,
}
TOLERANCE = 0.05  # five standard deviations of a standard deviation from 4,810 numbers


def failing(*partitions: int) -> local.ClientFunction:
    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] in partitions:
            raise RuntimeError("planted failure")
        return app(message, context)

    return client


def noise_gain(run: Run) -> float:
    """Noise of the averaged update over sigma C / (q N), which is that of central training."""
    start = torch.cat([w.detach().flatten() for w in run.plan.build_model().parameters()])
    return float((run.weights - start).std()) / (50.0 * 0.5 / (0.05 * N))


@pytest.mark.parametrize(("clients", "failed"), [(1, ()), (2, ()), (5, ()), (5, (1, 4))])
def test_clients_add_their_noise_over_a_constant_divisor(clients, failed, tmp_path):
    run = run_local(tmp_path / "run", client=failing(*failed), clients=clients, **LOUD)
    assert run.rows[0].rejected == " ".join(map(str, failed))
    assert math.isclose(noise_gain(run), math.sqrt(clients - len(failed)), rel_tol=TOLERANCE)


def test_a_divisor_from_the_number_of_answers_is_caught(tmp_path, monkeypatch):
    finish = ServerState.finish_round

    def planted(self: ServerState, frame: Frame, updates: list[Tensor]) -> None:
        self.divisor *= len(updates) / 5
        finish(self, frame, updates)

    monkeypatch.setattr(ServerState, "finish_round", planted)
    run = run_local(tmp_path / "run", client=failing(1, 4), clients=5, **LOUD)
    assert not math.isclose(noise_gain(run), math.sqrt(3), rel_tol=TOLERANCE)


# --- trust="aggregate": the noise is shared over the minimum number of survivors


def payload_noise(run: Run) -> list[float]:
    """Standard deviation of every payload over sigma C."""
    values = [torch.frombuffer(bytearray(payload[64:-16]), dtype=torch.float32) for payload in run.payloads.values()]
    return [float(v.std()) / (50.0 * 0.5) for v in values]


@pytest.mark.parametrize(("survivors", "failed"), [(None, ()), (4, ()), (3, ()), (3, (0,))])
def test_each_client_adds_its_share_of_the_noise(survivors, failed, tmp_path):
    settings = LOUD | {"trust": "aggregate", "min_survivors": survivors, "record_updates": True, "clients": 4}
    run = run_local(tmp_path / "run", client=failing(*failed), **settings)
    needed = 4 if survivors is None else survivors
    assert len(run.payloads) == 4 - len(failed)
    for noise in payload_noise(run):
        assert math.isclose(noise, 1 / math.sqrt(needed), rel_tol=TOLERANCE)
    assert math.isclose(noise_gain(run), math.sqrt((4 - len(failed)) / needed), rel_tol=TOLERANCE)
    assert noise_gain(run) > 1 - TOLERANCE, "the sum of the fewest survivors carries all of the noise"
    assert run.entries(3)[0].noise_multiplier == 50.0


def test_too_few_survivors_leave_the_model_alone(tmp_path):
    settings = LOUD | {"trust": "aggregate", "min_survivors": 3, "clients": 4}
    run = run_local(tmp_path / "run", client=failing(0, 2), **settings)
    assert noise_gain(run) == 0
    assert (run.checkpoint["server"]["round"], run.checkpoint["server"]["updates"]) == (1, 0)
    assert run.rows[0].answered == "1 3"
    assert [len(run.entries(client)) for client in (1, 3)] == [1, 1], "who trained is charged"


def test_three_rounds_in_a_row_without_an_update_end_the_run(tmp_path):
    with pytest.raises(RuntimeError, match="no valid update in 3 rounds in a row: client 0: .*planted failure"):
        run_local(tmp_path / "run", client=failing(0, 1), rounds=5)
    assert [row.round for row in Run(tmp_path / "run").rows] == [1, 2, 3]


# --- the ledger


def charged_before_noise(run: Path, monkeypatch: pytest.MonkeyPatch, **settings: object) -> bool:
    """Whether at every first draw of noise the charge for it was on disk."""
    add_noise, before = fedlsg.method.add_noise, []

    def watched(*args: object) -> Tensor:
        before.append(sum(len(Ledger(p, client=int(p.stem[-6:])).entries) for p in run.glob("ledger/*")))
        return add_noise(*args)

    monkeypatch.setattr(fedlsg.method, "add_noise", watched)
    run_local(run, **settings)
    return before == [1, 2, 3, 4]


def test_the_ledger_is_charged_before_noise_is_drawn(tmp_path, monkeypatch):
    assert charged_before_noise(tmp_path / "run", monkeypatch)


def test_a_charge_after_training_is_caught(tmp_path, monkeypatch):
    def planted(*args: object, charge: object, **kwargs: object) -> Tensor:
        values = fedlsg.method.client_step(*args, charge=lambda: None, **kwargs)
        charge()
        return values

    monkeypatch.setattr(simulations.client, "client_step", planted)
    assert not charged_before_noise(tmp_path / "run", monkeypatch)


def test_a_client_whose_ledger_cannot_be_written_releases_nothing(tmp_path):
    plan, directory = plan_at(tmp_path / "run", rounds=1)

    def client(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and context.node_config["partition-id"] == 1:
            directory.ledger(1).mkdir(parents=True)  # opening it for appending fails, also for root
        return app(message, context)

    with pytest.raises(ValueError, match="ledger"):  # the server cannot report epsilon either, and says so
        local.run(plan, directory, on_round=ignore, client=client)
    assert not directory.outbox(1).exists()
    assert directory.outbox(0).exists()


def test_local_steps_are_all_charged(tmp_path):
    run = run_local(tmp_path / "run", local_steps=3, rounds=1)
    (entry,) = run.entries(0)
    assert (entry.steps, entry.sample_rate, entry.noise_multiplier, entry.num_examples) == (3, 0.05, 2.0, 719)


def test_a_client_over_its_budget_does_not_train_and_is_named(tmp_path):
    budget = 1.0001 * epsilon(sample_rate=0.05, noise_multiplier=2.0, steps=2, delta=1e-5).upper
    plan, directory = plan_at(tmp_path / "run", reproducible=False, epsilon=budget)
    earlier = Entry(
        client=1, round=0, attempt=0, steps=1, sample_rate=0.05, noise_multiplier=2.0,
        clip_norm=0.5, num_examples=718, mechanism="dp",
    )  # fmt: skip
    Ledger(directory.ledger(1), client=1).charge(earlier)
    run = Run(directory.path, plan, local.run(plan, directory, on_round=ignore))
    assert [row.rejected for row in run.rows] == ["", "1"]
    assert "round 2 would pass the privacy budget" in run.rows[1].reasons
    assert "round 2: client 1: [1003] round 2 would pass" in run.log
    assert [e.round for e in run.entries(1)] == [0, 1]
    assert [e.round for e in run.entries(0)] == [1, 2]
    assert run.summary["private"]
    assert run.summary["epsilon_max"] <= budget


# --- a payload that was stored is sent again for free, a second attempt is not


class Tape:
    """A ClientApp that records payloads and is interrupted before client 1 of round 2 trains."""

    def __init__(self, *, interrupt: bool) -> None:
        self.interrupt = interrupt
        self.sent: dict[tuple[int, int], bytes] = {}

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query":
            return app(message, context)
        key = int(message.content["round"]["round"]), int(context.node_config["partition-id"])
        if self.interrupt and key == (2, 1):
            raise KeyboardInterrupt
        reply = app(message, context)
        self.sent[key] = read_update(reply.content)
        return reply


def test_an_answered_round_is_answered_again_with_the_same_bytes_and_no_charge(tmp_path):
    first, second = Tape(interrupt=True), Tape(interrupt=False)
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", client=first, clients=3, reproducible=False)
    assert set(first.sent) == {(1, 0), (1, 1), (1, 2), (2, 0)}
    run = resume_local(tmp_path / "run", client=second)
    assert set(second.sent) == {(2, 0), (2, 1), (2, 2)}
    assert second.sent[2, 0] == first.sent[2, 0]
    assert [[(e.round, e.attempt) for e in run.entries(c)] for c in range(3)] == [[(1, 0), (2, 0)]] * 3
    assert [row.round for row in run.rows] == [1, 2]
    assert run.summary["private"]


def test_a_second_attempt_of_private_training_is_charged(tmp_path, monkeypatch):
    """Interrupted between the charge and the store: the noise was drawn, so it counts."""
    pack = simulations.client.pack

    def interrupted(*args: object, round: int, **kwargs: object) -> bytes:
        if round == 2:
            raise KeyboardInterrupt
        return pack(*args, round=round, **kwargs)

    monkeypatch.setattr(simulations.client, "pack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", reproducible=False)
    monkeypatch.setattr(simulations.client, "pack", pack)
    run = resume_local(tmp_path / "run")
    assert [(e.round, e.attempt) for e in run.entries(0)] == [(1, 0), (2, 0), (2, 1)]
    assert [(e.round, e.attempt) for e in run.entries(1)] == [(1, 0), (2, 0)]
    assert run.summary["epsilon_max"] > run.summary["epsilon_median"]


def test_a_reproducible_second_attempt_is_the_same_release(tmp_path, monkeypatch, small):
    with pytest.raises(KeyboardInterrupt):
        run_local(tmp_path / "run", client=Tape(interrupt=True))
    RunDir(tmp_path / "run").outbox(0).unlink()
    run = resume_local(tmp_path / "run")
    assert run.ledgers == small.ledgers
    assert run.weights.equal(small.weights)


def test_a_payload_stored_for_another_question_is_caught(tmp_path, monkeypatch):
    """Negative control: an outbox that never looks at the question; the server sees an old round."""
    find = Outbox.find
    questions: dict[Path, str] = {}
    monkeypatch.setattr(Outbox, "find", lambda self, question: find(self, questions.setdefault(self.path, question)))
    run = run_local(tmp_path / "run")
    assert [row.rejected for row in run.rows] == ["", "0 1"]
    assert "payload round: expected 2, got 1" in run.rows[1].reasons


# --- a client on another processor derives another frame


def test_a_client_that_derives_another_frame_gets_it_sent(tmp_path, monkeypatch, small):
    make_frame = simulations.client.make_frame
    frames: list[Frame] = []

    def rounded_otherwise(*args: object, **kwargs: object) -> Frame:
        frame = make_frame(*args, **kwargs)
        frames.append(frame)
        (carried, *others) = frame.coordinates
        assert carried.carried
        moved = type(carried)(name=carried.name, shape=carried.shape, L=carried.L * (1 + 1e-7), R=carried.R)
        assert not moved.L.equal(carried.L)
        return Frame(coordinates=(moved, *others), blocks=frame.blocks)

    answers: list[bool] = []

    def client(message: Message, context: Context) -> Message:
        with monkeypatch.context() as patch:
            if context.node_config["partition-id"] == 1:
                patch.setattr(simulations.client, "make_frame", rounded_otherwise)
            reply = app(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            answers.append(reply.has_error())
            path = RunDir(tmp_path / "run").ledger(1)
            charged = len(path.read_bytes().splitlines()) - 1 if path.exists() else 0
            assert charged == len(answers) // 2, "a refused attempt costs nothing"
        return reply

    run = run_local(tmp_path / "run", client=client)
    assert answers == [True, False, True, False]
    assert run.weights.equal(small.weights)
    assert run.ledgers == small.ledgers
    assert [row.rejected for row in run.rows] == ["", ""]
    assert "clients [1] derive another frame" in run.log
    sent = 4 * frames[0].kept + 4 * sum(t.numel() for t in frames[0].carriers)  # uint32 indices, L and R
    for row, usual in zip(run.rows, small.rows, strict=True):
        assert row.downlink_bytes == usual.downlink_bytes + 4 * 4810 + sent
        assert (row.downlink_messages, row.uplink_messages) == (3, 2)
        assert row.uplink_bytes == usual.uplink_bytes
        assert row.uplink_bytes_wire > usual.uplink_bytes_wire


def test_a_sent_frame_that_is_not_the_announced_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(simulations.client, "read_frame", lambda content, derived: derived)
    make_frame = simulations.client.make_frame

    def other(*args: object, round: int, **kwargs: object) -> Frame:
        return make_frame(*args, round=round + 100, **kwargs)

    monkeypatch.setattr(simulations.client, "make_frame", other)
    run = run_local(tmp_path / "run", rounds=1)
    assert run.rows[0].rejected == "0 1"
    assert run.rows[0].reasons.count("[1002]") == 2
    assert not run.directory.ledgers.exists()
