"""How a job starts on one rank: control plane, data plane, engine, context; in this order on every rank.

What fails on one rank fails on all: each step ends with an exchange, or with a wait that sees who has given up.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from workbench import config
from workbench.common.cell_numbers import cell_numbers
from workbench.config import Settings
from workbench.core.backend.base import Backend
from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.errors import LaunchError
from workbench.job.context import HOLDER, Context, Passing, place
from workbench.job.names import Names
from workbench.machine import a_core_each, cores, host_id
from workbench.runtime.control.addresses import addresses, connect, facing, interfaces, reachable
from workbench.runtime.control.channel import LocalChannel, Rank0Channel, SocketChannel
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.lone import SlotsAlone
from workbench.runtime.control.server import ControlServer
from workbench.runtime.control.slots import Slots
from workbench.runtime.control.slots_channel import SlotsChannel
from workbench.runtime.events import Beat
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.steady import stack
from workbench.runtime.steady.cache import CachingAnnouncer
from workbench.runtime.steady.tuner import Tuner, tuner
from workbench.runtime.trace.recorder import Recorder
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.gpu import select as gpu_select
from workbench.transport.select import Bootstrap
from workbench.transport.select import connect as connect_ranks

Prepare = Callable[[Timeline, Settings, int], None]


def start(bootstrap: Bootstrap, settings: Settings, prepare: Prepare | None = None) -> Context:
    """Set the control plane up and start the engine. All ranks call it. What fails on one rank fails on all.

    Args:
        bootstrap: the ranks.
        settings: this rank's; rank 0's count.
        prepare: called with the timeline, rank 0's settings and the rank, while a failure can still be told to all.

    Raises:
        LaunchError, DeadlineError, PeerLostError: the ranks could not connect.
    """
    with contextlib.ExitStack() as undo, telling_failures(bootstrap):
        ranks = _meet(bootstrap, settings)
        control = _control_plane(bootstrap, ranks, undo)
        backend, on_gpu = _data_plane(bootstrap, ranks, undo)
        _connect_slots(bootstrap, control, backend)
        if prepare:
            prepare(control.timeline, ranks.settings, bootstrap.rank)
        undo.callback(control.timeline.close)
        make_faults = _faults(bootstrap, ranks.settings, control.client)
        bootstrap.exchange(None)  # all have come as far as this: nobody waits below for a rank that has failed above
        missing = control.server.missing if control.server else None
        control.client.introduce(ranks.settings.init_timeout_s, missing, bootstrap.look)
        undo.pop_all()
        engine = _engine(bootstrap, ranks, control, backend, on_gpu)
        context = _context(bootstrap, ranks, control, engine)
        make_faults(context)
        engine.begin = lambda: _begin(context)
        engine.start()
        return context


@contextlib.contextmanager
def telling_failures(bootstrap: Bootstrap) -> Iterator[None]:
    """What the block raises on this rank is told to the others, which may wait for it."""
    try:
        yield
    except BaseException as error:
        text = "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        bootstrap.give_up(text)
        raise


# --- who is there -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ranks:
    """What the ranks have told each other; each list is by rank.

    Args:
        nodes: which ranks share memory.
        hosts: the machines.
        settings: rank 0's: all plan alike.
        gpu_operations: how tensors on GPUs are reduced.
        processes: process id, and cores that it may use.
        engines: a notebook's number of it, or -1.
        failures: how many a notebook has counted: the newest of them knows of all.
    """

    nodes: list[str]
    hosts: list[str]
    settings: Settings
    gpu_operations: gpu_select.Operations
    processes: list[tuple[int, Sequence[int]]]
    engines: list[int]
    failures: int


def _meet(bootstrap: Bootstrap, settings: Settings) -> _Ranks:
    numbers, process = cell_numbers(), (os.getpid(), cores())
    engine = (numbers.engine, numbers.failures or 0) if numbers else (-1, 0)
    everybody = bootstrap.exchange((bootstrap.node, host_id(), settings, gpu_select.see(settings), process, *engine))
    nodes, hosts, (settings, *_), seen, processes, engines, failures = (
        list(each) for each in zip(*everybody, strict=True)
    )
    gpu_operations = gpu_select.choose(seen, nodes, settings.gpu_operations)
    return _Ranks(nodes, hosts, settings, gpu_operations, processes, engines, max(failures))


# --- the control plane --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ControlPlane:
    """How small messages go; server and tuning are rank 0's."""

    client: ControlClient
    server: ControlServer | None
    timeline: Timeline
    tuning: Tuner | None
    slots: Slots | None
    channel: Rank0Channel


def _control_plane(bootstrap: Bootstrap, ranks: _Ranks, undo: contextlib.ExitStack) -> _ControlPlane:
    settings, secret, timeline = ranks.settings, bootstrap.secret, Timeline(Recorder())
    interface = settings.control_address or _interface(bootstrap, ranks.hosts)
    tuning = _tuner(settings, bootstrap.size, len(set(ranks.hosts))) if bootstrap.rank == 0 else None
    slots = Slots(bootstrap.rank, bootstrap.size) if stack.agrees_in_memory(settings) else None
    server = _serve(bootstrap, settings, interface, timeline, tuning, slots) if bootstrap.rank == 0 else None
    if server is not None:
        undo.callback(server.release, together=True)
    found = addresses() if interface == "0.0.0.0" else [interface or "127.0.0.1"]
    candidates, address = bootstrap.exchange((found, server.address) if server else None)[0]
    channel: Rank0Channel
    if server is not None:
        channel = LocalChannel(server)
    else:
        if not isinstance(address, str):
            address = reachable(candidates, address[1]), address[1]
        stream = connect(address, settings.init_timeout_s)
        channel = SocketChannel(bootstrap.rank, stream, secret, settings.peer_timeout_s)
    if slots:
        channel = SlotsChannel(channel, slots, bootstrap.rank, bootstrap.size)
    client = ControlClient(bootstrap.rank, channel, settings.heartbeat_s)
    client.send(Beat(bootstrap.rank))  # shows the secret: rank 0 has little patience with strangers, who say nothing
    if len(set(ranks.hosts)) > 1:
        client.host, *_ = names = [node.partition("/")[0] for node in ranks.nodes]
        if server is not None:
            server.name_hosts(names)
    undo.callback(client.close)
    return _ControlPlane(client, server, timeline, tuning, slots, channel)


def _interface(bootstrap: Bootstrap, hosts: Sequence[str]) -> str:
    """Where rank 0 is to listen, known to rank 0 alone; "" is Linux's own sockets, within one host. All ranks call it.

    Args:
        hosts: each rank's.
    """
    if len(set(hosts)) == 1:
        return "" if sys.platform in ("linux", "emscripten") else "127.0.0.1"
    seen = bootstrap.exchange(interfaces())
    others = [found for host, found in zip(hosts, seen, strict=True) if host != hosts[0]]
    return config.host_address() or facing(others) or "0.0.0.0"


def _tuner(settings: Settings, ranks: int, hosts: int) -> Tuner | None:
    if not (settings.autotune and settings.autotune_start):
        return tuner(settings)
    from workbench.simulate.measured.expectation import expectation  # loaded by tuned jobs alone

    return tuner(settings, expectation(settings.autotune_start, ranks, hosts))


def _serve(
    bootstrap: Bootstrap,
    settings: Settings,
    interface: str,
    timeline: Timeline,
    tuning: Tuner | None,
    slots: Slots | None,
) -> ControlServer:
    coordinator, secret = stack.coordinator(bootstrap.size, settings, tuning, slots), bootstrap.secret
    try:
        server = ControlServer(coordinator, secret, interface, settings.heartbeat_s, settings.peer_timeout_s, timeline)
    except OSError as error:
        raise LaunchError(f"Rank 0 cannot listen on {interface}: {error}. Set WORKBENCH_CONTROL_ADDRESS.") from None
    server.start()
    return server


# --- the data plane -----------------------------------------------------------------------------------


def _data_plane(bootstrap: Bootstrap, ranks: _Ranks, undo: contextlib.ExitStack) -> tuple[Backend, Backend | None]:
    backend = connect_ranks(bootstrap, ranks.settings)
    undo.callback(backend.life.close, clean=False)
    on_gpu = gpu_select.join(ranks.gpu_operations, ranks.nodes, backend, ranks.settings)
    if on_gpu:
        undo.callback(on_gpu.life.close, clean=False)
    return backend, on_gpu


def _faults(bootstrap: Bootstrap, settings: Settings, client: ControlClient) -> Callable[[Context], None]:
    """Faults by plan, where somebody has asked for them: the first may happen here, the others once there is a job."""
    if not settings.chaos:
        return lambda context: None
    from workbench.runtime.faults import chaos  # whoever does not ask for faults does not load what makes them

    player = chaos.begin(settings.chaos, bootstrap, client.sockets)

    def watch(context: Context) -> None:
        context.part(Passing).passes = player.passes
        chaos.watch(context.engine, player)

    return watch


def _connect_slots(bootstrap: Bootstrap, control: _ControlPlane, backend: Backend) -> None:
    """Let the ranks agree in the memory that they share, if they share any. All ranks call it."""
    if control.slots is None or not backend.slots or not isinstance(control.channel, SlotsChannel):
        return
    if bootstrap.backend == "threads":
        control.slots.connect(backend.slots, bootstrap.exchange(control.client.wake))
        return
    try:
        wakes = control.channel.wakes(bootstrap.exchange(control.channel.bell()))
        problem = ""
    except OSError as error:
        problem = str(error)
    if not any(bootstrap.exchange(problem)):
        control.slots.connect(backend.slots, wakes)


# --- the engine and the context -----------------------------------------------------------------------


def _engine(
    bootstrap: Bootstrap, ranks: _Ranks, control: _ControlPlane, backend: Backend, on_gpu: Backend | None
) -> Engine:
    rank, settings = bootstrap.rank, ranks.settings
    sets = SetTable(rank, backend)
    announcer, batching = stack.announcer(rank, settings), stack.batching(settings)
    own_core = a_core_each(rank, ranks.hosts, ranks.processes)
    runner = stack.runner(settings, control.client.wake, own_core, bool(on_gpu))
    engine = Engine(control.client, sets, settings, announcer, batching, control.timeline, runner)
    if control.slots and isinstance(control.channel, SlotsChannel) and isinstance(announcer, CachingAnnouncer):
        control.channel.known = announcer.known
        if rank == 0:
            control.channel.timeline, control.slots.heard = control.timeline, control.channel.heard
        engine.alone = SlotsAlone(announcer, control.slots, control.channel, settings.eager_bytes, rank, bootstrap.size)
    levels = (on_gpu or backend).levels
    stack.tunes(engine, announcer, batching, levels)
    if control.tuning and levels:
        control.tuning.mark_relevant("hierarchical_allreduce", now=int(levels.on))
    engine.waits = BlockedThreads(rank, engine.report)
    backend.life.tick(engine.tick)
    if on_gpu:
        on_gpu.life.tick(engine.tick)
        sets.use_gpu(on_gpu)
    return engine


def _context(bootstrap: Bootstrap, ranks: _Ranks, control: _ControlPlane, engine: Engine) -> Context:
    assert isinstance(engine.waits, BlockedThreads)
    names = Names(ranks.failures)
    engine.heard = names.heard
    return Context(
        place(ranks.nodes, bootstrap.rank),
        engine,
        control.client,
        engine.sets,
        engine.waits,
        bootstrap,
        ranks.settings,
        control.server,
        control.timeline,
        ranks.gpu_operations,
        control.tuning,
        frozenset(ranks.engines),
        names=names,
    )


def _begin(context: Context) -> None:
    """First on the engine's thread."""
    HOLDER.set(context, thread_only=True)
    if context.sets.gpu is not None:
        context.sets.gpu.device.use()  # for what makes tensors of results
    np.seterr(over="ignore", invalid="ignore")  # of this thread: an inf is a result
