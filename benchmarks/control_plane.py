"""What rank 0 has to do for each training step, by number of ranks: the real coordinator, without a network.

::

    python benchmarks/control_plane.py --ranks 64 512 4096

Every rank has its own announcer, and its messages are bytes, as on a socket. Timed is what rank 0's thread does: decode
each message, take it, and encode the decision, which is then the same bytes for all. What the system takes to read and
write the sockets comes on top. A rank announces the gradients of a step in ``--messages`` messages, as they get ready.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

from workbench.config import Settings
from workbench.core.handle import Handle
from workbench.core.messages import Decision, Kind, Request
from workbench.core.pending import Entry
from workbench.core.protocols import Announcer
from workbench.runtime.control.codec import decode_event, encode_decision, encode_event
from workbench.runtime.faults.supervision import SupervisingCoordinator
from workbench.runtime.steady import stack

MODES = {"steady": Settings(), "counted": Settings(steady_state=0), "no cache": Settings(cache_capacity=0)}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 512, 4096])
    parser.add_argument("--gradients", type=int, default=161, help="of a step; 161 are ResNet-50's")
    parser.add_argument("--messages", type=int, nargs="+", default=[1, 10], help="of a rank in a step")
    parser.add_argument("--modes", nargs="+", default=["steady"], choices=MODES)
    parser.add_argument("--steps", type=int, default=7)
    parser.add_argument("--out", type=Path, help="a JSON file, such as results/control_plane.json")
    given = parser.parse_args()
    print("mode      ranks  messages  first step s  steady step ms  steps/s  bytes a rank  MiB")
    rows = []
    for mode in given.modes:
        for ranks in given.ranks:
            for messages in given.messages:
                row = measure(mode, ranks, given.gradients, messages, given.steps)
                rows.append(row)
                print(
                    f"{mode:8} {ranks:6} {messages:9} {row['first_s']:13.2f} {row['steady_ms']:15.2f} "
                    f"{1e3 / row['steady_ms']:8.0f} {row['bytes']:13,} {row['mib']:4.0f}",
                    flush=True,
                )
    if given.out:
        given.out.write_text(json.dumps({"date": date.today().isoformat(), "rows": rows}, indent=1) + "\n")


def measure(mode: str, ranks: int, gradients: int, messages: int, steps: int) -> dict[str, float | str]:
    """One row: the first step, which announces names, and the median of steps that follow."""
    settings = MODES[mode]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rank_0 = stack.coordinator(ranks, settings)
    announcers = [stack.announcer(rank, settings) for rank in range(ranks)]
    entries = [
        Entry(Request(f"allreduce.layer.{i}", Kind.ALLREDUCE, "float32", (1 << 20,)), None, None, Handle(str(i)))
        for i in range(gradients)
    ]
    first, seen, _ = one_step(rank_0, announcers, entries, messages, 0)
    times, nbytes = list[float](), 0
    for _ in range(steps):
        took, seen, nbytes = one_step(rank_0, announcers, entries, messages, seen)
        times.append(took)
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {
        "mode": mode, "ranks": ranks, "gradients": gradients, "messages": messages, "first_s": first,
        "steady_ms": statistics.median(times) * 1e3, "bytes": nbytes, "mib": peak,
    }  # fmt: skip


def one_step(
    rank_0: SupervisingCoordinator, announcers: list[Announcer], entries: list[Entry], messages: int, seen: int
) -> tuple[float, int, int]:
    """(seconds of rank 0, last decision, bytes that one rank sends and receives)."""
    took, sent, received, decided = 0.0, 0, 0, 0
    for part in parts(entries, messages):
        data = [encode_event(announcer.announce(part, seen)) for announcer in announcers]
        sent += len(data[-1])
        for each in data:
            begin = time.perf_counter()
            decision = rank_0.take(decode_event(each), begin)
            answer = encode_decision(decision) if decision.items else b""
            took += time.perf_counter() - begin
            if answer:
                received += len(answer)
                decided += len(decision.items)
                seen = decision.number
                for announcer in announcers:
                    announcer.read(again(decision))
    if decided != len(entries):
        raise AssertionError(f"{decided} of {len(entries)} gradients were decided on")
    return took, seen, sent + received


def again(decision: Decision) -> Decision:
    """As a rank reads it: what it knows is an id."""
    from workbench.runtime.control.codec import decode_decision

    return decode_decision(encode_decision(decision))


def parts(entries: list[Entry], messages: int) -> Iterator[list[Entry]]:
    """In order."""
    for i in range(messages):
        part = entries[i * len(entries) // messages : (i + 1) * len(entries) // messages]
        if part:
            yield part


if __name__ == "__main__":
    main()
