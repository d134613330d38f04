"""Replies that are not private updates: of @app.evaluate, @app.query and other handlers of an app.

Such a reply is computed from private data without noise, so no epsilon covers it. It stays on the
node, unless the owner allows replies to this kind of message. Each reply that leaves is an entry,
of mechanism "none", in a second ledger next to the client's. The ledger of private updates keeps
its epsilon, and the number of the other replies is shown next to it.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from flwr.app import Context, Message, MessageType

from fedlsg.accounting.checks import MAX_STEPS
from fedlsg.config.units import CLIENT
from fedlsg.privacy import Entry, Ledger
from fedlsg.simulations.client.node.refusals import TermsError

NODE_KEY = "replies-without-noise"
"""The key of the node config."""
WITHOUT_NOISE = "replies_without_noise"
"""The name of the number of such replies, and of the argument that allows them."""
KINDS = (MessageType.EVALUATE, MessageType.QUERY)
"""The kinds of messages whose replies may be allowed."""

App = Callable[[Message, Context], Message]


def kinds_of(text: object) -> tuple[str, ...]:
    """The kinds of messages that a text names, "evaluate", "query" or both. Raises ValueError."""
    kinds = text.replace(",", " ").split() if isinstance(text, str) else None
    if kinds is None or not set(kinds) <= set(KINDS):
        raise ValueError(
            f"expected {WITHOUT_NOISE}={text!r} as 'evaluate', 'query' or 'evaluate query': what "
            "replies may leave without noise; leave it out for none"
        )
    return tuple(kinds)


def allowed_on(node_config: Mapping[str, object], of_app: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that the node's owner allows, or those of the app if the node config names none.

    Raises TermsError for unknown kinds.
    """
    if NODE_KEY not in node_config:
        return of_app
    try:
        return kinds_of(node_config[NODE_KEY])
    except ValueError as error:
        raise TermsError(f"node config: {error}") from None


def book_of(client: int, ledger: Path) -> Ledger:
    """The ledger of replies without noise that is next to ``ledger``, of the same client."""
    return Ledger(ledger.with_name(f"without-noise-{ledger.name}"), client=client)


def other_reply(
    message: Message,
    context: Context,
    app: App,
    of_app: tuple[str, ...],
    book: Callable[[], Ledger] | None,
) -> Message:
    """The app's reply to a message that asks for no private update, if the owner allows it.

    of_app: the kinds that the app allows.
    book: opens the ledger that counts it, before the app sees the message; None does not count.

    Raises TermsError if the reply is not allowed; the app does not run then.
    """
    kind = message.metadata.message_type.partition(".")[0]
    if kind not in allowed_on(context.node_config, of_app):
        raise TermsError(
            f"no reply to a message of type {message.metadata.message_type!r}: what @app.{kind} "
            "returns is made of private data, and no epsilon covers it. Evaluate on the server's "
            "own rows (evaluate_fn, fraction_evaluate=0.0), or let the node's owner allow it: "
            f"{NODE_KEY}='{kind}' in the node config"
        )
    if book is not None:
        _count(book(), message, str(context.run_id))
    return answer_of(app, message, context)


def answer_of(app: App, message: Message, context: Context) -> Message:
    """The app's reply. Its errors become a RuntimeError, whose text may leave the node."""
    try:
        return app(message, context)
    except Exception as error:
        raise RuntimeError(f"the app's @app.{message.metadata.message_type} failed") from error


def _count(book: Ledger, message: Message, run: str) -> None:
    """Charge one reply to the ledger of replies without noise."""
    configs = message.content.config_records.values()
    announced = next((c["server-round"] for c in configs if "server-round" in c), 0)
    # the server may send any value
    round = announced if type(announced) is int and 0 <= announced <= MAX_STEPS else 0
    book.charge(
        Entry(
            client=book.client,
            round=round,
            attempt=book.next_attempt(round, run),
            steps=1,
            sample_rate=1.0,
            noise_multiplier=0.0,
            clip_norm=math.inf,
            num_examples=1,
            mechanism="none",
            run=run,
            unit=CLIENT.name,
        )
    )
