"""The live page of a run, and the HTTP server on loopback that serves it while the run trains.

``LivePage`` is the page at this moment: that of report.html with a line and a script that follow
the run. ``LiveServer`` serves it, in the process of ``live``.

Only a browser of this machine that knows the token gets an answer. Every user of a machine reaches
loopback, and every page in a browser can send requests to it. So the first part of each path is a
random token. A request must also have the name of this machine as its host (a foreign name that
points here is refused), and must not come from a page of another origin. There are two answers, and
no path leads to a file. A connection has one request, for ``CONNECTION_SECONDS`` at most, and there
are ``MOST_CONNECTIONS`` at a time: slow readers delay nobody else.
"""

import hmac
import json
import math
import os
import secrets
import socket
import sys
import webbrowser
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Timer
from time import monotonic, sleep, thread_time
from typing import Any
from urllib.parse import urlsplit

from markupsafe import Markup

from fedlsg.simulations.report.pages.template import BODY, LIVE_LINE, LIVE_START

ENTRY = "live.html"
"""The file that leads the owner's browser to the page; for the owner only, and removed at the end.
"""
LAST_SECONDS = 5.0
"""Time after the run in which a browser can get the last state."""
WATCHED = ("config.toml", "rounds.csv", "summary.json")
"""Files of a run that its page shows."""
PACE = 10.0
"""Pause between two pages, over the CPU time of making one: a tenth of a processor at most."""
BUSY = "The run is going on. This page follows it."
OVER = "The run has ended, and nothing follows it any more. This page stays as {} in its folder."
STOPPED = (
    "The run was interrupted, and nothing follows it any more. To continue it: fedlsg resume {}"
)
GONE = "No answer any more. The run may have been killed: fedlsg runs says so."
SCRIPT = """(() => {
const bar = () => document.getElementById("live"), pause = ms => new Promise(done => setTimeout(done, ms));
const busy = () => document.querySelector("figure:hover, main :focus");
const policy = page => page.querySelector("meta[http-equiv]")?.content;
async function change() {
  const answer = await fetch("?", {cache: "no-store"});
  if (!answer.ok) throw new Error(answer.status);
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (policy(next) !== policy(document)) { location.reload(); return pause(60000); }
  const open = [...document.querySelectorAll("details")].map(one => one.open);
  document.title = next.title;
  document.body.replaceChildren(...next.body.childNodes);
  document.querySelectorAll("details").forEach((one, place) => one.open = open[place] ?? one.open);
  window.fedlsg?.start(document);
}
async function follow() {
  for (let missed = 0; missed < 5;) {
    try {
      const answer = await fetch("state?" + bar().dataset.version, {cache: "no-store"});
      if (!answer.ok) throw new Error(answer.status);
      const state = await answer.json();
      missed = 0;
      if (state.version !== bar().dataset.version && (state.over || !busy())) await change();
      if (state.over) return;
      await pause(300);
    } catch { missed += 1; await pause(700); }
  }
  bar().textContent = bar().dataset.gone;
}
follow();
})();"""
"""The script that follows a run: it replaces the body of the page, or loads the page again if its
scripts, and so its policy, have changed."""


@dataclass
class LivePage:
    """The page of one run directory. One thread calls ``refresh`` and ``finish``; others read it.

    folder: the run directory.
    made: the version of the page, and the page as HTML.
    over: whether it is the page of the end.
    delivered: whether a browser has that page.
    """

    folder: Path
    made: tuple[str, bytes] = ("", b"")
    over: bool = False
    delivered: bool = False
    _next: float = 0.0
    """Time, by ``monotonic``, before which the page is not made again."""

    def __post_init__(self) -> None:
        self.made = (
            "starting",
            following_html(LIVE_START.replace("SCRIPT", SCRIPT), "starting", BUSY),
        )

    def give(self) -> bytes:
        """The page for a browser."""
        version, content = self.made
        self.delivered = self.delivered or version == "over"
        return content

    def prepare(self) -> None:
        """Import the modules that make the page: it takes seconds, and the server answers before."""
        import fedlsg.simulations.report.page_of_run.run_page  # noqa: F401

    def refresh(self) -> None:
        """Make the page again if files of the run have changed, but not more often than ``PACE``."""
        version = "-".join(_mark(self.folder / name) for name in WATCHED)
        if version != self.made[0] and monotonic() >= self._next:
            before = thread_time()
            with suppress(Exception):  # a file is being replaced: the next time succeeds
                self.made = version, self._html(version, "running")
            self._next = monotonic() + PACE * (thread_time() - before)

    def finish(self) -> None:
        """Make the page of the end. The process of the run is gone, so nothing changes any more."""
        with suppress(Exception):
            self.made = "over", self._html("over", None)
        self.over = True

    def _html(self, version: str, status: str | None) -> bytes:
        """The page; ``status``: of a run without a summary, None at the end."""
        from fedlsg.simulations.report.page_of_run.run_page import run_page
        from fedlsg.simulations.storage.results import read_run

        result = read_run(self.folder, status=status)
        ended = OVER.format("report.html") if result.summary else STOPPED.format(self.folder)
        return following_html(run_page(result, follow=SCRIPT), version, BUSY if status else ended)


def following_html(page: str, version: str, words: str) -> bytes:
    """A page with the line, ``words``, that the script shows and updates."""
    head, body, rest = page.partition(BODY)
    return "".join(
        [head, body, Markup(LIVE_LINE).format(version=version, words=words, gone=GONE), rest]
    ).encode()


def _mark(path: Path) -> str:
    """A text that changes with the file."""
    try:
        status = path.stat()
    except OSError:
        return "0"
    return f"{status.st_mtime_ns:x}.{status.st_size:x}"


HOST = "127.0.0.1"
NAMES = {HOST, "localhost"}
"""Names of this machine in a request."""
CONNECTION_SECONDS = 15.0
"""Time after which a connection is closed."""
ANSWER_SECONDS = 5.0
"""Time after which a request for the state is answered, if the state does not change before."""
MOST_CONNECTIONS = 16
CONTENT = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "connect-src 'self'"
)
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"{CONTENT}; base-uri 'none'; form-action 'none'; frame-ancestors "
    "'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LiveServer(ThreadingHTTPServer):
    """Serves one page on a free port of loopback; ``url`` has the token, for the owner only."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, page: LivePage) -> None:
        super().__init__((HOST, 0), Answer)
        self.page, self.token = page, secrets.token_urlsafe(32)
        # time, by ``monotonic``, of the last request with the token
        self.asked = -math.inf
        self._places = BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        limit = Timer(CONNECTION_SECONDS, _hang_up, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a browser that left is no error, and a request has the token."""


def _hang_up(request: socket.socket) -> None:
    """Close a connection that takes too long."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: LiveServer
    timeout = CONNECTION_SECONDS

    def do_GET(self) -> None:
        name = self._allowed_name()
        if name is None:
            return self._send(404, b"not found\n", "text/plain")
        self.server.asked = monotonic()
        if name == "state":
            return self._state()
        return self._send(200, self.server.page.give(), "text/html")

    def _allowed_name(self) -> str | None:
        """The last part of the path of an allowed request; None for all others."""
        origin = self.headers.get("Origin")
        site = self.headers.get("Sec-Fetch-Site", "none")
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or _host_name(hosts[0]) not in NAMES:
            return None
        if origin not in (None, f"http://{hosts[0]}"):
            return None
        if site not in ("none", "same-origin") and self.headers.get("Sec-Fetch-Dest") != "document":
            return None
        token, slash, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        known = hmac.compare_digest(token.encode(), self.server.token.encode())
        return name if known and slash and name in ("", "state") else None

    def _state(self) -> None:
        """Send the version of the page, as soon as it differs from the version in the request."""
        page = self.server.page
        seen = self.path.partition("?")[2]
        until = monotonic() + ANSWER_SECONDS
        while page.made[0] == seen and not page.over and monotonic() < until:
            sleep(0.1)
        state = {"over": page.over, "version": page.made[0]}
        self._send(200, json.dumps(state).encode(), "application/json")

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
        """Log nothing: a request has the token."""


def _host_name(host: str) -> str | None:
    """The name in HOST:PORT; None if it is no host."""
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def has_browser() -> bool:
    """Whether there is a screen for a browser, or the user named one.

    Without a screen ``webbrowser`` would start a browser of the terminal, which waits for keys.
    """
    if "BROWSER" not in os.environ and sys.platform.startswith("linux"):
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_file(path: Path) -> bool:
    """Open a file in the user's browser; False if that fails.

    The process list then shows the name of the file, not the token in it.
    """
    try:
        return has_browser() and webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False
