"""Hosts, GPUs and the messages between them, as a picture."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.common.text import size
from workbench.course.simulator import Run
from workbench.course.simulator.topology import Topology
from workbench.observe import drawing_kit as kit
from workbench.observe.figure import Figure

_DASHED = ' stroke-dasharray="7 4"'


def picture(topology: Topology, run: Run, title: str) -> Figure:
    """Nodes as boxes, ranks in them, a line for each link that was used; thick and dashed between nodes.

    Example:
        >>> import numpy as np
        >>> from workbench.course.simulator import simulate
        >>> two = Topology(["a", "b"])
        >>> picture(two, simulate(2, lambda comm: comm.bcast(np.ones(1000)), link=two), "Broadcast")
        Broadcast: 0 links inside nodes, 1 between; out of a 8 kB, out of b 0 bytes
    """
    names = list(dict.fromkeys(topology.nodes))
    ranks = {name: [rank for rank, node in enumerate(topology.nodes) if node == name] for name in names}
    tall = max(map(len, ranks.values()))
    width, height = 40 + 260.0 * len(names), 100 + 78.0 * tall
    places, parts, left = {}, list(_legend(height + 6)), topology.left(run)
    for column, name in enumerate(names):
        left_x = 20 + 260 * column
        parts.append(
            f'<rect class="wbt-arrow" x="{left_x}" y="44" width="150" height="{height - 60:g}" rx="8" fill="none"/>'
        )
        parts.append(kit.label(left_x + 75, 62, f"node {name}", 13, "middle"))
        parts.append(kit.label(left_x + 75, height - 24, f"out: {size(left[name])}", 12, "middle"))
        for row, rank in enumerate(ranks[name]):
            places[rank] = (left_x + 75.0, 98 + 78.0 * row)
    pairs = sorted({(one.source, one.dest) for one in run.messages})
    slow = [(source, dest) for source, dest in pairs if topology.nodes[source] != topology.nodes[dest]]
    for source, dest in pairs:
        edge = list(kit.edge(places[source], places[dest], (source, dest) in slow, aside=9))
        parts += [edge[0].replace("/>", f"{_DASHED}/>") if (source, dest) in slow else edge[0], *edge[1:]]
    for rank, (x, y) in places.items():
        parts.append(f'<circle class="wbt-ground wbt-arrow" cx="{x:.1f}" cy="{y:.1f}" r="17"/>')
        parts.append(kit.label(x, y + 5, str(rank), 14, "middle"))
    out = ", ".join(f"out of {name} {size(nbytes)}" for name, nbytes in left.items())
    text = f"{title}: {len(pairs) - len(slow)} links inside nodes, {len(slow)} between; {out}"
    return kit.picture(text, width, height + 24, parts)


def _legend(y: float) -> Iterable[str]:
    """What the two kinds of lines are."""
    for x, words, style in (
        (20, "link inside a node", ""),
        (200, "between nodes, slow", f' style="stroke-width:3"{_DASHED}'),
    ):
        yield f'<line class="wbt-arrow" x1="{x}" y1="{y - 4:g}" x2="{x + 34}" y2="{y - 4:g}"{style}/>'
        yield kit.label(x + 42, y, words, 12)
