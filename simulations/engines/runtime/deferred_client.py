"""The ClientApp of a simulation; it imports the real one with the first message.

Flower's simulation process loads the ClientApp before it starts Ray, only to hand it to the actors. If it were the real
app, Ray would wait for the import of torch, which the ServerApp's thread does meanwhile.
"""

from typing import Any

from flwr.app import Message
from flwr.clientapp import ClientApp

from simulations.grids import actors, import_path, prompt


class DeferredApp(ClientApp):
    """``simulations.client.app:app`` under another name."""

    def __call__(self, *args: Any, **kwargs: Any) -> Message:
        from simulations.client.app import app

        return app(*args, **kwargs)


app = DeferredApp()
import_path.workers_import_as_driver()
actors.restart_dead()
prompt.hand_on_at_once()
