"""What the ``PrivateStep`` of an app gives away, kept for ``fedlsg attack``: a folder a client, in
a run's form.

Each step is a round of that run: its frame, the weights it began with, its payload, a copy of its
ledger entry, and apart, SECRET, the rows behind it. The adversary of such a record sees every step.
A server sees less: what the steps of a round made together.
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
OF_ALL = (
    "workload",
    "method",
    "mechanism",
    "clip",
    "clip-norm",
    "norms-clip-weight",
    "classifier-clip-weight",
    "sample-rate",
)
"""What the steps of a folder have in common: an attack reads it from its settings. Frames, charges
are of each.
"""


def record(
    step: PrivateStep, folder: str | Path, *, workload: AppWorkload, client: int = 0
) -> None:
    """Keep what each step of ``step`` releases in ``folder``, which ``fedlsg attack FOLDER`` reads;
    for simulations.

        record(step, f"records/client-{k}", workload="my_app/task.py:workload", client=k)

    workload: describes the app's model, data and loss, as ``fedlsg.simulate`` takes it;
    ``FILE.py:NAME`` for an attack in another process. Its ``partition`` is the app's: the rows of
    client k are its k-th list, in the order of the data that ``step`` was given. A folder goes on
    where it ended: each round of the app has a new ``PrivateStep``. Its epsilon has pruning, which
    is no step of it.
    Guarantee: training, noise and ledger are as without it. ``updates-truth`` in the folder names
    private rows: it is for the owner only, and no epsilon covers it.
    Raises ValueError for a workload that is not the step's, a method with probes or of the user's
    own, and a folder of steps of another method, clip norm or sample rate.
    """
    if step.num_persons != step.num_examples:
        raise ValueError(
            "a record is read by attacks on batches of examples, and this step has groups: leave "
            "one of them out"
        )
    settings = {name: value for name, value in step.given.items() if value is not None}
    kept = Recording(
        folder,
        client,
        {
            **settings,
            "method": step.method.name,
            "workload": workload_name(workload),
            "sample_rate": step.sample_rate,
            "rounds": step.steps,
            "seed": step.seed,
            "delta": step.delta,
            "noise_multiplier": step.noise_multiplier or None,
        },
    )
    kept.check(step.model, step.num_examples)

    def note(plan: RoundPlan, rows: Positions, values: Tensor) -> None:
        charge = plan.charge(step.num_examples)
        if plan.phase is Phase.PRUNING:
            kept.charge(plan.round, charge)
        else:
            kept.keep(plan.frame, values, step.model, rows, charge, plan.noise_std)

    step.watch(note)


class Recording:
    """The folder of one client; see ``record``. ``settings``: raw ones of the run that it has the
    form of.
    """

    def __init__(self, folder: str | Path, client: int, settings: Mapping[str, Any]) -> None:
        permit_code(settings)
        given = {name: value for name, value in settings.items() if value is not None}
        self.base = prepare(
            resolve({**given, "engine": "local", "device": "cpu", "record_updates": True})
        )
        if self.base.method.carrier.source is not None:
            raise ValueError(
                f"method {self.base.method.name!r} has carriers of probes, whose source an app has "
                "not told"
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
        before, now = as_config(self.run.read_config()), as_config(self.base.settings)
        for name in OF_ALL:
            if before.get(name) != now.get(name):
                raise ValueError(
                    f"{self.run.path} is a record of steps with {name}={before.get(name)}, these "
                    f"have {name}={now.get(name)}, and an attack reads it once for all: give them "
                    "another folder"
                )

    def check(self, model: nn.Module, num_examples: int) -> None:
        """Raise ValueError for a model, or a number of rows, that are not the workload's."""
        wanted, found = (
            {name: tuple(p.shape) for name, p in trainable(one).items()}
            for one in (self.base.initial.model(), model)
        )
        if wanted != found:
            odd = sorted(set(wanted.items()) ^ set(found.items()))[0]
            raise ValueError(
                f"the workload builds another model than the app trains: {odd[0]} {list(odd[1])} "
                "is only in one"
            )
        if num_examples != len(self.rows):
            raise ValueError(
                f"client {self.client} has {len(self.rows)} rows in the workload's partition, and "
                f"the app trains on {num_examples}: give the workload the partition of the app"
            )

    def charge(self, round: int, charge: Mapping[str, Any]) -> None:
        """Copy a ledger entry."""
        book = Ledger(self.run.ledger(self.client), client=self.client)
        book.charge(
            Entry(client=self.client, round=round, attempt=book.next_attempt(round), **charge)
        )

    def keep(
        self,
        frame: Frame,
        values: Tensor,
        model: nn.Module,
        rows: Positions,
        charge: Mapping[str, Any],
        noise_std: float,
    ) -> None:
        """Keep the next release: the payload last, so that an interrupted one is ignored."""
        round, wire = max(payload_files(self.run.path), default=0) + 1, frame.wire
        sent = encode(values, frame)
        self.charge(round, charge)
        self.run.save_truth(round, self.client, self.rows[rows])
        self.run.save_weights(
            round, torch.cat([p.detach().flatten().float() for p in trainable(model).values()])
        )
        local = {"noise_std": noise_std, "expected_batch": self.base.local.expected_batch}
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
                "clients": {str(self.client): local},
            },
        )
        payload = pack(
            sent, wire.indices, size=wire.size, round=round, digest=frame.digest, blocks=wire.blocks
        )
        self.run.save_update(round, self.client, payload)
