"""Replies that are not private updates: to @app.evaluate, @app.query and other handlers of an app.

What such a handler returns is made of private data without noise, so no epsilon covers it. It stays
on the node, unless the owner lets it leave by the kind of message. Each reply that leaves is then
an entry, of mechanism "none", in a ledger of its own next to the client's: that of private updates
keeps its epsilon, and the number of the others is shown next to it.
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
"""The number of such replies, next to an epsilon; and the argument that allows them."""
ALLOWED = (MessageType.EVALUATE, MessageType.QUERY)

App = Callable[[Message, Context], Message]


def kinds_of(given: object) -> tuple[str, ...]:
    """The kinds of messages that a text names, "evaluate", "query" or both. Raises ValueError."""
    kinds = given.replace(",", " ").split() if isinstance(given, str) else None
    if kinds is None or not set(kinds) <= set(ALLOWED):
        raise ValueError(
            f"expected {WITHOUT_NOISE}={given!r} as 'evaluate', 'query' or 'evaluate query': what "
            "replies may leave without noise; leave it out for none"
        )
    return tuple(kinds)


def allowed_on(node_config: Mapping[str, object], of_app: tuple[str, ...]) -> tuple[str, ...]:
    """The kinds that the node's owner allows; where the node config says none, those of the app.

    Raises TermsError for a key that names others.
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

    book: opens the ledger in which it is counted, before the app sees the message; None counts
    none. Raises TermsError where it is not allowed; the app does not run then.
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
    """The app's reply. Whatever it raises gets one type here: what fedlsg raises itself leaves with
    its text.
    """
    try:
        return app(message, context)
    except Exception as error:
        raise RuntimeError(f"the app's @app.{message.metadata.message_type} failed") from error


def _count(book: Ledger, message: Message, run: str) -> None:
    configs = message.content.config_records.values()
    told = next((c["server-round"] for c in configs if "server-round" in c), 0)
    # of a server that may say anything
    round = told if type(told) is int and 0 <= told <= MAX_STEPS else 0
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
