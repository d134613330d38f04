"""The settings of a run in its messages: an app's own run config keeps its own keys.

The server adds one record to each of its messages. Clients read their settings from it, as those of fedlsg's own app
read them from the run config. A deployed client compares them with its terms in the same way.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from simulations.grids.virtual import SettingsError
from strategies.federation.watched_grid import WrappedGrid

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


class AnnouncingGrid(WrappedGrid):
    """``inner``, with the settings in each message that is sent."""

    def __init__(self, inner: Grid, record: ConfigRecord) -> None:
        super().__init__(inner)
        self.record = record

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return super().push_messages(self._announced(messages))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return super().send_and_receive(self._announced(messages), timeout=timeout)

    def _announced(self, messages: Iterable[Message]) -> list[Message]:
        sent = list(messages)
        for message in sent:
            if message.has_content():
                message.content[RECORD] = self.record
        return sent
