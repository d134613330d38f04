"""The announcements of a round, one message for each selected client."""

from collections.abc import Collection, Mapping

from flwr.app import ConfigRecord, Message, MessageType

from fedlsg.state import RoundPlan
from fedlsg.strategies.protocol.downlink import Downlink, Records
from fedlsg.strategies.protocol.expectations import Expectations
from fedlsg.strategies.protocol.proofs import RECORD, held_record
from fedlsg.strategies.protocol.wire import Announcement, announced_to


class Announcer:
    """Announcements of one round."""

    def __init__(self, expectations: Expectations, downlink: Downlink, plan: RoundPlan) -> None:
        self._expectations, self._downlink, self._plan = expectations, downlink, plan
        self._same: dict[Announcement, ConfigRecord] = {}
        """Records of terms, which clients of equal terms share."""

    def announce(
        self, nodes: Mapping[int, int], framed: Collection[int], lost: Collection[int]
    ) -> list[tuple[int, Message]]:
        """A message to the node of each client.

        framed: clients that get the frame, because they derive another one.
        lost: clients that get the whole model.
        """
        records = self._downlink.records(list(nodes), self._plan.frame, framed=framed, lost=lost)
        return [
            (client, self._message(client, node, records[client])) for client, node in nodes.items()
        ]

    def _message(self, client: int, node: int, records: Records) -> Message:
        expected, plan = self._expectations, self._plan
        terms, copies = expected.terms(client, plan.phase), expected.copies
        announced = Announcement(
            round=plan.round,
            updates=expected.state.updates,
            frame_digest=plan.frame.digest,
            sample_rate=terms.sample_rate,
            noise_multiplier=terms.noise_multiplier,
            expected_batch=expected.settings.local.expected_batch,
            run_dir=expected.settings.run_dir if copies is None else "",
            isolation=plan.local.isolation,
            features=expected.settings.features,
        )
        content = announced_to(records, announced, self._same)
        if copies is not None:
            charge = plan.for_client(terms).charge(terms.num_examples)
            content[RECORD] = held_record(copies.announce(client, plan.round, charge))
        return Message(content, node, MessageType.TRAIN, group_id=str(plan.round))
