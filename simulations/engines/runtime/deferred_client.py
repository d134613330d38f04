"""The ClientApp of a simulation, without what it needs: that is imported with the first message.

Flower's simulation process loads the ClientApp before it starts Ray, and only to hand it on to the actors: with the app
itself, Ray would wait for torch, which the ServerApp's thread imports meanwhile.
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
