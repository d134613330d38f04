"""The Flower ClientApp: two messages, ``query`` (who are you) and ``train`` (one round).

A client always replies: an error becomes a reply that names it, because a silent client would hold up the round. Of an
error near private data only the type leaves: its text may quote a batch size or a value. The client's log has it all.
"""

import traceback
from dataclasses import replace
from functools import lru_cache
from logging import ERROR

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from simulations.client import FrameDiffersError, OverBudgetError, answer, process
from simulations.engines import actors, import_path, prompt
from simulations.engines.grouped import answer_groups
from simulations.published import from_run_config
from simulations.replica import ReplicaDiffersError, ReplicaMissingError, is_shared
from simulations.settings import Settings
from strategies.code_identity import check_same_code
from strategies.wire import (
    FAILED,
    FRAME_DIFFERS,
    OVER_BUDGET,
    REPLICA_DIFFERS,
    REPLICA_MISSING,
    failure,
    identity,
    update,
)

app = ClientApp()
answer_groups(app, forget=process.cache_clear)
import_path.workers_import_as_driver()
actors.restart_dead()
prompt.hand_on_at_once()


def read_context(context: Context) -> tuple[Settings, int]:
    """Settings and partition; where no number of clients is set, every node of the federation is one."""
    config = tuple(sorted(context.run_config.items()))
    return _settings(config, int(context.node_config["num-partitions"])), int(context.node_config["partition-id"])


@lru_cache(maxsize=4)
def _settings(config: tuple[tuple[str, str | int | float | bool | bytes], ...], nodes: int) -> Settings:
    settings = from_run_config(dict(config))
    return replace(settings, clients=nodes) if settings.clients is None else settings


@app.query()
def query(message: Message, context: Context) -> Message:
    """This client's partition and its declared number of examples. Refused where the server runs other code."""
    try:
        check_same_code(message.content, "the server")
        settings, partition = read_context(context)
        parts = process(settings).base.parts
        examples = len(parts[partition]) if partition < len(parts) else 0
        return Message(identity(partition, examples), reply_to=message)
    except Exception as error:  # nothing was trained yet: the text speaks of settings and files
        log(ERROR, traceback.format_exc())
        return failure(f"{type(error).__name__}: {error}", FAILED, message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One round's payload."""
    try:
        settings, partition = read_context(context)
        payload = answer(settings, partition, message.content, shared=is_shared(context))
        return Message(update(payload, partition), reply_to=message)
    except FrameDiffersError as error:
        return failure(str(error), FRAME_DIFFERS, message)
    except ReplicaMissingError as error:
        return failure(str(error), REPLICA_MISSING, message)
    except ReplicaDiffersError as error:
        return failure(str(error), REPLICA_DIFFERS, message)
    except OverBudgetError as error:
        return failure(str(error), OVER_BUDGET, message)
    except Exception as error:
        log(ERROR, traceback.format_exc())
        return failure(f"{type(error).__name__}, see the client's log", FAILED, message)
