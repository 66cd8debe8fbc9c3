"""An agent: on each host of a job it starts the ranks, and is the launcher's hands and ears there.

::

    launcher ── ssh host a ── agent a ─┬─ supervisor 0 ── the command
            │                          └─ supervisor 1 ── the command
            └── ssh host b ── agent b ─── …

It reads messages from its standard input and answers on its standard output, which ssh (or srun) carries, and listens
nowhere. When the launcher ends, is killed, or is cut off, so does the agent's input; then it ends every process of the
job on its host. Where a cable is out the input only falls silent, so each end says from time to time that it lives. If
the agent itself is killed, its watchdog does.

1. In the *rehearsal* it says what its host is like (``facts``), opens a port (``listen``), and tries to connect to the
   ports of the others (``reach``).
2. ``start`` starts this host's ranks. From then on it reports what they write and how they end, and passes signals on.
   In an elastic job it makes ready for workers, each ``worker`` starts one, and what they and the launcher say to
   each other goes through the agent.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from workbench.common.messages import Decoder, Message, MessageError, write
from workbench.common.ports import listen
from workbench.errors import LaunchError
from workbench.launch.hosts import facts
from workbench.launch.hosts.reach import Port, PortAddress, reach
from workbench.launch.ranks.events import REPORTS, LauncherEvent, WorkerMessage, Wrote
from workbench.launch.ranks.files import unlisted
from workbench.launch.slurm.allocation import JobGpus, by_slurm
from workbench.launch.start import mpi
from workbench.launch.start.gpus import pin
from workbench.launch.start.local_ranks import LocalRanks
from workbench.launch.start.starters import THREADS, JobSpec, Placement

_SILENCE_S = 30.0  # until the launcher says another limit
_LOOK_S = 0.25
_IN, _OUT = 0, 1
# What belongs to a host or a login, and is no other host's.
_OWN = ("HOME", "USER", "LOGNAME", "SHELL", "HOSTNAME", "TMPDIR", "PWD", "OLDPWD", "DISPLAY")
_OWN_BEGIN = ("SSH_", "XDG_", "DBUS_")
# What a batch system gives to this host. Where there is none, the launcher's holds for all hosts.
_GIVEN = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURMD_NODENAME")


class Agent:
    """One agent.

    Args:
        read, answer: descriptors of the launcher's messages and of those to it.
    """

    def __init__(self, read: int, answer: int) -> None:
        self._read, self._answer = read, answer
        self._decoder, self._silence_s = Decoder(), _SILENCE_S
        self._last_received = self._looked = self._look_at = time.monotonic()
        self._port: Port | None = None
        self._ranks: LocalRanks | None = None
        self._over = False
        self._handlers: dict[str, Callable[[Message], None]] = {
            "facts": self._facts,
            "sources": self._sources,
            "listen": self._listen,
            "reach": self._reach,
            "close": self._close,
            "start": self._start,
            "worker": self._start_worker,
            "tell": self._tell,
            "signal": lambda message: self._running().signal([message.fields["rank"]], message.fields["number"]),
            "still here": lambda message: self._send("still here"),
            "end": self._end,
        }

    def serve(self) -> None:
        """Until the launcher says ``end``, or is gone."""
        try:
            while not self._over and self._looked - self._last_received < self._silence_s:
                self._wait()
        finally:
            if self._ranks:
                self._ranks.stop()

    def terminate(self, number: int) -> None:
        """SIGTERM, which batch systems send to all processes. Workers of an elastic job leave by themselves."""
        if not (self._ranks and self._ranks.elastic):
            sys.exit(128 + number)

    def _wait(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._read, selectors.EVENT_READ)
            if self._ranks:
                waiting.register(self._ranks, selectors.EVENT_READ)
            if self._port:
                waiting.register(self._port, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in waiting.select(_LOOK_S)]
        now = time.monotonic()
        if now - self._looked > max(1.0, self._silence_s / 4):
            self._last_received = now  # it was stopped, or nobody took its words: it has to read first what has come
        self._looked = now
        if self._port in ready:
            self._port.greet()
        if self._read in ready:
            self._take()
        if self._ranks:
            self._report(self._ranks.wait(0.0))
            for name in {} if self._ranks.elastic else self._ranks.ended():
                self._send("failed", text=f"the supervisor of {name} ended before it.\n{self._ranks.report()}")
        if self._ranks and now >= self._look_at:
            self._look_at = now + _LOOK_S
            self._report(self._ranks.stopped())

    def _take(self) -> None:
        data = os.read(self._read, 1 << 16)
        if not data:
            self._over = True
        self._last_received = time.monotonic()
        for message in self._decoder.feed(data):
            try:
                if message.kind not in self._handlers:
                    raise LaunchError(f"an agent of this version cannot do {message.kind!r}.")
                self._handlers[message.kind](message)
            except (LaunchError, OSError) as error:
                self._send("failed", doing=message.kind, text=str(error))
            except (KeyError, TypeError, ValueError) as error:
                self._send("failed", doing=message.kind, text=f"{message.kind} cannot be understood: {error!r}")

    def _send(self, kind: str, data: bytes = b"", **fields: Any) -> None:
        write(self._answer, Message(kind, fields, data))

    # --- the rehearsal --------------------------------------------------------------------------------

    def _facts(self, message: Message) -> None:
        self._send("facts", facts=facts.facts(message.fields["words"]))

    def _sources(self, message: Message) -> None:
        self._send("sources", sources={address: facts.source(address) for address in message.fields["addresses"]})

    def _listen(self, message: Message) -> None:
        address, low, high = (message.fields[name] for name in ("address", "low", "high"))
        self._port = Port(address, low, high)
        with listen(address, (low, high)) as spare:
            self._send("listening", port=self._port.number, word=self._port.word, spare=spare.getsockname()[1])

    def _reach(self, message: Message) -> None:
        places = {host: PortAddress(*place) for host, place in message.fields["places"].items()}
        self._send("reached", found=reach(places, message.fields["limit_s"], self._port))

    def _close(self, message: Message) -> None:
        if self._port:
            self._port.close()
        self._port = None
        self._send("closed")

    # --- the job --------------------------------------------------------------------------------------

    def _start(self, message: Message) -> None:
        """Start this host's ranks, or make ready for workers.

        The message says: ``slots`` (for so many the cores are shared out), ``command``, ``env``, ``threads`` (does
        ``env`` say how many?), ``gpus``, ``slurm`` (:class:`~workbench.launch.slurm.allocation.JobGpus`), ``files``
        (name and length of each; the data are their contents, one behind the other), ``tag``, ``folder``, ``elastic``;
        of a fixed job also ``starter``, ``ranks`` (the numbers of this host's), ``size``, ``host`` (its number) and
        ``hosts``.
        """
        about = message.fields
        self._silence_s = float(about["silence_s"])
        env, contents = _environment_here(about, about["slots"]), unlisted(about["files"], message.data)
        task = JobSpec(about["slots"], about["command"], env, files=contents)
        self._ranks = LocalRanks(task, None, about["elastic"], about["tag"], about["folder"])
        if not about["elastic"]:
            start = self._ranks.expect_from_mpi if about["starter"] == "mpi" else self._ranks.start_share
            start(about["ranks"], about["size"], about["host"], about["hosts"])
        self._send("starting", line=self._ranks.binding.line())

    def _start_worker(self, message: Message) -> None:
        self._running().start(message.fields["worker"], Placement(**message.fields["placement"]))

    def _tell(self, message: Message) -> None:
        fields = message.fields
        self._running().send(fields["worker"], Message(fields["what"], fields["fields"], message.data))

    def _running(self) -> LocalRanks:
        if self._ranks is None:
            raise LaunchError("no ranks have been started here.")
        return self._ranks

    def _report(self, events: Iterable[LauncherEvent]) -> None:
        for event in events:
            match event:
                case Wrote(rank, stream, data):
                    self._send("wrote", data, rank=rank, stream=stream)
                case WorkerMessage(worker, message):
                    self._send("heard", message.data, worker=worker, what=message.kind, fields=message.fields)
                case _:
                    self._send(next(kind for kind, each in REPORTS.items() if isinstance(event, each)), **vars(event))

    def _end(self, message: Message) -> None:
        ranks, self._ranks = self._ranks, None
        if ranks:
            self._report(ranks.stop())
            for name, data in ranks.files.items():
                self._send("file", data, name=name)
        self._send("ended all")
        self._over = True


def _environment_here(about: Mapping[str, Any], n: int) -> dict[str, str]:
    """The launcher's environment, with what is this host's own.

    Args:
        about: ``env``, ``threads``, ``gpus`` and ``slurm``, as :meth:`Agent._start` has them.
        n: how many ranks share the cores.
    """
    env = {name: text for name, text in about["env"].items() if not _is_own(name)}
    env |= {name: text for name, text in os.environ.items() if _is_own(name) or name in _GIVEN}
    if not about["threads"]:
        env |= dict.fromkeys(THREADS, str(mpi.threads_per_rank(n)))
    return env | (dict(pin(n, about["gpus"]).env) if about["gpus"] else by_slurm(n, JobGpus(**about.get("slurm", {}))))


def _is_own(name: str) -> bool:
    return name in _OWN or name.startswith(_OWN_BEGIN)


def main() -> None:
    """Serve the launcher on the standard streams, which from now on no one else here writes to."""
    read, answer = os.dup(_IN), os.dup(_OUT)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, _IN)
    os.dup2(2, _OUT)
    for number in (
        signal.SIGINT,
        signal.SIGHUP,
    ):  # the launcher tells us; what is ignored here, ranks would ignore, too
        signal.signal(number, lambda number, frame: None)
    agent = Agent(read, answer)
    signal.signal(signal.SIGTERM, lambda number, frame: agent.terminate(number))
    with contextlib.suppress(BrokenPipeError, MessageError):
        write(answer, Message("here", {"pid": os.getpid()}))
        agent.serve()


if __name__ == "__main__":
    main()
