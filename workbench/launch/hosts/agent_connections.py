"""The launcher's end of its agents: start them at once, ask them, hear them. Every wait has a deadline."""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.common.messages import Decoder, Message, MessageError, encode
from workbench.launch.hosts.remote_shell import COMING, LocalShell, Shell, agent_script, explain
from workbench.launch.ranks.process_tree import ProcessTree

_CHUNK = 1 << 16
_STILL_HERE_S = 5.0  # how often an agent hears that its launcher lives, and says that it does; at least
_STILL_WAITING_S = 1.0
_KILLED_WITHIN_S = 3.0  # an agent that does not answer
GONE = "gone"
"""The kind of the message that stands for an agent's end; its fields are ``what`` and ``cure``."""


@dataclass(frozen=True)
class Target:
    """A host of a job.

    Args:
        name: as the user wrote it.
        slots: how many ranks it takes.
        shell: how to get there.
    """

    name: str
    slots: int
    shell: Shell


class _Connection:
    """One agent's pipes."""

    def __init__(self, target: Target, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self.target, self.process, self.decoder = target, process, Decoder()
        self.into, self.outof = process.stdin.fileno(), process.stdout.fileno()
        self.pending = bytearray()
        self.gone = False
        self.last_seen, self.pid, self.coming = time.monotonic(), 0, False
        os.set_blocking(self.into, False)


class Connections:
    """The agents of a job.

    Args:
        targets: the hosts; their names differ.
        processes: takes the ssh processes.
        folder: where the agents start.

    Attributes:
        early: messages that came while another was waited for; they are received next.
    """

    def __init__(self, targets: Sequence[Target], processes: ProcessTree, folder: str) -> None:
        self.targets, self._processes, self._folder = targets, processes, folder
        self._selector = selectors.DefaultSelector()
        self._open: dict[str, _Connection] = {}
        self._alive_at, self.early = time.monotonic(), list[tuple[str, Message]]()
        self._silence_s, self._looked = float("inf"), self._alive_at
        self._lock, self._over = threading.RLock(), threading.Event()
        self._alive_thread = threading.Thread(target=self._keep_alive, name="workbench-still-here", daemon=True)
        self._killers: list[subprocess.Popen[bytes]] = []
        for target in targets:
            command = target.shell.command(target.name, agent_script(folder))
            here = isinstance(target.shell, LocalShell)
            process = processes.start_with_pipes(f"agent on {target.name}", command, apart=here)
            connection = self._open[target.name] = _Connection(target, process)
            self._selector.register(connection.outof, selectors.EVENT_READ, connection)

    def fileno(self) -> int:
        return self._selector.fileno()

    def there(self) -> set[str]:
        return {name for name, connection in self._open.items() if not connection.gone}

    def send(self, host: str, message: Message) -> None:
        """Send to one agent; to one that is gone, nothing."""
        connection = self._open[host]
        with self._lock:
            if not connection.gone:
                connection.pending += encode(message)
                self._flush(connection)

    def receive(self, timeout_s: float) -> Iterator[tuple[str, Message]]:
        """What the agents say next; nothing after ``timeout_s`` without a word."""
        begun = time.monotonic()
        if begun - self._alive_at > _STILL_HERE_S:
            self._alive_at = begun
            self._send_still_here()
        early, self.early = self.early, []
        yield from early
        for key, events in self._selector.select(0.0 if early else timeout_s):
            connection: _Connection = key.data
            if events & selectors.EVENT_WRITE:
                with self._lock:
                    self._flush(connection)
            elif not connection.gone:
                yield from ((connection.target.name, message) for message in self._read(connection))
        yield from self._silent()

    def watch(self, silence_s: float) -> None:
        """From now on an agent that says nothing for so long counts as gone: it may be stopped (SIGSTOP).

        A thread tells the agents that this process lives, also while nobody reads what it prints (``| less``).
        """
        self._silence_s = silence_s
        for connection in self._open.values():
            connection.last_seen = time.monotonic()
        if not self._alive_thread.is_alive():
            self._alive_thread.start()

    def _keep_alive(self) -> None:
        while not self._over.wait(min(_STILL_HERE_S, self._silence_s / 4)):
            self._send_still_here()

    def _send_still_here(self) -> None:
        for name in self._open:
            self.send(name, Message("still here", {}))

    def ask(
        self,
        questions: Mapping[str, Message],
        answer: str,
        limit_s: float,
        waiting: Callable[[Mapping[str, str]], None] = lambda missing: None,
    ) -> tuple[dict[str, Message], dict[str, Message]]:
        """Ask agents, and wait for an answer from each.

        Args:
            questions: by host; no message, where only the answer is waited for, is one of kind "".
            answer: the kind of message that is waited for.
            limit_s: deadline.
            waiting: called about once a second, with what is known of each host that has not answered.

        Returns:
            The answers by host, and for those that gave none, the ``gone`` or ``failed`` message.
        """
        until = time.monotonic() + limit_s
        for name, message in questions.items():
            if message.kind:
                self.send(name, message)
        answers, early = dict[str, Message](), list[tuple[str, Message]]()
        failures = {name: self._farewell(self._open[name]) for name in questions if self._open[name].gone}
        while len(answers) + len(failures) < len(questions) and (left_s := until - time.monotonic()) > 0:
            for name, message in self.receive(min(left_s, _STILL_WAITING_S)):
                if message.kind == answer:
                    answers[name] = message
                elif message.kind in (GONE, "failed"):
                    failures[name] = message
                else:  # a quick host's ranks write and end before a slow host has answered
                    early.append((name, message))
            waiting({name: self._state(name) for name in questions.keys() - answers.keys() - failures.keys()})
        self.early += early
        for name in questions.keys() - answers.keys() - failures.keys():
            what = f"{self._state(name)}, and did not answer within {limit_s:.0f} s"
            cure = "Is it overloaded, its file system slow, or an MTU too small? --start-timeout gives more time"
            failures[name] = Message(GONE, {"what": what, "cure": cure})
        return answers, failures

    def _state(self, name: str) -> str:
        """How far an agent has come, as a sentence about its host begins."""
        connection = self._open[name]
        if connection.pid:
            return "it is working"
        return "it is starting Python" if connection.coming else "it is connecting"

    def close(self) -> None:
        """Close all pipes; an agent that still runs takes it as the end."""
        self._over.set()
        if self._alive_thread.is_alive():
            self._alive_thread.join()
        for connection in self._open.values():
            self._drop(connection)
        self._selector.close()
        until = time.monotonic() + _KILLED_WITHIN_S
        for killer in self._killers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                killer.wait(max(0.0, until - time.monotonic()))

    def drop(self, host: str) -> None:
        """Close the pipes of one agent, as :meth:`close` those of all."""
        self._drop(self._open[host])

    # --- one connection -------------------------------------------------------------------------------

    def _read(self, connection: _Connection) -> list[Message]:
        data = os.read(connection.outof, _CHUNK)
        connection.last_seen = time.monotonic()
        try:
            found = list(connection.decoder.feed(data))
        except MessageError as error:
            self._drop(connection)
            return [Message(GONE, {"what": f"it sent {error}", "cure": "Does its login shell print something?"})]
        connection.coming |= any(message.kind == COMING for message in found)
        found = [message for message in found if message.kind != COMING]
        for message in found:
            if message.kind == "here":
                connection.pid = int(message.fields["pid"])
        if not data:
            found.append(self._farewell(connection))
        return found

    def _silent(self) -> Iterator[tuple[str, Message]]:
        """Those that have said nothing for long, while this process was there to hear it."""
        now = time.monotonic()
        slept, self._looked = now - self._looked > max(1.0, self._silence_s / 4), now
        for name, connection in self._open.items():
            if slept:  # what has come meanwhile is read first
                connection.last_seen = now
            elif not connection.gone and now - connection.last_seen > self._silence_s:
                self._drop(connection)
                self._kill(connection)
                what = f"its agent (process {connection.pid}) has said nothing for {self._silence_s:g} s"
                cure = "Was it stopped (SIGSTOP)? Is the host overloaded? WORKBENCH_PEER_TIMEOUT_S gives it more time."
                yield name, Message(GONE, {"what": what, "cure": cure})

    def _kill(self, connection: _Connection) -> None:
        """End an agent that does not listen, on another connection: its watchdog then ends its ranks."""
        pid, target = connection.pid, connection.target
        script = f"grep -qa hosts.agent /proc/{pid}/cmdline && kill -KILL {pid}"
        command = target.shell.command(target.name, script)
        killer = self._processes.start_with_pipes(f"end of the agent on {target.name}", command)
        for stream in filter(None, (killer.stdin, killer.stdout)):
            stream.close()
        self._killers.append(killer)

    def _farewell(self, connection: _Connection) -> Message:
        """Why an agent is gone."""
        self._drop(connection)
        try:
            code = connection.process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = -1
        name = connection.target.name
        text = self._processes.log(f"agent on {name}").read_text(errors="replace")
        text = text or connection.decoder.before.decode(errors="replace")
        what, cure = explain(name, code, text, self._folder, connection.target.shell)
        return Message(GONE, {"what": what, "cure": cure})

    def _drop(self, connection: _Connection) -> None:
        with self._lock:
            if connection.gone:
                return
            connection.gone = True
            for file in {connection.outof, connection.into} & {key.fd for key in self._selector.get_map().values()}:
                self._selector.unregister(file)
            connection.pending.clear()
        for stream in (connection.process.stdin, connection.process.stdout):
            if stream:
                stream.close()

    def _flush(self, connection: _Connection) -> None:
        """Write what the pipe takes; the rest when it takes more."""
        try:
            while connection.pending:
                del connection.pending[: os.write(connection.into, connection.pending)]
        except BlockingIOError:
            pass
        except BrokenPipeError:  # its end is read next
            connection.pending.clear()
        waiting = connection.into in {key.fd for key in self._selector.get_map().values()}
        if connection.pending and not waiting:
            self._selector.register(connection.into, selectors.EVENT_WRITE, connection)
        elif waiting and not connection.pending:
            self._selector.unregister(connection.into)
