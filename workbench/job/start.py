"""How a job starts on one rank: control plane, data plane, engine, context; in this order on every rank."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from workbench import config
from workbench.common.cell_numbers import cell_numbers
from workbench.config import Settings
from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.errors import LaunchError
from workbench.job.context import HOLDER, Context, place
from workbench.machine import a_core_each, cores, host_id
from workbench.runtime.control.addresses import addresses, connect, facing, interfaces, reachable
from workbench.runtime.control.channel import LocalChannel, Rank0Channel, SocketChannel
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.server import ControlServer
from workbench.runtime.events import Beat
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.steady import stack
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
        return _start(bootstrap, settings, prepare, undo)


@contextlib.contextmanager
def telling_failures(bootstrap: Bootstrap) -> Iterator[None]:
    """What the block raises on this rank is told to the others, which may wait for it."""
    try:
        yield
    except BaseException as error:
        text = "it was interrupted" if isinstance(error, KeyboardInterrupt) else f"{type(error).__name__}: {error}"
        bootstrap.give_up(text)
        raise


def _start(bootstrap: Bootstrap, settings: Settings, prepare: Prepare | None, undo: contextlib.ExitStack) -> Context:
    numbers, process = cell_numbers(), (os.getpid(), cores())
    about = bootstrap.node, host_id(), settings, gpu_select.see(settings), process, numbers.engine if numbers else -1
    hello = bootstrap.exchange(about)
    # Rank 0's settings: all plan alike.
    nodes, hosts_of, (settings, *_), seen, processes, engines = zip(*hello, strict=True)
    gpu_operations = gpu_select.choose(seen, nodes, settings.gpu_operations)
    interface, secret = settings.control_address or _interface(bootstrap, hosts_of), bootstrap.secret
    timeline = Timeline(Recorder())
    tuning = _tuner(settings, bootstrap.size, len(set(hosts_of))) if bootstrap.rank == 0 else None
    server = _serve(bootstrap, settings, interface, timeline, tuning) if bootstrap.rank == 0 else None
    if server is not None:
        undo.callback(server.release, together=True)
    hosts = addresses() if interface == "0.0.0.0" else [interface or "127.0.0.1"]
    candidates, address = bootstrap.exchange((hosts, server.address) if server else None)[0]
    channel: Rank0Channel
    if server is not None:
        channel = LocalChannel(server)
    else:
        if not isinstance(address, str):
            address = reachable(candidates, address[1]), address[1]
        channel = SocketChannel(
            bootstrap.rank, connect(address, settings.init_timeout_s), secret, settings.peer_timeout_s
        )
    control = ControlClient(bootstrap.rank, channel, settings.heartbeat_s)
    control.send(Beat(bootstrap.rank))  # shows the secret: rank 0 has little patience with strangers, who say nothing
    if len(set(hosts_of)) > 1:
        control.host, *_ = names = [node.partition("/")[0] for node in nodes]
        if server is not None:
            server.name_hosts(names)
    undo.callback(control.close)
    backend = connect_ranks(bootstrap, settings)
    undo.callback(backend.life.close, clean=False)
    on_gpu = gpu_select.join(gpu_operations, nodes, backend, settings)
    if on_gpu:
        undo.callback(on_gpu.life.close, clean=False)
    if prepare:
        prepare(timeline, settings, bootstrap.rank)
    undo.callback(timeline.close)
    if settings.chaos:
        from workbench.runtime.faults import chaos  # whoever does not ask for faults does not load what makes them

        player = chaos.begin(settings.chaos, bootstrap, control.sockets)
    bootstrap.exchange(None)  # all have come as far as this: nobody waits below for a rank that has failed above
    control.introduce(settings.init_timeout_s, server.missing if server else None, bootstrap.look)
    undo.pop_all()
    announcer, batching = stack.announcer(bootstrap.rank, settings), stack.batching(settings)
    sets = SetTable(bootstrap.rank, backend)
    runner = stack.runner(settings, control.wake, a_core_each(bootstrap.rank, hosts_of, processes), bool(on_gpu))
    engine = Engine(control, sets, settings, announcer, batching, timeline, runner)
    stack.tunes(engine, announcer, batching)
    waits = engine.waits = BlockedThreads(bootstrap.rank, engine.report)
    backend.life.tick(engine.tick)
    if on_gpu:
        on_gpu.life.tick(engine.tick)
        sets.use_gpu(on_gpu)
    here = place(list(nodes), bootstrap.rank)
    context = Context(here, engine, control, sets, waits, bootstrap, settings, server, timeline, gpu_operations)
    context.tuner, context.engines = tuning, frozenset(engines)
    if settings.chaos:
        context.passes = player.passes
        chaos.watch(engine, player)

    def begin() -> None:
        HOLDER.set(context, thread_only=True)
        if sets.gpu is not None:
            sets.gpu.device.use()  # for what makes tensors of results
        np.seterr(over="ignore", invalid="ignore")  # of this thread: an inf is a result

    engine.begin = begin
    engine.start()
    return context


def _interface(bootstrap: Bootstrap, hosts: Sequence[str]) -> str:
    """Where rank 0 is to listen, known to rank 0 alone; "" is Linux's own sockets, within one host. All ranks call it.

    Args:
        hosts: each rank's.
    """
    if len(set(hosts)) == 1:
        return "" if sys.platform == "linux" else "127.0.0.1"
    seen = bootstrap.exchange(interfaces())
    others = [found for host, found in zip(hosts, seen, strict=True) if host != hosts[0]]
    return config.host_address() or facing(others) or "0.0.0.0"


def _tuner(settings: Settings, ranks: int, hosts: int) -> Tuner | None:
    if not (settings.autotune and settings.autotune_start):
        return tuner(settings)
    from workbench.simulate.measured.expectation import expectation

    return tuner(settings, expectation(settings.autotune_start, ranks, hosts))


def _serve(
    bootstrap: Bootstrap, settings: Settings, interface: str, timeline: Timeline, tuning: Tuner | None
) -> ControlServer:
    coordinator, secret = stack.coordinator(bootstrap.size, settings, tuning), bootstrap.secret
    try:
        server = ControlServer(coordinator, secret, interface, settings.heartbeat_s, settings.peer_timeout_s, timeline)
    except OSError as error:
        raise LaunchError(f"Rank 0 cannot listen on {interface}: {error}. Set WORKBENCH_CONTROL_ADDRESS.") from None
    server.start()
    return server


__all__ = ["start", "telling_failures"]
