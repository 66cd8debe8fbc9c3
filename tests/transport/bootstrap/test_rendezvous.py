"""Ranks that find each other at a board which strangers read and write."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from workbench.common.secret.seal import derived
from workbench.config import Settings
from workbench.errors import LaunchError
from workbench.transport.bootstrap import rendezvous, shared_secret
from workbench.transport.bootstrap.rendezvous import Session, find, opened, seal
from workbench.transport.bootstrap.shared_secret import SecretFile
from workbench.transport.bootstrap.values import Problem, decode, encode
from workbench.transport.gpu.select import GpusSeen
from workbench.transport.shm.arena import Ticket

SECRET = b"the secret of this very job ...."


class Dictionary:
    """A board in memory."""

    where = "the board"

    def __init__(self) -> None:
        self.found: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """See Board."""
        return self.found.get(name)

    def write(self, name: str, value: bytes) -> None:
        """See Board."""
        self.found[name] = value


def together(n: int, function: Callable[[int], Any]) -> list[Any]:
    """What it returns or raises, by rank; each in a thread of its own."""

    def run(rank: int) -> Any:
        try:
            return function(rank)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            return error

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(run, range(n)))


def meet(board: Any, n: int, secrets: dict[int, bytes] | None = None, timeout_s: float = 20.0) -> list[Any]:
    """Each rank's session, or what it raised."""
    own = secrets or {}
    return together(n, lambda rank: find(board, own.get(rank, SECRET), rank, n, {"pid": rank}, timeout_s))


@pytest.mark.parametrize("n", [1, 2, 5])
def test_ranks_find_each_other(n: int) -> None:
    """All have one key, which is another one each time, and know what each has said about itself."""
    board = Dictionary()
    keys = []
    for _ in range(3):
        sessions = meet(board, n)
        assert [hello["pid"] for hello in sessions[0].hellos] == list(range(n))
        assert len({session.key for session in sessions}) == 1
        keys.append(sessions[0].key)
        assert (
            together(n, lambda rank, all_=sessions: _told(all_[rank], rank, n))
            == [[b"0", b"1", b"2", b"3", b"4"][:n]] * n
        )
    assert len(set(keys)) == 3
    assert not [name for name, value in board.found.items() if name.startswith("hello") and value]


def _told(session: Session, rank: int, n: int) -> list[bytes]:
    session.write(f"1/{rank}", str(rank).encode())
    return session.read([f"1/{each}" for each in range(n)], lambda: None)


def test_a_rank_that_gave_up_comes_again() -> None:
    """One that reached its deadline alone meets the others when they come, whatever it has left on the board."""
    board = Dictionary()
    for _ in range(3):
        with pytest.raises(LaunchError, match=r"rank 1 did not come to the board\. Call init\(\) on every rank"):
            find(board, SECRET, 0, 2, {}, timeout_s=0.05)
    assert len({session.key for session in meet(board, 2)}) == 1


def test_old_words_are_not_believed_again() -> None:
    """A board that gives back what was written in an earlier meeting keeps ranks from meeting, and that is all."""
    said: dict[str, list[bytes]] = {}

    class Remembers(Dictionary):
        def write(self, name: str, value: bytes) -> None:
            said.setdefault(name, []).append(value)
            super().write(name, value)

    meet(Remembers(), 2)
    old = said["hello/1"][0]

    class Replays(Dictionary):
        def read(self, name: str) -> bytes | None:
            return old if name == "hello/1" else super().read(name)

    found = find_alone(Replays())
    assert isinstance(found, LaunchError), found
    assert "read different values" in str(found)


def find_alone(board: Any) -> Any:
    """What rank 0 makes of a board on which somebody plays the other rank."""
    return together(1, lambda rank: find(board, SECRET, 0, 2, {}, timeout_s=0.5))[0]


def test_another_secret_is_an_error_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank says where it found what it does not believe, and what may be the reason."""
    monkeypatch.setattr(rendezvous, "_DOUBT_S", 0.2)
    for error in meet(Dictionary(), 2, {1: b"another"}):
        assert isinstance(error, LaunchError)
        assert "hello/" in str(error)
        assert "is not sealed with the job's secret" in str(error)


def test_what_is_overwritten_or_moved_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's value counts under its own name only; anything else there is an error in the end."""
    monkeypatch.setattr(rendezvous, "_DOUBT_S", 0.1)
    board = Dictionary()
    session, _ = meet(board, 2)
    session.write("1/0", b"mine")
    board.write(f"{session.name}/1/1", board.found[f"{session.name}/1/0"])
    with pytest.raises(LaunchError, match="is not sealed with the job's secret"):
        session.read(["1/0", "1/1"], lambda: None)


def test_a_seal_holds() -> None:
    """Not one bit of the body, the name, the key or the seal itself can change."""
    sealed = seal(b"key", "name", b"body")
    assert opened(b"key", "name", sealed) == b"body"
    assert opened(b"kez", "name", sealed) is None
    assert opened(b"key", "nam", seal(b"key", "name", b"body")) is None
    assert opened(b"key", "nam", b"e".join([sealed[:32], sealed[32:]])) is None
    long = bytes(100)
    assert opened(long + b"a", "name", seal(long + b"b", "name", b"body")) is None
    for i in range(len(sealed)):
        assert opened(b"key", "name", sealed[:i] + bytes([sealed[i] ^ 1]) + sealed[i + 1 :]) is None
        assert opened(b"key", "name", sealed[:i]) is None
    assert derived(b"key", "a", b"b", b"c") != derived(b"key", "a", b"bc")


# --- the secret's file ---------------------------------------------------------------------------------


def secret_files(board: Any, folders: list[list[Path]], timeout_s: float = 5.0) -> list[Any]:
    """Each rank's, or what it raised; ``folders`` by rank."""
    return together(len(folders), lambda r: SecretFile(board, r, folders[r], timeout_s, lambda: None))


def test_all_ranks_get_rank_0_s_secret(tmp_path: Path) -> None:
    """Through a file that only this user reads, and that is gone afterwards."""
    files = secret_files(Dictionary(), [[tmp_path / "a"]] * 3)
    assert len({file.secret for file in files}) == 1
    assert len(files[0].secret) == 64
    (path,) = (tmp_path / "a").iterdir()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    for file in files:
        file.remove()
    assert not list((tmp_path / "a").iterdir())


def test_a_folder_that_cannot_be_had_gives_way_to_the_next(tmp_path: Path) -> None:
    """One that others may write to, and one that is none."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "file").touch()
    folders = [tmp_path / "open", tmp_path / "file", tmp_path / "good"]
    files = secret_files(Dictionary(), [folders] * 2)
    assert files[0].secret == files[1].secret
    assert not list((tmp_path / "open").iterdir())
    files[0].remove()


def a_link(path: Path, other: Path) -> None:
    """The file is a link to another one."""
    path.rename(other)
    path.symlink_to(other)


WRONG: dict[str, Callable[[Path, Path], object]] = {
    "others may read it": lambda path, other: path.chmod(0o644),
    "a link": a_link,
    "not there": lambda path, other: path.unlink(),
    "another user's": lambda path, other: os.chown(path, 65534, 65534),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_file_that_others_could_have_made_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A rank that does not see the file, or cannot trust it, says so, and what to do."""
    if how == "another user's" and os.geteuid():
        pytest.skip("only root can give files away")
    monkeypatch.setattr(shared_secret, "_PATIENCE_S", 0.2)
    board, folder = Dictionary(), tmp_path / "jobs"
    first = SecretFile(board, 0, [folder], 5.0, lambda: None)
    (path,) = folder.iterdir()
    WRONG[how](path, tmp_path / "other")
    with pytest.raises(LaunchError, match=r"rank 1 does not see the file.*WORKBENCH_SECRET"):
        SecretFile(board, 1, [folder], 5.0, lambda: None)
    first.remove()


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "x" * 32, "\xff"])
def test_a_name_that_is_none_is_not_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Whatever a stranger writes on the board in rank 0's stead."""
    monkeypatch.setattr(shared_secret, "_PATIENCE_S", 0.1)
    board = Dictionary()
    board.write("ticket", name.encode("latin-1"))
    with pytest.raises(LaunchError, match="rank 1"):
        SecretFile(board, 1, [tmp_path], 0.3, lambda: None)


def test_the_next_ticket_counts(tmp_path: Path) -> None:
    """A ticket that an earlier job has left is overwritten by rank 0; the others wait for that."""
    board = Dictionary()
    board.write("ticket", b"0" * 32)
    later = threading.Timer(0.3, lambda: first.append(SecretFile(board, 0, [tmp_path / "a"], 5.0, lambda: None)))
    first: list[SecretFile] = []
    later.start()
    assert SecretFile(board, 1, [tmp_path / "a"], 5.0, lambda: None).secret == first[0].secret
    first[0].remove()


def test_rank_0_may_come_late_to_the_next_meeting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first meeting's ticket names a file that is gone. It is taken off, so the others wait for the next one."""
    monkeypatch.setattr(shared_secret, "_PATIENCE_S", 0.1)
    board, folders = Dictionary(), [tmp_path / "a"]
    SecretFile(board, 0, folders, 5.0, lambda: None).remove()
    again: list[SecretFile] = []
    later = threading.Timer(0.5, lambda: again.append(SecretFile(board, 0, folders, 5.0, lambda: None)))
    later.start()
    secret = SecretFile(board, 1, folders, 5.0, lambda: None).secret
    later.join()
    assert secret == again[0].secret
    again[0].remove()


def test_old_files_are_tidied_away(tmp_path: Path) -> None:
    """What jobs have left whose ranks never met; nothing else."""
    (tmp_path / "a").mkdir(mode=0o700)
    old, other = tmp_path / "a" / ("0" * 32), tmp_path / "a" / "notes"
    for path in (old, other):
        path.touch()
        os.utime(path, (time.time() - 1e6,) * 2)
    SecretFile(Dictionary(), 0, [tmp_path / "a"], 5.0, lambda: None).remove()
    assert not old.exists()
    assert other.exists()


# --- values as bytes -----------------------------------------------------------------------------------

VALUES = [
    None,
    ("a", b"\x00\xff", 1, 1.5, True, (), ((),)),
    (Settings(timeline="ü", peer_timeout_s=float("inf")), GpusSeen(("x", "y"), 22703, True, "why", 7)),
    Ticket(1, 2, 3, b"token", 1 << 60),
    Problem("no"),
]


@pytest.mark.parametrize("value", VALUES)
def test_values_come_back_equal(value: Any) -> None:
    """What ranks exchange, with sequences as tuples."""
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04.",
        b"{}",
        b'{"Settings":[1]}',
        b'{"Ticket":["1",2,3,{"bytes":""},4]}',
        b'{"Seen":[[1],0,false,"",0]}',
        b'{"bytes":"xx"}',
        b'{"bytes":5}',
        b'{"object":[]}',
        b'{"Problem":["a"],"b":1}',
        b"[" * 100_000,
    ],
)
def test_what_is_of_no_known_shape_is_refused(data: bytes) -> None:
    """ValueError, and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011 - of many kinds
        decode(data)


def test_nothing_else_is_encoded() -> None:
    """A value of an unknown class is a mistake of ours."""
    with pytest.raises(TypeError, match="do not exchange a set"):
        encode({1})


class Counts(Dictionary):
    """How many requests there were."""

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0

    def read(self, name: str) -> bytes | None:
        """See Board."""
        self.requests += 1
        return super().read(name)

    def write(self, name: str, value: bytes) -> None:
        """See Board."""
        self.requests += 1
        super().write(name, value)


def requests(n: int) -> int:
    """Of a meeting in which no rank looks in vain more than once: each is asked in turn."""
    board = Counts()
    ranks = [rendezvous._Meeting(board, SECRET, rank, n, {}) for rank in range(n)]
    left = set(range(n))
    while left:
        for rank in sorted(left):
            ranks[rank].read_roll() if rank else ranks[0].collect()
            if ranks[rank].met(1.0):
                left.remove(rank)
    return board.requests


def test_requests_grow_as_the_ranks_do() -> None:
    """Twice as many ranks, about twice as many requests: 64 to 256, by the real protocol in turns."""
    counts = [requests(n) for n in (64, 128, 256)]
    assert all(1.8 < later / earlier < 2.2 for earlier, later in pairwise(counts)), counts
    assert counts[-1] <= 12 * 256


def test_what_all_say_is_read_once() -> None:
    """An exchange: the others read one value each, however many ranks there are."""
    board = Counts()
    n = 8
    sessions = meet(board, n)
    board.requests = 0
    found = together(n, lambda rank: sessions[rank].gather("1", rank, encode(rank), lambda: None))
    assert [decode(each) for each in found] == [tuple(range(n))] * n


def test_an_old_roll_is_not_believed() -> None:
    """One that rank 0 wrote in an earlier meeting, played back: the meeting fails, and no session comes of it."""
    rolls: list[bytes] = []

    class Remembers(Dictionary):
        def write(self, name: str, value: bytes) -> None:
            if name == "hello/all" and value:
                rolls.append(value)
            super().write(name, value)

    meet(Remembers(), 2)

    class Replays(Dictionary):
        def read(self, name: str) -> bytes | None:
            return rolls[-1] if name == "hello/all" else super().read(name)

    for error in meet(Replays(), 2, timeout_s=0.5):
        assert isinstance(error, LaunchError), error


def test_who_is_missed_in_an_exchange_is_named_by_all() -> None:
    """Also by ranks that read rank 0's value alone."""
    board = Dictionary()
    sessions = [replace(session, timeout_s=0.3) for session in meet(board, 3)]
    said = together(3, lambda rank: rank == 2 or sessions[rank].gather("1", rank, b"0", lambda: None))
    assert all("has nothing under 1/2." in str(error) for error in said[:2]), said
