"""Laws of a federation: what it equals, how its noise adds up, when its ledger is charged."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from flwr.app import Context, Message
from torch import Tensor

import simulations.client.model
import simulations.client.train
from fedlsg.frame import Frame
from fedlsg.randomness import public_generator, reproducible_stream
from fedlsg.state.server_state import ServerState
from simulations.client.app import app
from simulations.grids.virtual import ClientFunction
from simulations.plan.plan import Plan
from strategies.federation.wire import Announcement
from tests.simulations.support.runs import Run, run_local

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
    """One power step (Ito et al. 2023, Alg. 2)."""
    draw = torch.randn(rank, W.shape[1], generator=public_generator(0, "carriers", round, "hidden.weight"))
    L = gram_schmidt(W @ draw.double().T)
    return L, gram_schmidt((L.T @ W).T).T


def central_loop(plan: Plan, *, rank: int | None, third_term: bool = True) -> Tensor:
    """The weights after DP-SGD with momentum on all data, in float64; hidden.weight in carriers if a rank is given."""
    mechanism, q, server = plan.method.mechanism, plan.local.sample_rate, plan.method.server
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
                velocity[name] = server.momentum * velocity[name] + mean[name]
                w -= server.learning_rate * velocity[name]
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


# --- every client draws Poisson batches at its own rate


def test_batches_are_drawn_at_the_rate_that_the_ledger_is_told(tmp_path):
    """batch_size over unequal partitions: q_k = B / N_k; the truth beside the updates says which rows were drawn."""
    settings = {"batch_size": 60, "sample_rate": None, "partition": "dirichlet", "record_updates": True}
    run = run_local(tmp_path / "run", clients=3, local_steps=2, rounds=1, **settings)
    sizes = [len(part) for part in run.plan.parts]
    assert max(sizes) > 1.5 * min(sizes)
    for client, part in enumerate(run.plan.parts):
        (entry,) = run.entries(client)
        assert (entry.sample_rate, entry.num_examples, entry.steps) == (60 / len(part), len(part), 2)
        sampler = reproducible_stream(0, "sampler", client, 1)
        drawn = [part[sampler.bernoulli(len(part), entry.sample_rate)] for _ in range(2)]
        truth = np.load(run.path / "updates-truth" / "round-000001" / f"client-{client:06d}.npy")
        assert truth.tolist() == torch.cat(drawn).tolist()


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


def failing(*partitions: int) -> ClientFunction:
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

    def planted(self: ServerState, frame: Frame, updates: list[Tensor], **noise: float) -> None:
        self.divisor *= len(updates) / 5
        finish(self, frame, updates, **noise)

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
        assert math.isclose(noise, 1 / math.sqrt(needed - 1), rel_tol=TOLERANCE), "one of them reads the sum"
    assert math.isclose(noise_gain(run), math.sqrt((4 - len(failed)) / (needed - 1)), rel_tol=TOLERANCE)
    assert noise_gain(run) > 1 - TOLERANCE, "the sum of the fewest survivors carries all of the noise"
    assert run.entries(3)[0].noise_multiplier == 50.0


# --- a client on another processor derives another frame


def test_a_client_that_derives_another_frame_gets_it_sent(tmp_path, monkeypatch, small):
    derived_frame = simulations.client.model.derived_frame
    frames: list[Frame] = []

    def rounded_otherwise(*args: object) -> Frame:
        frame = derived_frame(*args)
        frames.append(frame)
        (carried, *others) = frame.coordinates
        assert carried.carried
        moved = type(carried)(name=carried.name, shape=carried.shape, L=carried.L * (1 + 1e-7), R=carried.R)
        assert not moved.L.equal(carried.L)
        return Frame(coordinates=(moved, *others), blocks=frame.blocks)

    answers: list[bool] = []

    def client(message: Message, context: Context) -> Message:
        with monkeypatch.context() as patch:
            if context.node_config["partition-id"] == 1:  # on a machine of its own
                patch.setattr(simulations.client.model, "derived_frame", rounded_otherwise)
                patch.setattr(simulations.client.train, "process", simulations.client.train.process.__wrapped__)
            reply = app(message, context)
        if context.node_config["partition-id"] == 1 and message.metadata.message_type == "train":
            answers.append(reply.has_error())
        return reply

    run = run_local(tmp_path / "run", client=client)
    assert answers == [True, False, True, False]
    assert run.weights.equal(small.weights)
    assert [e.round for e in run.entries(1)] == [1, 2], "a refused attempt costs nothing"
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
    monkeypatch.setattr(simulations.client.model, "read_frame", lambda content, derived: derived)
    derived_frame = simulations.client.model.derived_frame

    def other(here: object, announced: Announcement, content: object) -> Frame:
        return derived_frame(here, replace(announced, round=announced.round + 100), content)

    monkeypatch.setattr(simulations.client.model, "derived_frame", other)
    run = run_local(tmp_path / "run", rounds=1)
    assert run.rows[0].rejected == "0 1"
    assert run.rows[0].reasons.startswith("0 1: [1002]")
    assert not run.directory.charges.clients()
