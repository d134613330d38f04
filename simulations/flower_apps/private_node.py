"""``fedlsg.flower.PrivateNode`` and ``reply``, for apps that train with ``fedlsg.PrivateStep``.

The node is a mod that lets only what ``reply`` made leave the client.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from pathlib import Path

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from torch import nn

from fedlsg.gradients import trainable
from fedlsg.privacy import Ledger, load
from fedlsg.privacy.limits import held_to
from fedlsg.simulations.client.client_app import refusal
from fedlsg.simulations.client.node.other_replies import (
    WITHOUT_NOISE,
    answer_of,
    book_of,
    kinds_of,
    other_reply,
)
from fedlsg.simulations.client.node.refusals import OverBudgetError
from fedlsg.simulations.flower_apps.app_code import AppCode
from fedlsg.simulations.flower_apps.node_terms import checked_limits, ledger_on, limits_on
from fedlsg.simulations.flower_apps.private_update import (
    NUM_EXAMPLES,
    Numbers,
    answer,
    asks_for_update,
    round_of,
)
from fedlsg.simulations.flower_apps.whole_update import (
    DOWNLINK_EACH,
    KEY,
    OURS,
    UPLINK_EACH,
    State,
    as_arrays,
    dense_bytes,
    folder_of,
    read_terms,
    to_cpu,
)
from fedlsg.strategies.private_step import PrivateStep
from fedlsg.strategies.protocol.wire import NO_REASON
from fedlsg.user_code.failure import without_exit


class PrivateNode:
    """A mod for a ClientApp that trains with ``fedlsg.PrivateStep``: limits, and what may leave.

        node = fedlsg.flower.PrivateNode(epsilon=8.0, delta=1e-5, least_noise_multiplier=1.0,
                                         ledger="/srv/ledgers")
        app = ClientApp(mods=[node])

        @app.train()
        def train(msg, context):
            step = fedlsg.PrivateStep(..., ledger=node.ledger(context))
            ...
            return fedlsg.flower.reply(step, msg)

    epsilon, delta: what this client's data may spend, over all entries of its ledger.
    least_noise_multiplier: of each step. The server may choose noise and number of steps within
    them. Keys of the node config make them stricter: ``epsilon-max`` with ``delta-max``, and
    ``noise-multiplier-min``.
    ledger: an absolute folder that lasts; a deployed node may have it as ``ledger-dir`` in its node
    config. Simulated clients have one file for each run there.
    replies_without_noise: as ``private_update`` has it.
    Put it first in ``mods``: what a mod before it adds to a reply leaves without noise.

    Guarantee: what leaves is what ``reply`` made, whatever ``@app.train`` returns; errors of the
    app leave as one constant text; every other message is refused unless the owner allows it. A
    step beyond the limits is refused before its batch is drawn, and nothing is charged for it. So
    is training by the code of another folder than the app's.
    So is a reply with weights that other code than private steps has changed, as ``reply`` says.
    Not covered: that the app failed; what the app's own word ``other_weights=True`` allows.
    Raises ValueError for numbers that are out of range, and a relative ledger.
    """

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        least_noise_multiplier: float,
        ledger: str | Path | None = None,
        replies_without_noise: str = "",
    ) -> None:
        self._limits = checked_limits(epsilon, delta, least_noise_multiplier)
        self._others = kinds_of(replies_without_noise)
        self._folder = folder_of(ledger, "ledger")
        self._code = AppCode.of_caller()

    def ledger(self, context: Context) -> Path:
        """The file of this client's ledger, for ``PrivateStep(ledger=...)``."""
        client, path = self._place(context)
        if not load(path, None)[1].heads:  # new: write the header, with the client's number
            Ledger(path, client=client).begin()
        return path

    def __call__(self, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        """Handle a message, as Flower calls a mod."""
        try:
            with without_exit():
                if asks_for_update(message):
                    return self._private_reply(message, context, call_next)
                return other_reply(
                    message,
                    context,
                    call_next,
                    self._others,
                    lambda: book_of(*self._place(context)),
                )
        except Exception as error:
            return refusal(error, message, on_run_disk=False, reason=NO_REASON)

    def _private_reply(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """The reply that ``@app.train`` made with ``reply``, within the limits of this node."""
        if self._code is not None:
            self._code.check()
        client, path = self._place(context)
        limits = limits_on(context, self._limits)
        with held_to(limits, path) as held, _open(client, path) as door:
            try:
                answer_of(call_next, message, context)
            except Exception:
                if held.refused is None:
                    raise
                raise OverBudgetError(held.refused) from None
        if door.content is None:
            raise RuntimeError("the app's @app.train did not call fedlsg.flower.reply")
        return Message(door.content, reply_to=message)

    def _place(self, context: Context) -> tuple[int, Path]:
        return ledger_on(context, self._folder, "PrivateNode")


class _Door:
    """The way by which one call of ``@app.train`` gives its reply to the node.

    client: its number.
    ledger: the file of its ledger.
    content: of the reply; None until ``reply`` is called.
    """

    def __init__(self, client: int, ledger: Path) -> None:
        self.client = client
        self.ledger = ledger
        self.content: RecordDict | None = None


_DOOR: ContextVar[_Door | None] = ContextVar("door", default=None)
"""The door of the current call of ``@app.train``."""


@contextmanager
def _open(client: int, ledger: Path) -> Iterator[_Door]:
    """Have a door in the block."""
    door = _Door(client, ledger)
    token = _DOOR.set(door)
    try:
        yield door
    finally:
        _DOOR.reset(token)


def reply(
    step: PrivateStep,
    message: Message,
    *,
    weighted_by_key: str = NUM_EXAMPLES,
    model: Callable[[], nn.Module] | None = None,
    other_weights: bool = False,
) -> Message:
    """The reply of an ``@app.train`` that trained W_t with ``fedlsg.PrivateStep``, with epsilon.

        for _ in range(10):
            step.step(batches)
        return fedlsg.flower.reply(step, message)

    The app's first mod is a ``PrivateNode``, which lets this reply leave as it is here: additions
    of later code stay on the node.

    The result of private steps is private by their ledger, so no noise is added. Trained weights
    leave as they are; or, if the server has ``fedlsg.flower.PrivateUpdates(..., unit="example")``,
    as a payload of the update in the round's frame. Other tensors, buffers too, are returned as
    they were received: private inputs may have been written to them.
    The weights are compared: those at the first step with those of the message, and those of now,
    and before each step, with what the last step left. Where other code has changed them, there is
    no reply: no epsilon counts what that code has read.
    other_weights: your word that the code that changed them has read no private rows, such as a
    head that this node has trained by private steps, an average, or a clamp.
    model: builds the app's model. Replies are weighed by the number of examples, or of persons
    (``groups``), which is public in a PrivateStep. A strategy of Flower alone averages the clients'
    ``epsilon``; PrivateUpdates reports the largest. Next to it are ``replies_without_noise``, the
    number of replies that no epsilon covers, and ``uplink_bytes_per_client`` and
    ``downlink_bytes_per_client``, the bytes of the weights.
    Raises ValueError outside of a PrivateNode, for another ledger than the node's (the next round
    would not count this one), and for weights that are not those of the message's one ArrayRecord.
    """
    door = _DOOR.get()
    if door is None:
        raise ValueError(
            "reply() is for an app whose first mod is the node's own: "
            "ClientApp(mods=[fedlsg.flower.PrivateNode(epsilon=..., delta=..., "
            "least_noise_multiplier=...)]); without it other replies would leave without noise"
        )
    if step.ledger is None or step.ledger.resolve() != door.ledger.resolve():
        raise ValueError(
            f"this PrivateStep charges {step.ledger or 'a ledger that ends with it'}, and the "
            "node's ledger would not count what it spent: give "
            "PrivateStep(ledger=node.ledger(context)), where node is the app's PrivateNode"
        )
    if not other_weights:
        _check_own_changes(step, message)
    numbers: Numbers = {
        weighted_by_key: step.num_persons,
        "epsilon": step.epsilon(),
        WITHOUT_NOISE: len(book_of(door.client, door.ledger).entries),
        "steps": step.steps_taken,
    }
    answer_message = _reply(step, message, numbers, model)
    door.content = deepcopy(answer_message.content)
    return answer_message


def _check_own_changes(step: PrivateStep, message: Message) -> None:
    """Raise ValueError if code outside of private steps has changed the weights that leave."""
    records = [record for name, record in message.content.array_records.items() if name not in OURS]
    received = records[0].to_torch_state_dict() if len(records) == 1 else {}
    if changed := step.other_changes(received):
        raise ValueError(
            f"other code than private steps has changed {', '.join(changed[:3])}, and no epsilon "
            "counts what it has read: load the weights of the message, and train them by "
            "step.step() alone; if that code has read no private rows (a head that this node has "
            "trained by private steps, an average, a clamp), say so with reply(step, message, "
            "other_weights=True)"
        )


def _reply(
    step: PrivateStep,
    message: Message,
    numbers: Numbers,
    model: Callable[[], nn.Module] | None,
) -> Message:
    """The reply: weights for a strategy of Flower, a payload for PrivateUpdates."""
    after = to_cpu(step.model.state_dict())
    if KEY not in message.content.config_records:
        trained = _trained(step, after, message)
        # the weights were received with the same names and shapes
        numbers |= {name: dense_bytes(trained) for name in (UPLINK_EACH, DOWNLINK_EACH)}
        content = RecordDict({"arrays": as_arrays(trained), "metrics": MetricRecord(numbers)})
        return Message(content, reply_to=message)
    terms = read_terms(message.content)
    if terms.unit != "example" or model is None:
        raise ValueError(
            f"the server's PrivateUpdates has unit={terms.unit!r}: an app with PrivateStep needs "
            "unit='example' there, and reply(step, message, model=...), the function that builds "
            "the app's model"
        )
    here = round_of(model, message.content, terms)
    return answer(message, here.pack(here.values(after), message.metadata.dst_node_id), numbers)


def _trained(step: PrivateStep, after: State, message: Message) -> State:
    """The received state with the trained parameters in place of the received ones."""
    records = list(message.content.array_records.values())
    before = records[0].to_torch_state_dict() if len(records) == 1 else {}
    if before.keys() != after.keys():
        raise ValueError(
            "expected the message to have one ArrayRecord, the state_dict() of the model that was "
            "trained"
        )
    return {name: after[name] if name in trainable(step.model) else before[name] for name in after}
