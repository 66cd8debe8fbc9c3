"""The registry of a data service (Horovod: compute service): dispatchers and workers register, training ranks ask.

Each connection carries one question and its answer, as JSON. The server begins with random bytes, and both sides sign
what they say, and these bytes with it, with the service's key (``common/secret/seal.py``): without the key nothing
is decoded, and a recorded message is of no use. It listens on the loopback interface unless told otherwise.
"""

from __future__ import annotations

import json
import secrets
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from workbench.common.backoff import Backoff
from workbench.common.secret.seal import Seal
from workbench.errors import DeadlineError

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_LENGTH = struct.Struct(">I")
_LARGEST = 1 << 16  # bytes of a message; they are some hundred
_NONCE = 16
_STRANGER_S = 10.0  # how long a connection may take to put its question
_STRANGERS = 64  # connections at a time whose question has not come; more are closed at once
_TURN_S = 60.0  # an endless wait is asked again so often
_AGAIN_S = 0.1  # between two tries to be let in
_SLACK_S = 10.0  # how much later than its deadline an answer may come


class TimeoutException(DeadlineError):  # noqa: N818 - Horovod's name
    """Somebody did not register in time."""


_ERRORS = {each.__name__: each for each in (IndexError, ValueError, TimeoutException)}


class ComputeService:
    """The registry itself.

    Args:
        dispatchers: how many there are.
        workers_per_dispatcher: how many workers each has.
        key: known to those who may ask.
        nics: taken for the sake of scripts that give it.
        host: the address to listen on.

    Raises:
        ValueError: less than one dispatcher or worker.

    Example:
        >>> service = ComputeService(1, 1, b"key")
        >>> client = ComputeClient(service.addresses(), b"key")
        >>> client.register_dispatcher(0, "grpc://localhost:5050")
        >>> client.wait_for_dispatcher_registration(0, timeout=1)
        'grpc://localhost:5050'
        >>> service.shutdown()
    """

    def __init__(
        self, dispatchers: int, workers_per_dispatcher: int, key: bytes, nics: Any = None, host: str = "127.0.0.1"
    ) -> None:
        if dispatchers < 1 or workers_per_dispatcher < 1:
            raise ValueError(
                f"At least one dispatcher and one worker are needed, not {dispatchers} and {workers_per_dispatcher}."
            )
        self._dispatchers: list[str | None] = [None] * dispatchers
        self._workers: list[set[int]] = [set() for _ in range(dispatchers)]
        self._expected, self._ended = workers_per_dispatcher, False
        self._changed = threading.Condition()
        self._server = _RegistryServer((host, 0), key, self._answer)
        threading.Thread(target=self._server.serve_forever, name="data service registry", daemon=True).start()

    def addresses(self) -> Addresses:
        """Where it listens, in Horovod's form."""
        host, port = self._server.server_address[:2]
        return {"lo" if str(host).startswith("127.") else "any": [(str(host), int(port))]}

    def shutdown(self) -> None:
        """Let those go who wait for it; nobody is answered afterwards."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, question: dict[str, Any]) -> Any:
        what, number = question["what"], int(question.get("dispatcher", 0))
        if what not in ("end", "ended") and not 0 <= number < len(self._dispatchers):
            raise IndexError(
                f"There is no dispatcher {number}: they are numbered from 0 to {len(self._dispatchers) - 1}."
            )
        with self._changed:
            self._note(what, number, question)
            self._changed.notify_all()
            ready, missing = self._awaited(what, number)
            # Horovod's clients give seconds.
            if not self._changed.wait_for(ready, float(question.get("timeout", 0))) and missing:
                raise TimeoutException(
                    f"Timed out waiting for {missing}. Did it start? If it is only slow, give more time: --timeout."
                )
            return self._ended if what == "ended" else self._dispatchers[number]

    def _note(self, what: str, number: int, question: dict[str, Any]) -> None:
        if what == "dispatcher":
            address, known = str(question["address"]), self._dispatchers[number]
            if known not in (None, address):
                raise ValueError(f"Dispatcher {number} is registered already, as {known}, not {address}.")
            self._dispatchers[number] = address
        elif what == "worker":
            self._workers[number].add(int(question["worker"]))
        elif what == "end":
            self._ended = True

    def _awaited(self, what: str, number: int) -> tuple[Any, str]:
        """(what must hold before the answer, who is late if it does not)."""
        if what == "where":
            return lambda: self._dispatchers[number] is not None, f"dispatcher {number} to register"
        if what == "workers":
            return (
                lambda: len(self._workers[number]) >= self._expected,
                f"all workers of dispatcher {number} to register: {len(self._workers[number])} of {self._expected} did",
            )
        return (lambda: self._ended) if what == "ended" else (lambda: True), ""


class _RegistryServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], key: bytes, answer: Any) -> None:
        self.seals, self.answer = _seals(key), answer
        self.strangers = threading.BoundedSemaphore(_STRANGERS)
        super().__init__(address, _RegistryHandler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Is there room for a stranger? Each takes a thread and a descriptor."""
        return self.strangers.acquire(blocking=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        """On a thread of its own."""
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.strangers.release()  # no thread has begun
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A stranger, or somebody who has left: nothing to say."""


class _RegistryHandler(socketserver.BaseRequestHandler):
    server: _RegistryServer

    def handle(self) -> None:
        """One question."""
        nonce = secrets.token_bytes(_NONCE)
        try:
            body = self._question(nonce)
        finally:
            self.server.strangers.release()  # who has the key may wait for the answer, however many they are
        if body[:_NONCE] != nonce:
            return
        try:
            reply = {"value": self.server.answer(json.loads(body[_NONCE:]))}
        except tuple(_ERRORS.values()) as error:
            reply = {"error": type(error).__name__, "text": str(error)}
        self.request.settimeout(_STRANGER_S)
        _write(self.request, self.server.seals[1].close(0, 0, nonce + json.dumps(reply).encode()))

    def _question(self, nonce: bytes) -> bytes:
        """What was asked, with the nonce; empty from a stranger. All of it has one deadline."""
        until = time.monotonic() + _STRANGER_S
        self.request.settimeout(_STRANGER_S)
        self.request.sendall(nonce)
        return self.server.seals[0].body(_read(self.request, until))


class ComputeClient:
    """Registers dispatchers and workers, and asks for them.

    Args:
        compute_addresses: of :meth:`ComputeService.addresses`.
        key: the service's.
        verbose: taken for the sake of scripts that give it.
        file: the config file that this comes from, for error texts.
    """

    def __init__(self, compute_addresses: Addresses, key: bytes, verbose: int = 1, file: str = "") -> None:
        self._addresses = [(str(host), int(port)) for some in compute_addresses.values() for host, port in some]
        self._seals, self._file = _seals(key), file

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        """Say where a dispatcher is."""
        self._ask("dispatcher", dispatcher=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Where it is, when it is there.

        Raises:
            TimeoutException: it does not come.
        """
        return str(self._ask("where", dispatcher=dispatcher_id, timeout=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        """Say that a worker is ready."""
        self._ask("worker", dispatcher=dispatcher_id, worker=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait for all workers of a dispatcher.

        Raises:
            TimeoutException: they do not all come.
        """
        self._ask("workers", dispatcher=dispatcher_id, timeout=timeout)

    def shutdown(self) -> None:
        """End the service."""
        self._ask("end")

    def wait_for_shutdown(self) -> None:
        """Wait for somebody's :meth:`shutdown`, as long as it takes."""
        while not self._ask("ended", timeout=_TURN_S):
            pass

    def _ask(self, what: str, timeout: float = 0.0, **more: Any) -> Any:
        asks, answers = self._seals
        question = json.dumps({"what": what, "timeout": timeout, **more}).encode()
        sock, nonce = self._greeted()
        with sock:
            sock.settimeout(timeout + _SLACK_S)
            _write(sock, asks.close(0, 0, nonce + question))
            body = answers.body(_read(sock))
        if not body or body[:_NONCE] != nonce:
            raise ConnectionError(
                f"The program at {self._addresses} is not this data service: is this its config file?"
            )
        reply = json.loads(body[_NONCE:])
        if "error" in reply:
            raise _ERRORS[reply["error"]](reply["text"])
        return reply["value"]

    def _greeted(self) -> tuple[socket.socket, bytes]:
        """A connection, and its nonce. One that is closed before it may be one too many: try again, for some time."""
        backoff = Backoff(_STRANGER_S + _SLACK_S, longest_s=_AGAIN_S)
        while True:
            sock = self._connect()
            try:
                return sock, _exactly(sock, _NONCE)
            except ConnectionError:
                sock.close()
                if not backoff.pause():
                    raise
            except BaseException:
                sock.close()
                raise

    def _connect(self) -> socket.socket:
        """The first address that answers."""
        for address in self._addresses:
            try:
                return socket.create_connection(address, _SLACK_S)
            except OSError as error:
                failed = error
        file = f"config file {self._file}" if self._file else "config"
        raise ConnectionError(
            f"No data service answers at {self._addresses} ({failed}). It has ended, or the {file} belongs to an "
            "earlier one: delete the file, start the compute job, and read the file that it writes."
        ) from failed


def _seals(key: bytes) -> tuple[Seal, Seal]:
    return Seal(key, b"registry asks"), Seal(key, b"registry answers")


def _write(sock: socket.socket, message: bytes) -> None:
    sock.sendall(_LENGTH.pack(len(message)) + message)


def _read(sock: socket.socket, until: float | None = None) -> bytes:
    (length,) = _LENGTH.unpack(_exactly(sock, _LENGTH.size, until))
    return _exactly(sock, length, until) if length <= _LARGEST else b""


def _exactly(sock: socket.socket, length: int, until: float | None = None) -> bytes:
    """So many bytes; each within the socket's timeout, or all of them before ``until``."""
    data = bytearray()
    while len(data) < length:
        if until is not None:
            sock.settimeout(max(until - time.monotonic(), 1e-3))
        more = sock.recv(length - len(data))
        if not more:
            raise ConnectionError("The data service has ended the connection.")
        data += more
    return bytes(data)


__all__ = ["ComputeClient", "ComputeService", "TimeoutException"]
