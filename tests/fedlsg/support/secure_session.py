"""One honest attempt whose messages a test may change before it passes them on."""

from collections.abc import Mapping

from fedlsg.secure_sum import GivenUp, Server, Terms
from fedlsg.secure_sum import messages as wire
from tests.fedlsg.support.secure_rounds import body_of, make_clients, make_terms, random_inputs

WHO, OTHER = 10, 13
EVERYONE = frozenset(make_terms(8, survivors=7, colluders=1).clients)


class Session:
    """An honest attempt whose messages a test may change: 8 clients, m = 7, t = 1, k = h = 3."""

    def __init__(self, terms: Terms | None = None) -> None:
        self.terms = terms or make_terms(8, survivors=7, colluders=1)
        self.clients = make_clients(self.terms)
        self.server = Server(self.terms)
        self.inputs = random_inputs(self.terms, 0)

    def rosters(self) -> dict[int, bytes]:
        return told(self.server.rosters((w, c.keys()) for w, c in self.clients.items()))

    def deliveries(self) -> dict[int, bytes]:
        return told(
            self.server.deliveries(
                [(w, self.clients[w].shares(m)) for w, m in self.rosters().items()]
            )
        )

    def masked(self) -> dict[int, bytes]:
        for who, delivery in self.deliveries().items():
            self.clients[who].accept(delivery)
        return {who: client.masked(self.inputs[who]) for who, client in self.clients.items()}

    def survivors(self) -> dict[int, bytes]:
        return told(self.server.survivors(self.masked().items()))

    def requests(self) -> dict[int, bytes]:
        return told(
            self.server.requests(
                [(w, self.clients[w].agree(m)) for w, m in self.survivors().items()]
            )
        )


def told(sent: Mapping[int, bytes] | GivenUp) -> dict[int, bytes]:
    assert not isinstance(sent, GivenUp)
    return dict(sent)


def with_table(session: Session, message: bytes, kind: int, change, width: int) -> bytes:
    """The message with other entries, sealed again."""
    body, size = body_of(message), wire.set_bytes(session.terms)
    due = [
        int.from_bytes(body[at : at + 4], "little") for at in range(size + 2, len(body), 4 + width)
    ]
    table = wire.read_table(body[size:], width, due, of="test")
    change(table)
    return wire.write(kind, WHO, session.terms, body[:size] + wire.write_table(table))


def told_of(session: Session, survivors: set[int], *, bits: int = 0) -> bytes:
    """The message that names these survivors."""
    members = int.from_bytes(wire.write_set(survivors, session.terms), "little") | bits
    return wire.write(
        wire.SURVIVORS,
        WHO,
        session.terms,
        members.to_bytes(wire.set_bytes(session.terms), "little"),
    )
