"""Who is answered: a browser of this machine that knows the token.

Every user of a machine reaches loopback, and every page in a browser can send requests to it. So the first part of each
path is a random token. A request also needs the name of this machine as its host (a name of another site that points
here has another one), and must not come from a page of another origin. There are two answers and no files: no path
leads anywhere. A connection carries one request, for ``SECONDS`` at most, and there are ``MOST`` at a time: those who
read slowly, or not at all, hold nothing else up.
"""

import hmac
import json
import math
import secrets
import socket
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Timer
from time import monotonic, sleep
from typing import Any
from urllib.parse import urlsplit

from simulations.live.page import LivePage

HOST = "127.0.0.1"
NAMES = {HOST, "localhost"}
SECONDS = 15.0
"""A connection ends after this time, whatever its other end does."""
PATIENCE = 5.0
"""A question about the state is answered when it changes, or after this time."""
MOST = 16
CONTENT = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'"
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{CONTENT}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves one page on a free port of loopback. ``url`` has the token: it is for the owner's eyes only."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: LivePage) -> None:
        super().__init__((HOST, 0), Answer)
        self.page, self.token = page, secrets.token_urlsafe(32)
        self.asked = -math.inf
        """When a browser last asked with the token."""
        self._places = BoundedSemaphore(MOST)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        limit = Timer(SECONDS, _hang_up, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error, and a request is written nowhere: it has the token."""


def _hang_up(request: socket.socket) -> None:
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: LiveServer
    timeout = SECONDS

    def do_GET(self) -> None:
        name = self._asked_for()
        if name is None:
            return self._send(404, b"not found\n", "text/plain")
        self.server.asked = monotonic()
        if name == "state":
            return self._state()
        return self._send(200, self.server.page.give(), "text/html")

    def _asked_for(self) -> str | None:
        """What an allowed request asks for; None for all others, which are told nothing."""
        origin, site = self.headers.get("Origin"), self.headers.get("Sec-Fetch-Site", "none")
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or _name_of(hosts[0]) not in NAMES or origin not in (None, f"http://{hosts[0]}"):
            return None
        if site not in ("none", "same-origin") and self.headers.get("Sec-Fetch-Dest") != "document":
            return None
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        return name if known and slash and name in ("", "state") else None

    def _state(self) -> None:
        """The version of the page, as soon as it is another one than that of the question."""
        page, seen, until = self.server.page, self.path.partition("?")[2], monotonic() + PATIENCE
        while page.made[0] == seen and not page.over and monotonic() < until:
            sleep(0.1)
        said = {"over": page.over, "version": page.made[0]}
        self._send(200, json.dumps(said).encode(), "application/json")

    def _send(self, status: int, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8"}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        return "fedlsg"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: a request has the token."""


def _name_of(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
