"""Ranks find each other at a board that strangers may read and write, with a secret that only the ranks know.

1. Each rank writes a *hello* with a number that it has just drawn, sealed with the secret. Rank 0 reads them all, and
   writes them as one value, the *roll*, sealed alike.
2. From all hellos each rank derives the *session's* key. It says that it has, sealed with that key; when all have,
   rank 0 says so. So all have seen the same hellos, each its own fresh number among them: an old hello that is played
   back leads to a key that nobody else has, and an old roll is not believed.
3. Whatever follows is sealed with the session's key, together with the name under which it stands. So it can be
   neither made up nor moved nor played back. It is verified before it is decoded.

Rank 0 reads n values at a time, the others one: O(n) requests on n ranks.

A stranger who overwrites or deletes can delay a job or end it, with an error that says so; nothing else.
"""

from __future__ import annotations

import hmac
import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workbench.common.secret.seal import MAC, mac
from workbench.common.secret.seal import derived as derived
from workbench.errors import LaunchError

_SHORTEST_S, _LONGEST_S = 1e-3, 2e-2  # between two looks at the board
_DOUBT_S = 3.0  # what is sealed wrongly for so long stays so: whoever wrote it is none of the ranks
_ROLL, _ALL_HERE = "hello/all", "here/all"


class Board(Protocol):
    """Where values stand under names."""

    where: str
    """For error texts."""

    def read(self, name: str) -> bytes | None:
        """What stands there, or None; never waits."""

    def write(self, name: str, value: bytes) -> None:
        """Overwrites what stood there. Nothing is ever removed: an empty value is none."""


def seal(key: bytes, name: str, body: bytes) -> bytes:
    """The body, and before it a proof that whoever has the key wrote it under this name.

    Example:
        >>> opened(b"key", "a", seal(b"key", "a", b"body")), opened(b"key", "b", seal(b"key", "a", b"body"))
        (b'body', None)
    """
    return mac(key, name, body) + body


def opened(key: bytes, name: str, message: bytes) -> bytes | None:
    """The body; None if it is not sealed with this key for this name."""
    body = message[MAC:]
    return body if hmac.compare_digest(message[:MAC], mac(key, name, body)) else None


@dataclass(frozen=True)
class Session:
    """Ranks that have found each other.

    Args:
        board: where they write.
        key: theirs alone, in this session alone.
        name: before the names of all that they write.
        hellos: what each has said about itself, by rank.
        timeout_s: deadline of one wait.
    """

    board: Board
    key: bytes
    name: str
    hellos: Sequence[Mapping[str, Any]]
    timeout_s: float

    def write(self, name: str, body: bytes) -> None:
        """For the others to :meth:`read`."""
        self.board.write(f"{self.name}/{name}", seal(self.key, f"{self.name}/{name}", body))

    def seen(self, name: str) -> bytes | None:
        """What one of them has written; None if nobody has. Never waits."""
        name = f"{self.name}/{name}"
        return opened(self.key, name, self.board.read(name) or b"")

    def read(self, names: Sequence[str], tick: Callable[[], None]) -> list[bytes]:
        """Wait until all are there; what they say.

        Args:
            names: as written.
            tick: called between two looks; it may raise to end the wait.

        Raises:
            LaunchError: something never came, or a stranger has written it.
        """
        found: dict[str, bytes] = {}
        doubts = Doubts(self.board)
        for _ in looks(self.timeout_s, tick, lambda: len(found)):
            for name in [name for name in names if name not in found]:
                body = doubts.ask(self.key, f"{self.name}/{name}")
                if body is not None:
                    found[name] = body
            if len(found) == len(names):
                return [found[name] for name in names]
        missing = [name for name in names if name not in found]
        raise LaunchError(
            f"init(): not all {len(self.hellos)} ranks came within {self.timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S): "
            f"{self.board.where} has nothing under {', '.join(missing)}."
        )

    def gather(self, name: str, rank: int, body: bytes, tick: Callable[[], None]) -> bytes:
        """What each rank says, by rank, as a JSON list; all call it. Rank 0 reads every value, the others read one.

        Args:
            name: the same on all ranks, and another one each time.
            rank: who this is.
            body: what it says: JSON.
            tick: as in :meth:`read`.

        Raises:
            LaunchError: as :meth:`read`.
        """
        names, together = [f"{name}/{each}" for each in range(len(self.hellos))], f"{name}/all"
        self.write(names[rank], body)
        if rank == 0:
            found = b"[" + b",".join(self.read(names, tick)) + b"]"
            self.write(together, found)
            return found
        try:
            return self.read([together], tick)[0]
        except LaunchError as error:
            if missing := [each for each in names if self.seen(each) is None]:
                raise LaunchError(str(error).replace(f"under {together}", f"under {', '.join(missing)}")) from None
            raise


class Doubts:
    """Reads from a board. What is sealed wrongly gets some seconds, for its rank may still overwrite it."""

    def __init__(self, board: Board) -> None:
        self._board, self._since = board, dict[str, float]()

    def ask(self, key: bytes, name: str) -> bytes | None:
        """What is written under a name; None if nothing is, or nothing to believe.

        Raises:
            LaunchError: it has been wrong for long.
        """
        message = self._board.read(name) or None
        body = None if message is None else opened(key, name, message)
        if message is None or body is not None:
            self._since.pop(name, None)
        elif time.monotonic() - self._since.setdefault(name, time.monotonic()) > _DOUBT_S:
            raise LaunchError(
                f"init(): what stands under {name} at {self._board.where} is not sealed with the job's secret, so it "
                "is not believed. Somebody else writes there, or WORKBENCH_SECRET is not the same on all ranks. Start "
                "the job again, at another MASTER_PORT."
            )
        return body


def looks(
    timeout_s: float, tick: Callable[[], None] = lambda: None, progress: Callable[[], int] = lambda: 0
) -> Iterator[int]:
    """Count from 0, with ever longer pauses, until nothing has changed in ``progress`` for ``timeout_s``."""
    until, pause, count, seen = time.monotonic() + timeout_s, _SHORTEST_S, 0, progress()
    while True:
        yield count
        if (now_seen := progress()) != seen:
            until, seen = time.monotonic() + timeout_s, now_seen
        if time.monotonic() > until:
            return
        tick()
        time.sleep(pause)
        pause, count = min(2 * pause, _LONGEST_S), count + 1


def find(
    board: Board,
    secret: bytes,
    rank: int,
    size: int,
    about: Mapping[str, Any],
    timeout_s: float,
    tick: Callable[[Sequence[Mapping[str, Any] | None]], None] = lambda hellos: None,
) -> Session:
    """Find the other ranks. All call it; one that gave up before may call it again.

    Args:
        board: the same for all.
        secret: the job's.
        rank, size: who this is among how many.
        about: what this rank says about itself.
        timeout_s: deadline.
        tick: called between two looks with the hellos that have come; it may raise to end the wait.

    Raises:
        LaunchError: not all came in time, or a stranger wrote in a rank's stead.
    """
    meeting = _Meeting(board, secret, rank, size, about)

    def look() -> None:
        tick([json.loads(body) if body else None for body in meeting.bodies])

    for _ in looks(timeout_s, look, lambda: sum(body is not None for body in meeting.bodies)):
        meeting.collect() if rank == 0 else meeting.read_roll()
        if meeting.met(timeout_s):
            return meeting.session
    raise LaunchError(
        f"init(): not all {size} ranks came within {timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S): {meeting.missing()}. "
        "Call init() on every rank."
    )


class _Meeting:
    """One rank's part of :func:`find`.

    Attributes:
        bodies: the hellos, by rank, as far as they have come.
        session: what follows from all of them.
    """

    session: Session

    def __init__(self, board: Board, secret: bytes, rank: int, size: int, about: Mapping[str, Any]) -> None:
        self._board, self._secret, self._rank, self._size = board, secret, rank, size
        self._doubts, self._key, self._roll = Doubts(board), b"", b""
        self._mine = json.dumps({**about, "number": secrets.token_hex(16)}).encode()
        self.bodies: list[bytes | None] = [None] * size
        self.bodies[rank] = self._mine
        board.write(f"hello/{rank}", seal(secret, f"hello/{rank}", self._mine))

    def collect(self) -> None:
        """Rank 0 reads the hellos, and writes all that it has read as one value."""
        for each in range(1, self._size):
            if (body := self._doubts.ask(self._secret, f"hello/{each}")) is not None:
                self.bodies[each] = body
        roll = json.dumps([body.decode() if body else None for body in self.bodies]).encode()
        if roll != self._roll:
            self._board.write(_ROLL, seal(self._secret, _ROLL, roll))
            self._roll = roll

    def read_roll(self) -> None:
        """The others read that. One without this rank's own number is of another time."""
        roll = self._doubts.ask(self._secret, _ROLL)
        bodies = [body.encode() if body else None for body in json.loads(roll)] if roll else []
        if len(bodies) == self._size and bodies[self._rank] == self._mine:
            self.bodies = bodies

    def met(self, timeout_s: float) -> bool:
        """Do all know that all have seen the same?"""
        known = [body for body in self.bodies if body is not None]
        if len(known) < self._size:
            return False
        key = derived(self._secret, "session", *known)
        if key != self._key:
            self._key, name = key, derived(key, "name").hex()[:16]
            self.session = Session(self._board, key, name, [json.loads(body) for body in known], timeout_s)
            self.session.write(f"here/{self._rank}", b"")
        if self._rank:
            all_here = self.session.seen(_ALL_HERE) is not None
        else:
            all_here = all(self.session.seen(f"here/{each}") is not None for each in range(self._size))
        if all_here:  # nobody takes these for words of a later bootstrap
            self._board.write(f"hello/{self._rank}", b"")
            if self._rank == 0:
                self._board.write(_ROLL, b"")
                self.session.write(_ALL_HERE, b"")
        return all_here

    def missing(self) -> str:
        """Who did not come, as far as this rank knows."""
        missing = [str(each) for each, body in enumerate(self.bodies) if body is None]
        if not missing:
            return f"at {self._board.where} they read different values (does somebody else write there?)"
        if self._rank and len(missing) == self._size - 1:
            missing = ["0"]  # who would have told of the others
        return f"{'rank' if len(missing) == 1 else 'ranks'} {', '.join(missing)} did not come to {self._board.where}"
