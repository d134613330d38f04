"""The page that follows a run is answered to its owner's browser alone, and nothing that a reader
does holds it up.
"""

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from fedlsg.simulations.run.live import write_entry
from fedlsg.simulations.run.live_page import LivePage, LiveServer


@pytest.fixture
def server(stopped) -> Iterator[LiveServer]:
    """The page of a run that is going on."""
    page = LivePage(stopped.path)
    page.refresh()
    with LiveServer(page) as made:
        Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        made.shutdown()


def ask(server: LiveServer, path: str, **headers: str) -> tuple[int, bytes]:
    """Status and content; ``TOKEN`` in a path is the server's, ``PORT`` in a header its port."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    port = str(server.server_address[1])
    said = {"Host": "127.0.0.1:PORT"} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    connection.putrequest("GET", path.replace("TOKEN", server.token), skip_host=True)
    for name, value in said.items():
        connection.putheader(name, value.replace("PORT", port))
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_owner_sees_the_run(server):
    status, content = ask(server, "/TOKEN/")
    assert (status, b"Running: 1 of" in content, b"The run is going on" in content) == (
        200,
        True,
        True,
    )
    # from the file
    assert ask(server, "/TOKEN/", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200
    assert (
        ask(server, "/TOKEN/state", Host="localhost:PORT", Sec_Fetch_Site="same-origin")[0] == 200
    )


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/state",
        "/x/",
        "/TOKE/",
        "/TOKENx/",
        "/TOKEN",
        "/TOKEN/run.log",
        "/TOKEN/../TOKEN/",
        "/TOKEN/%2e%2e/",
        "/TOKEN//etc/passwd",
        "/?TOKEN",
    ],
)
def test_other_paths_are_told_nothing(path, server):
    assert ask(server, path) == (404, b"not found\n")


@pytest.mark.thinned(7)
@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:PORT"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "[::"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Dest": "iframe"},
        {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Dest": "script"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
def test_other_sites_are_told_nothing(headers, server):
    assert ask(server, "/TOKEN/", **headers) == (404, b"not found\n")


def test_it_listens_on_loopback_and_writes_no_log(server, capfd):
    assert server.server_address[0] == "127.0.0.1"
    ask(server, "/TOKEN/")
    with socket.create_connection(server.server_address[:2]) as gone:  # a browser that goes away
        gone.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    ask(server, "/wrong/")
    assert capfd.readouterr() == ("", "")


def test_an_entry_that_others_could_read_is_removed(tmp_path, server, monkeypatch):
    def opened(path: Path, *content: bytes, **said: bool) -> None:
        path.write_bytes(b"".join(content))
        path.chmod(0o644)

    monkeypatch.setattr("fedlsg.simulations.run.live.write_atomically", opened)
    with pytest.raises(PermissionError, match="others could read"):
        write_entry(tmp_path / "live.html", server.url)
    assert not (tmp_path / "live.html").exists()
