"""The settings of a run in its messages: an app's own run config keeps its own keys.

The server adds one record to each of its messages. Clients read their settings from it, as those of fedlsg's own app
read them from the run config. A deployed client compares them with its terms in the same way.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from simulations.grids.refusals import SettingsError

RECORD = "fedlsg.settings"


def announcement(config: Mapping[str, Any]) -> ConfigRecord:
    """The record for settings by name."""
    return ConfigRecord(dict(config))


def announced(content: RecordDict) -> dict[str, Any]:
    """The settings in a message. Raises SettingsError for a message without them."""
    record = content.config_records.get(RECORD)
    if record is None:
        raise SettingsError(
            "the server announces no settings: it needs fedlsg.flower.Strategy of the same version of fedlsg"
        )
    return dict(record)


class AnnouncingGrid(Grid):
    """``inner``, with the settings in each message that is sent. All but sending is the inner grid's."""

    def __init__(self, inner: Grid, record: ConfigRecord) -> None:
        self.inner, self.record = inner, record

    def set_run(self, run: Any) -> None:
        self.inner.set_run(run)

    @property
    def run(self) -> Any:
        return self.inner.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self.inner.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self.inner.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.inner.push_messages(self._announced(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.inner.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.inner.send_and_receive(self._announced(messages), timeout=timeout)

    def _announced(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        for message in sent:
            if message.has_content():
                message.content[RECORD] = self.record
        return sent
