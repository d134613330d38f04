"""The Flower ClientApp: two messages, ``query`` (who are you) and ``train`` (one round).

A client always replies: an error becomes a reply that names it, because a silent client would hold up the round.
"""

import traceback
from logging import ERROR

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from simulations.client import FrameDiffersError, OverBudgetError, answer, process
from simulations.settings import from_mapping
from strategies.wire import FAILED, FRAME_DIFFERS, OVER_BUDGET, failure, identity, update

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """This client's partition and its declared number of examples."""
    try:
        partition = int(context.node_config["partition-id"])
        sizes = process(from_mapping(context.run_config)).base.sizes
        if partition >= len(sizes):
            raise ValueError(f"the federation has more nodes than the run has clients ({len(sizes)})")
        return Message(identity(partition, sizes[partition]), reply_to=message)
    except Exception as error:
        log(ERROR, traceback.format_exc())
        return failure(error, FAILED, message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round's payload."""
    try:
        partition = int(context.node_config["partition-id"])
        payload = answer(from_mapping(context.run_config), partition, message.content)
        return Message(update(payload, partition), reply_to=message)
    except FrameDiffersError as error:
        return failure(error, FRAME_DIFFERS, message)
    except OverBudgetError as error:
        return failure(error, OVER_BUDGET, message)
    except Exception as error:
        log(ERROR, traceback.format_exc())
        return failure(error, FAILED, message)
