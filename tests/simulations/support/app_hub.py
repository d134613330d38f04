"""A hub of Flower apps on loopback, for Flower 1.41: it gives one app and the signatures that the
app has.
"""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

KEY_ID = "fpk_review"


@dataclass(kw_only=True)
class Hub:
    """``app`` is what is downloaded, ``signatures`` what the hub says of it. Both may be changed at
    any time.
    """

    port: int = 0
    app: bytes = b""
    signatures: tuple[dict[str, object], ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def sign(key: Ed25519PrivateKey, app: bytes) -> dict[str, object]:
    """The signature of an app: over the time, in 8 bytes, and its SHA-256."""
    now = int(time.time())
    signature = key.sign(now.to_bytes(8, "big") + hashlib.sha256(app).digest())
    text = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return {"public_key_id": KEY_ID, "signature": text, "signed_at": now}


def trusted_entities(key: Ed25519PrivateKey) -> str:
    """The file that a SuperNode reads: which key it trusts."""
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return f"{KEY_ID}: {public} reviewer\n"


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that answers while the body runs."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            link = {"fab_url": f"{hub.url}/app", "verifications": list(hub.signatures)}
            self._answer(json.dumps(link).encode())

        def do_GET(self) -> None:
            self._answer(hub.app)

        def _answer(self, body: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the test reads what the processes say."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.port = server.server_port
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
