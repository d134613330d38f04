"""Records of an app's ``PrivateStep`` for ``fedlsg attack``: a folder for each client, as a run.

Each step is a round of that run: its frame, the weights before it, its payload, a copy of its
ledger entry, and, in a SECRET folder of their own, its rows. The adversary of such a record sees
every step. A server sees less: the result of all steps of a round together.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedlsg.carriers.powersgd import encode
from fedlsg.frame import Frame
from fedlsg.gradients import trainable
from fedlsg.method import Positions
from fedlsg.owner_only import make_folder
from fedlsg.payload import pack
from fedlsg.privacy import Entry, Ledger
from fedlsg.simulations.planning.base.prepare import prepare
from fedlsg.simulations.planning.trust import keep_code
from fedlsg.simulations.run.simulate import workload_name
from fedlsg.simulations.settings.settings import as_config, permit_code
from fedlsg.simulations.settings.with_preset import resolve
from fedlsg.simulations.storage.run_directory import RunDir
from fedlsg.simulations.storage.updates import payload_files, round_folder, write_frame
from fedlsg.simulations.workloads import Workload
from fedlsg.state import Phase, RoundPlan
from fedlsg.strategies.private_step import PrivateStep

AppWorkload = str | Workload | Callable[[], Workload]
SHARED_SETTINGS = (
    "workload",
    "method",
    "mechanism",
    "clip",
    "clip-norm",
    "norms-clip-weight",
    "classifier-clip-weight",
    "sample-rate",
)
"""An attack reads them once for all steps of a folder. Each step has its own frame and charge."""


def record(
    step: PrivateStep, folder: str | Path, *, workload: AppWorkload, client: int = 0
) -> None:
    """Record each release of ``step`` in ``folder``, for ``fedlsg attack FOLDER``.

        record(step, f"records/client-{k}", workload="my_app/task.py:workload", client=k)

    workload: describes the app's model, data and loss, as ``fedlsg.simulate`` takes it;
    ``FILE.py:NAME`` for an attack in another process. Its ``partition`` is the app's: the rows of
    client k are its k-th list, in the order of the data that ``step`` was given. A folder is
    continued: each round of the app has a new ``PrivateStep``. Its epsilon includes pruning, which
    is not recorded as a step.
    Guarantee: training, noise and ledger are as without a record. ``updates-truth`` in the folder
    names private rows: it is for the owner only, no epsilon covers it, and it is for simulations.
    Raises ValueError for a step with groups; a workload whose model or rows are not the step's, and
    a ``client`` that its partition does not have; a method with probes; settings that a run refuses
    (``resolve``, ``prepare``); and a folder of steps with other ``SHARED_SETTINGS``.
    """
    if step.num_persons != step.num_examples:
        raise ValueError(
            "a record is read by attacks on batches of examples, and this step has groups: leave "
            "groups= or the record out"
        )
    recording = Recording(
        folder,
        client,
        {
            **step.given,
            "method": step.method.name,
            "workload": workload_name(workload),
            "sample_rate": step.sample_rate,
            "rounds": step.steps,
            "seed": step.seed,
            "delta": step.delta,
            "noise_multiplier": step.noise_multiplier or None,  # 0: its mechanism has no noise
        },
    )
    recording.check(step.model, step.num_examples)

    def note(plan: RoundPlan, rows: Positions, values: Tensor) -> None:
        entry_fields = plan.charge(step.num_examples)
        if plan.phase is Phase.PRUNING:
            recording.copy_entry(plan.round, entry_fields)
        else:
            recording.keep(plan.frame, values, step.model, rows, entry_fields, plan.noise_std)

    step.watch(note)


class Recording:
    """The folder of one client, see ``record``.

    base: the run whose form the folder has.
    client: its number.
    rows: of the client in the workload's partition.
    run: the folder.
    """

    def __init__(self, folder: str | Path, client: int, settings: Mapping[str, Any]) -> None:
        """Make or continue a folder.

        ``settings``: of the run by name, before they are resolved; None is not given.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        permit_code(given)
        self.base = prepare(
            resolve({**given, "engine": "local", "device": "cpu", "record_updates": True})
        )
        if self.base.method.carrier.source is not None:
            raise ValueError(
                f"method {self.base.method.name!r} has carriers of probes, whose source is unknown "
                "here: choose a method without probes"
            )
        if not 0 <= client < len(self.base.parts):
            raise ValueError(
                f"expected 0 <= {client=} < {len(self.base.parts)}, the clients of the workload's "
                "partition"
            )
        self.client, self.rows = client, self.base.parts[client]
        self.run = RunDir(Path(folder).expanduser().resolve())
        make_folder(self.run.path)
        if self.run.config.exists():
            self._check_same()
        else:
            self.run.write_config(self.base.settings)
            keep_code(self.run.path, as_config(self.base.settings), self.base.own_code)

    def _check_same(self) -> None:
        """Raise ValueError if the folder has steps with other settings."""
        before, now = as_config(self.run.read_config()), as_config(self.base.settings)
        for name in SHARED_SETTINGS:
            if before.get(name) != now.get(name):
                raise ValueError(
                    f"{self.run.path} is a record of steps with {name}={before.get(name)}, these "
                    f"have {name}={now.get(name)}, and an attack reads it once for all: give them "
                    "another folder"
                )

    def check(self, model: nn.Module, num_examples: int) -> None:
        """Raise ValueError for a model, or a number of rows, that are not the workload's."""
        expected = _shapes(self.base.initial.model())
        trained = _shapes(model)
        if expected != trained:
            name, shape = min(set(expected.items()) ^ set(trained.items()))
            raise ValueError(
                f"the workload builds another model than the app trains: {name} {list(shape)} is "
                "only in one"
            )
        if num_examples != len(self.rows):
            raise ValueError(
                f"client {self.client} has {len(self.rows)} rows in the workload's partition, and "
                f"the app trains on {num_examples}: give the workload the partition of the app"
            )

    def copy_entry(self, round: int, entry_fields: Mapping[str, Any]) -> None:
        """Copy the step's ledger entry; its fields are those of ``RoundPlan.charge``."""
        ledger = Ledger(self.run.ledger(self.client), client=self.client)
        attempt = ledger.next_attempt(round)
        ledger.charge(Entry(client=self.client, round=round, attempt=attempt, **entry_fields))

    def keep(
        self,
        frame: Frame,
        values: Tensor,
        model: nn.Module,
        positions: Positions,
        entry_fields: Mapping[str, Any],
        noise_std: float,
    ) -> None:
        """Keep the next release: the payload last, so that an interrupted one is ignored.

        values: of the payload, with noise.
        positions: of its SECRET batch in the client's rows.
        noise_std: of each value.
        """
        round = max(payload_files(self.run.path), default=0) + 1
        wire = frame.wire
        sent = encode(values, frame)
        self.copy_entry(round, entry_fields)
        self.run.save_truth(round, self.client, self.rows[positions])
        self.run.save_weights(
            round, torch.cat([p.detach().flatten().float() for p in trainable(model).values()])
        )
        # the entries of a run, see ``frame_facts`` of ``server.recorder``
        about_client = {"noise_std": noise_std, "expected_batch": self.base.local.expected_batch}
        write_frame(
            round_folder(self.run.path, round),
            frame,
            {
                "round": round,
                "phase": "training",
                "method": self.base.method.name,
                "codec": self.base.uplink.codec.name,
                "indices": "derived",
                "most": self.base.method.compression.most(wire.size),
                "local_steps": 1,
                "divisor": self.base.local.expected_batch,
                "clients": {str(self.client): about_client},
            },
        )
        payload = pack(
            sent, wire.indices, size=wire.size, round=round, digest=frame.digest, blocks=wire.blocks
        )
        self.run.save_update(round, self.client, payload)


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(W.shape) for name, W in trainable(model).items()}
