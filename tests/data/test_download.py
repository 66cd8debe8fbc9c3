"""Downloading, from a server on this machine that behaves as servers do: well, badly, and not at all."""

from __future__ import annotations

import hashlib
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from workbench import run_threads
from workbench.common import notice
from workbench.data import one_copy
from workbench.data.download import fetch
from workbench.errors import DataNotFoundError

CONTENT = bytes(range(256)) * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SPAWN = multiprocessing.get_context("spawn")


class Server(ThreadingHTTPServer):
    """Counts what is asked for; the path of the request says how to behave."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: Counter[str] = Counter()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, behaviour: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{behaviour}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        behaviour = self.path.strip("/")
        self.server.asked[behaviour] += 1
        if behaviour.startswith("slow"):
            time.sleep(0.5)
        if behaviour.endswith("missing"):
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        if behaviour == "drip":
            return self._drip()
        changed = b"\xff" + CONTENT[1:]
        self.wfile.write({"cut": CONTENT[:1000], "changed": changed}.get(behaviour, CONTENT))

    def _drip(self) -> None:
        for place in range(100):
            self.wfile.write(CONTENT[place : place + 1])
            time.sleep(0.05)

    def log_message(self, *_: object) -> None:
        """Keep the test's output clean."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:  # the client gave up, as it should
            self.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A running server, asked without any proxy."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as server:
        yield server
        server.shutdown()


def check(path: Path) -> None:
    """Refuse what is not CONTENT."""
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHA256:
        raise ValueError(f"SHA-256 is {found}, expected {SHA256}")


def files(folder: Path) -> set[str]:
    """Everything in the folder but locks, and what says why a download has failed."""
    return {path.name for path in folder.iterdir() if path.suffix not in (".lock", ".failed")}


def fetch_in_process(url: str, target: Path, start: Barrier, locks: bool) -> None:
    """One of several ranks, in a process of its own; on a file system that has locks, or has none."""
    if not locks:
        one_copy._try_lock = lambda file: True
    start.wait(30)
    fetch([url], target, check, timeout_s=30)
    check(target)


def test_download_is_whole_and_alone(server: Server, tmp_path: Path) -> None:
    """After a download the folder, made on the way, holds the checked file and no leftovers; no second request."""
    target = tmp_path / "new" / "folder" / "file"
    for _ in range(2):
        assert fetch([server.url("good")], target, check) == target
    assert target.read_bytes() == CONTENT
    assert files(target.parent) == {"file"}
    assert server.asked == {"good": 1}


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [("missing", "HTTP Error 404"), ("cut", "ended after 1,000 of 256,000 bytes"), ("changed", f"expected {SHA256}")],
)
def test_bad_answers_leave_nothing_and_are_named(server: Server, tmp_path: Path, behaviour: str, reason: str) -> None:
    """A missing, cut or changed file is never kept; the error has the address and the reason."""
    with pytest.raises(DataNotFoundError, match=reason) as caught:
        fetch([server.url(behaviour)], tmp_path / "file", check)
    assert server.url(behaviour) in str(caught.value)
    assert not files(tmp_path)


def test_next_address_is_tried(server: Server, tmp_path: Path) -> None:
    """A bad mirror costs one request; the next one serves."""
    urls = [server.url(behaviour) for behaviour in ("missing", "cut", "changed", "good", "never")]
    fetch(urls, tmp_path / "file", check)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == {"missing": 1, "cut": 1, "changed": 1, "good": 1}


def test_no_server_is_an_error_at_once(server: Server, tmp_path: Path) -> None:
    """Nobody listens: the error comes long before the deadline."""
    url = server.url("good")
    server.shutdown()
    server.server_close()
    with pytest.raises(DataNotFoundError, match=r"(?s)file could not be downloaded.*refused"):
        fetch([url], tmp_path / "file", check, timeout_s=1000.0)


def test_drip_ends_at_the_deadline(server: Server, tmp_path: Path) -> None:
    """A server that sends one byte now and then cannot hold a rank beyond its deadline."""
    with pytest.raises(DataNotFoundError, match="the deadline came after"):
        fetch([server.url("drip")], tmp_path / "file", check, timeout_s=0.3)
    assert not files(tmp_path)


@pytest.mark.parametrize("url", ["http://example.org/file", "file:///etc/hostname", "ftp://127.0.0.1/file"])
def test_only_safe_addresses_are_fetched(tmp_path: Path, url: str) -> None:
    """Plain http to another machine, local files and other protocols are refused without trying."""
    with pytest.raises(DataNotFoundError, match="only https"):
        fetch([url], tmp_path / "file", check)


@pytest.mark.parametrize(("locks", "asked"), [(True, 1), (False, 4)])
def test_four_processes_get_the_file(server: Server, tmp_path: Path, locks: bool, asked: int) -> None:
    """Four ranks start together on an empty cache: four times the right file, no leftovers; with locks, one request."""
    start = SPAWN.Barrier(4)
    args = (server.url("slow"), tmp_path / "file", start, locks)
    ranks = [SPAWN.Process(target=fetch_in_process, args=args) for _ in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(40)
    assert [rank.exitcode for rank in ranks] == [0, 0, 0, 0]
    assert server.asked == {"slow": asked}
    assert files(tmp_path) == {"file"}


def test_a_download_that_fails_is_tried_by_one_rank(server: Server, tmp_path: Path) -> None:
    """The ranks that waited for it get its reasons, and ask no server again; a later call does."""
    urls = [server.url(behaviour) for behaviour in ("slow-missing", "cut")]

    def rank() -> str:
        with pytest.raises(DataNotFoundError) as caught:
            fetch(urls, tmp_path / "file", check)
        return str(caught.value)

    said = run_threads(4, rank)
    assert all("HTTP Error 404" in each and "ended after 1,000" in each for each in said), said
    assert server.asked == {"slow-missing": 1, "cut": 1}
    fetch([server.url("good")], tmp_path / "file", check)
    assert files(tmp_path) == {"file"}


def test_interrupt_leaves_nothing(server: Server, tmp_path: Path) -> None:
    """Ctrl-C in the middle removes the unfinished file and frees the lock."""

    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch([server.url("good")], tmp_path / "file", interrupt)
    assert not files(tmp_path)
    fetch([server.url("good")], tmp_path / "file", check, timeout_s=1)


def test_a_long_download_says_how_far_it_is(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that is replaced where a user looks, and nothing elsewhere."""
    monkeypatch.setattr(notice, "_SIGN_S", 0.1)
    for stream, said in (("1", True), ("0", False)):
        monkeypatch.setenv("WORKBENCH_STREAM", stream)
        with pytest.raises(DataNotFoundError):
            fetch([server.url("drip")], tmp_path / "numbers", check, timeout_s=0.5)
        out = capsys.readouterr().out
        assert ("\rdownloading numbers: 0.0 MB, 0 s" in out) is said
        assert not out.strip("\r").rpartition("\r")[2].strip()
