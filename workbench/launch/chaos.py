"""``workbench run --chaos``: hands the plan to the ranks, and says at the end how much of it has happened."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from workbench import config
from workbench.common.chaos import PATIENCE, STEP, Fault, parse
from workbench.common.text import count
from workbench.launch.start.starters import JobSpec


@contextlib.contextmanager
def with_chaos(text: str | None, task: JobSpec, elastic: bool, log: Callable[[str], None]) -> Iterator[JobSpec]:
    """Within the block: the task, whose ranks fail as ``--chaos`` says.

    Args:
        text: of the option; None: it was not given.
        task: what is started.
        elastic: does the job go on when a rank is lost?
        log: gets the launcher's own messages.

    Raises:
        ValueError: the text makes no sense.
    """
    if text is None:
        yield task
        return
    with _shared_folder() as folder:
        chaos = parse(text, task.n, folder)
        plan = chaos.plan()
        log(f"chaos: {count(len(plan), 'fault')}, planned for {count(task.n, 'rank')}; the same again: --chaos {text}")
        if chaos.kills and not elastic:
            log("chaos: this job is not elastic, so the first kill ends it; with --min-np it continues without it.")
        try:
            yield dataclasses.replace(task, env={**task.env, "WORKBENCH_CHAOS": chaos.text})
        finally:
            done = len(list(Path(folder).iterdir()))
            log(f"chaos: {done} of {count(len(plan), 'fault')} happened{_why(plan[done]) if done < len(plan) else '.'}")


def _why(fault: Fault) -> str:
    """What the next fault waited for: those behind it had no chance."""
    only = ", and only optimizers of torch pass it" if fault.state == STEP else ""
    return (
        f"; the next would have been {fault.words}, but rank {fault.rank} did not reach {fault.state!r} {fault.nth} "
        f"time(s) after the last fault{only}, nor received {PATIENCE} responses. So later faults could not happen: "
        "train for more steps, or leave this state out with states="
    )


@contextlib.contextmanager
def _shared_folder() -> Iterator[str]:
    """A new folder; where hosts share folders, likely one of those. It is removed."""
    for place in config.private_folders():
        with contextlib.suppress(OSError):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="chaos-", dir=place)
            break
    else:
        folder = tempfile.mkdtemp(prefix="workbench-chaos-")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
