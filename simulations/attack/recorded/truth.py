"""The batches behind recorded payloads: for scoring attacks and for what a threat model grants, never for attacking."""

from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedlsg.attacks.observation import Knowledge, Observation, ThreatModel
from simulations.attack.recorded.observations import Record
from simulations.rundir.files import sealed
from simulations.workloads.base.workload import Inputs


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """The examples of one observation: rows of the training split, their inputs and labels."""

    rows: Int64[Tensor, " batch"]
    inputs: Inputs
    labels: Int64[Tensor, " batch"]

    def grant(self, threat: ThreatModel) -> Knowledge:
        """What the threat model lets the adversary know; labels are sorted, so that no order leaks."""
        if threat.labels == "known":
            return Knowledge(labels=self.labels.sort().values, examples=len(self.labels))
        return Knowledge(examples=len(self.labels) if threat.examples == "known" else None)


def truth_of(record: Record, seen: Observation) -> Truth:
    """The batches of an observation's clients, one after the other.

    Raises ValueError if the run kept none: then nothing can be scored.
    """
    rows = torch.cat([_rows(record, seen.round, client) for client in seen.clients])
    inputs, labels = record.base.workload.train.batch(rows)
    return Truth(rows=rows, inputs=inputs, labels=labels)


def batch_sizes(record: Record) -> dict[int, dict[int, int]]:
    """Examples in each recorded payload, by round and client."""
    return {
        round: {client: len(_rows(record, round, client)) for client in clients}
        for round, clients in record.payloads.items()
    }


def _rows(record: Record, round: int, client: int) -> Int64[Tensor, " batch"]:
    path = record.run.path / "updates-truth" / f"round-{round:06d}" / f"client-{client:06d}.npy"
    try:
        rows = torch.from_numpy(sealed.load_array(path))
    except FileNotFoundError:
        raise ValueError(f"{path} is missing: without the batches an attack cannot be scored") from None
    except (OSError, ValueError, EOFError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if rows.is_floating_point() or rows.ndim != 1 or not bool(torch.isin(rows, record.base.parts[client]).all()):
        raise ValueError(f"{path} names rows that client {client} does not hold: it belongs to other data or settings")
    return rows.long()
