"""What is in a sum, in words."""

from __future__ import annotations

from workbench.course.provenance.coding import Coded, Content
from workbench.course.provenance.steps import Wrong, ranks

_TIMES = {2: "twice"}


def differs(content: Content, right: Content, chunk: int) -> str:
    """What is in a sum, and what is missing; empty if it is right.

    Example:
        >>> differs({(0, 1): 2, (1, 1): 1}, {(0, 1): 1, (1, 1): 1, (2, 1): 1}, chunk=1)
        'rank 0 twice + rank 1; rank 2 missing'
        >>> differs({(0, 2): 1}, {(0, 1): 1}, chunk=1)
        'chunk 2 of rank 0; rank 0 missing'
    """
    if content == right:
        return ""
    there = [_times(f"rank {rank}", times) for (rank, of), times in sorted(content.items()) if of == chunk]
    for other in sorted({of for _, of in content if of != chunk}):
        there.append(f"chunk {other} of {ranks([rank for rank, of in sorted(content) if of == other])}")
    missing = [rank for rank, of in sorted(right) if (rank, of) not in content]
    return (" + ".join(there) or "nothing") + (f"; {ranks(missing)} missing" if missing else "")


def _times(who: str, times: int) -> str:
    return who if times == 1 else f"{who} {_TIMES.get(times, f'{times} times')}"


def returned(rank: int, chunk: int, content: Content, coded: Coded, n: int) -> str:
    """What is wrong with what a rank returned; empty if nothing is."""
    right = coded.right(rank, chunk, n)
    if content == right:
        return ""
    if coded.sums:
        where = f"rank {rank}, chunk {chunk}" if coded.chunked else f"rank {rank}"
        return f"{where}: your result = {differs(content, right, chunk)}"
    wanted = ranks([one for one, _ in right])
    if content.keys() == right.keys():
        told = f"rank {rank} returns {max(content.values())} times the value of {wanted}, expected it as it is"
        return f"{told}: it is passed on, and nothing is added"
    mine = ranks([one for one, _ in sorted(content)]) if content else "nobody"
    told = f"rank {rank} returns the value of {mine}, expected that of {wanted}"
    return f"{told}: it has kept its own, and nothing has replaced it" if mine == f"rank {rank}" else told


def place(wrong: Wrong) -> str:
    """Where it went wrong first."""
    change = wrong.change
    text = f": {change.text}" if change.text else ""
    return (
        f"first wrong in step {wrong.step}, on rank {change.rank}: {wrong.why}\n"
        f"    in line {change.line} of your function{text}"
    )
