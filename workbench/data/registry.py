"""The registry of a data service (Horovod: compute service): dispatchers and workers register, training ranks ask.

Each connection carries one question and its answer. Both ends prove first that they know the service's key, and sign
what they say (:mod:`workbench.common.secret`): without the key nothing is decoded, and a recorded message is of no use.
It listens on the loopback interface unless told otherwise.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.common.ports import listen
from workbench.common.secret.channel import SealedChannel
from workbench.common.secret.handshake import StrangerError, connect, greet
from workbench.common.secret.listener import Listener
from workbench.common.secret.seal import derived
from workbench.errors import DeadlineError

Addresses = Mapping[str, Sequence[tuple[str, int]]]

_PURPOSE = "data service"
_TURN_S = 60.0  # an endless wait is asked again so often
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
        self._key, port = derived(key, _PURPOSE), listen(host)
        self._address: tuple[str, int] = port.getsockname()[:2]
        self._listener = Listener(port, self._meet, name="data service registry")

    def addresses(self) -> Addresses:
        """Where it listens, in Horovod's form."""
        return {"lo" if self._address[0].startswith("127.") else "any": [self._address]}

    def shutdown(self) -> None:
        """Let those go who wait for it; nobody is answered afterwards."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        self._listener.close()

    def _meet(self, sock: socket.socket, known: Callable[[], None]) -> bool:
        """One question, and its answer."""
        if not (key := greet(sock, self._key, known)):
            return False
        channel = SealedChannel(sock, key, listened=True)
        if (question := channel.receive()) is not None:
            try:
                channel.send("answer", value=self._answer(question.kind, question.fields))
            except tuple(_ERRORS.values()) as error:
                channel.send("error", name=type(error).__name__, text=str(error))
        return False

    def _answer(self, what: str, question: Mapping[str, Any]) -> Any:
        number = int(question.get("dispatcher", 0))
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

    def _note(self, what: str, number: int, question: Mapping[str, Any]) -> None:
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
        self._key, self._file = derived(key, _PURPOSE), file

    def register_dispatcher(self, dispatcher_id: int, dispatcher_address: str) -> None:
        self._ask("dispatcher", dispatcher=dispatcher_id, address=dispatcher_address)

    def wait_for_dispatcher_registration(self, dispatcher_id: int, timeout: float) -> str:
        """Where it is, when it is there.

        Raises:
            TimeoutException: it does not come.
        """
        return str(self._ask("where", dispatcher=dispatcher_id, timeout=timeout))

    def register_worker_for_dispatcher(self, dispatcher_id: int, worker_id: int) -> None:
        self._ask("worker", dispatcher=dispatcher_id, worker=worker_id)

    def wait_for_dispatcher_worker_registration(self, dispatcher_id: int, timeout: float) -> None:
        """Wait for all workers of a dispatcher.

        Raises:
            TimeoutException: they do not all come.
        """
        self._ask("workers", dispatcher=dispatcher_id, timeout=timeout)

    def shutdown(self) -> None:
        self._ask("end")

    def wait_for_shutdown(self) -> None:
        """Wait for somebody's :meth:`shutdown`, as long as it takes."""
        while not self._ask("ended", timeout=_TURN_S):
            pass

    def _ask(self, what: str, timeout: float = 0.0, **more: Any) -> Any:
        until = time.monotonic() + timeout + _SLACK_S
        sock, key = self._connect()
        channel = SealedChannel(sock, key, listened=False)
        channel.send(what, timeout=timeout, **more)
        answer = channel.receive(until)
        channel.close()
        if answer is None:
            raise ConnectionError(f"The data service at {self._addresses} has ended the connection.")
        if answer.kind == "error":
            raise _ERRORS[answer.fields["name"]](answer.fields["text"])
        return answer.fields["value"]

    def _connect(self) -> tuple[socket.socket, bytes]:
        """The first address that answers, and a key of the connection."""
        for address in self._addresses:
            try:
                return connect(*address, self._key, time.monotonic() + _SLACK_S)
            except StrangerError:
                raise ConnectionError(
                    f"The program at {self._addresses} is not this data service: is this its config file?"
                ) from None
            except OSError as error:
                failed = error
        file = f"config file {self._file}" if self._file else "config"
        raise ConnectionError(
            f"No data service answers at {self._addresses} ({failed}). It has ended, or the {file} belongs to an "
            "earlier one: delete the file, start the compute job, and read the file that it writes."
        ) from failed
