"""What the timeline knows of a stop: the phase of the tensor's bar that begins there, on each rank."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.course.followed.places import PHASES
from workbench.observe.tracks import Bar, Track


def event(shown: Sequence[Track], name: str, stop: str) -> str:
    """The phase of the newest bar with this tensor, rank by rank.

    Args:
        shown: of ``workbench.timeline()``.
        name: of the tensor, as the recorder has it.
        stop: of the way.

    Raises:
        ValueError: the timeline does not reach back to the tensor.

    Example:
        >>> from workbench.course.followed.records import made_up
        >>> from workbench.observe.tracks import tracks
        >>> print(event(tracks(made_up(2, 1), 20), "allreduce.conv.weight", "announcement"))
        timeline, wait of allreduce.conv.weight: rank 0 took 0.01 ms here, rank 1 took 0.00 ms here
    """
    phase = PHASES[stop]
    took = [f"rank {track.rank} took {_bar(track, name).took(phase) / 1000:.2f} ms here" for track in shown]
    return f"timeline, {phase} of {name}: {', '.join(took)}"


def _bar(track: Track, name: str) -> Bar:
    found = [bar for bar in track.bars if name in bar.names]
    if not found:
        raise ValueError(f"The timeline of rank {track.rank} has no {name!r}: ask for more with timeline(last=…).")
    return found[-1]
