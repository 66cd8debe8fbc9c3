"""Run a training script on N ranks and alone, and look at what it does: the lights of lesson 10.

    print(watch(["steps/09_done.py"])[0])

The script runs as it is, by its file. It may use the workbench, or torch.distributed with ``DistributedDataParallel``
or ``fully_shard``. It only has to

- be over when its last line is (no ``if __name__ == "__main__"`` is needed; it is true),
- call its model ``model`` and its result on the test digits ``accuracy``, and say ``EPOCHS``,
- train on ``data.digits()``, pixels as they are, in float64,
- write its checkpoint into the current folder, and go on from one that it finds there.

Each rank gets a folder of its own, as on a machine of its own, random numbers of its own, no GPU, and as many threads
as the machine has cores. The script runs twice: the second time rank 0 finds the checkpoint of the first, and the
others find nothing. What is compared is the second run. For "alone", the same in a world of one rank.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import io
import os
import runpy
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.course.training.behaviour import LIGHTS, BehaviourRecorder, Seen, title, weights
from workbench.errors import LaunchError
from workbench.launch.function import run
from workbench.launch.start.starters import free_port

DEADLINE_S = 90.0  # less than a cell of a lesson has in a test: who hangs is to be said
_FIRST_SEED = 1
_AFTER_OTHERS_S = 5.0


@dataclass(frozen=True)
class Watched:
    """What a script did, alone and on N ranks."""

    script: str
    alone: Seen
    ranks: Sequence[Seen]

    def lights(self) -> dict[str, str]:
        """By title of a light, what is wrong; "" where it is green."""
        return {title(light): light(self.alone, self.ranks) for light in LIGHTS}

    def __str__(self) -> str:
        """One line for each light."""
        lines = [
            f"{'✗' if wrong else '✓'} {name}{f': {wrong}' if wrong else ''}" for name, wrong in self.lights().items()
        ]
        return "\n".join([self.script, *(f"  {line}" for line in lines)])


def watch(scripts: Sequence[str | Path], n: int = 2, deadline_s: float = DEADLINE_S) -> list[Watched]:
    """Run scripts one after the other, on n ranks that are started once, as by ``workbench run``.

    Args:
        scripts: their files.
        n: ranks.
        deadline_s: for all of them together.

    Raises:
        RankFailedError: a script raised; its traceback is in the text.
        DeadlineError: they took too long.
    """
    paths = [str(Path(script).resolve()) for script in scripts]
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "passive"}  # too many threads do not also wait busily
    env["WORKBENCH_COMPARE_STEPS"] = "0"  # the lights compare
    ports = [free_port() for _ in range(4 * len(paths))]
    found = run(_on_a_rank, args=(paths, ports), np=n, timeout_s=deadline_s, use_gloo=True, env=env)
    return [
        Watched(Path(path).name, found[0][i][0], [of_rank[i][1] for of_rank in found]) for i, path in enumerate(paths)
    ]


def difference(before: str | Path, after: str | Path) -> str:
    r"""The lines that differ between two files, with - and + before them.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     old, new = Path(folder, "old.py"), Path(folder, "new.py")
        ...     _ = old.write_text("a = 1"), new.write_text("a = 2")
        ...     difference(old, new)
        '- a = 1\n+ a = 2'
    """
    lines = difflib.ndiff(Path(before).read_text().splitlines(), Path(after).read_text().splitlines())
    return "\n".join(line for line in lines if line[0] in "+-")


def table(all_watched: Sequence[Watched]) -> str:
    """One column for each script, one row for each light."""
    columns = [watched.lights() for watched in all_watched]
    width = max(map(len, columns[0]))
    head = " " * width + "".join(f"{watched.script[:2]:>4}" for watched in all_watched)
    rows = [
        f"{name:{width}}" + "".join("   ✗" if column[name] else "   ✓" for column in columns) for name in columns[0]
    ]
    return "\n".join([head, *rows])


def turned_green(before: Watched, after: Watched) -> list[str]:
    """Titles of the lights that are green after a step, and were not before."""
    red = before.lights()
    return [name for name, wrong in after.lights().items() if red[name] and not wrong]


# --- in a rank --------------------------------------------------------------------------------------------


def _on_a_rank(scripts: Sequence[str], ports: Sequence[int]) -> list[tuple[Seen, Seen]]:
    """For each script what was seen alone, and what together; each run of torch.distributed meets at its own port."""
    from workbench import config
    from workbench.job import api

    rank, found = config.launch().rank, []
    kept: list[Any] = []  # To free torch's process group joins, with the GIL, a thread that may want the GIL.
    lonely = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    for i, script in enumerate(scripts):
        alone, mine = Seen(), ports[4 * i : 4 * i + 4]
        if rank == 0:  # meanwhile the others wait, so that it has the machine for itself
            with config.changed_environment(**lonely):
                one = api.run_threads(1, functools.partial(_twice, script, 0, _nothing, mine[:2], kept), DEADLINE_S)
            alone = one[0]
        try:
            found.append((alone, _twice(script, rank, api.shutdown, mine[2:], kept)))
        except LaunchError:  # another rank raised and does not come again: its words come first
            time.sleep(_AFTER_OTHERS_S)
            raise
    return found


def _nothing() -> None:
    pass


def _twice(script: str, rank: int, leave: Callable[[], object], ports: Sequence[int], kept: list[Any]) -> Seen:
    """The script from nothing, and again from what it left; only rank 0 finds that."""
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder, _inside(folder):
        first = _once(script, rank, ports[0], kept)
        leave()  # a rank that has ended says so to one that still waits for it
        if rank:
            for path in Path(folder).iterdir():
                path.unlink()
        second = _once(script, rank + 1000, ports[1], kept)
        leave()
        second.files = first.files
        return second


def _once(script: str, rank: int, port: int, kept: list[Any]) -> Seen:
    import torch
    import torch.distributed as dist

    from workbench import config, data

    digits, words = data.digits(), io.StringIO()
    recorder = BehaviourRecorder(digits.train_x)
    cores = os.cpu_count() or 1
    torch.manual_seed(_FIRST_SEED + rank)
    torch.set_num_threads(max(2, cores))
    before = torch.get_default_dtype()
    try:
        meet = config.changed_environment(MASTER_PORT=str(port))
        with meet, _hooks(recorder), contextlib.redirect_stdout(words), _arguments(script):
            names = runpy.run_path(script, run_name="__main__")
    except SystemExit:
        raise ValueError(f"{script} calls sys.exit(), and its model is gone. Let it end with its last line.") from None
    finally:
        torch.set_default_dtype(before)
    kept.append(names)
    if missing := [name for name in ("EPOCHS", "model", "accuracy") if name not in names]:
        raise NameError(f"{script} has no {', '.join(missing)}. Use the names EPOCHS, model and accuracy.")
    seen = recorder.seen
    _note_place(seen)
    seen.cores, seen.threads, seen.epochs = cores, torch.get_num_threads(), int(names["EPOCHS"])
    seen.end, seen.reported = weights(names["model"]), names["accuracy"]
    seen.measured = accuracy(names["model"], digits)
    seen.files, seen.lines = sorted(os.listdir()), words.getvalue().splitlines()
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
    return seen


def _note_place(seen: Seen) -> None:
    """Which rank this is to the script. Asked in each step, too: many scripts leave before their last line."""
    import torch.distributed as dist

    from workbench.job import api

    if api.is_initialized():
        seen.rank, seen.size = api.rank(), api.size()
    elif dist.is_initialized():
        seen.rank, seen.size = dist.get_rank(), dist.get_world_size()


def accuracy(model: Any, digits: Any) -> float:
    """Of a model on all test digits."""
    import torch

    images, labels = torch.from_numpy(digits.test_x), torch.from_numpy(digits.test_y)
    with torch.no_grad():
        guesses = model(images.to(next(model.parameters()).dtype)).argmax(dim=1)
    return float((guesses == labels).double().mean())


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    kept = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(kept)


@contextlib.contextmanager
def _arguments(script: str) -> Iterator[None]:
    kept, sys.argv = sys.argv, [script]
    try:
        yield
    finally:
        sys.argv = kept


@contextlib.contextmanager
def _hooks(recorder: BehaviourRecorder) -> Iterator[None]:
    """Look at all modules and optimizers of this process."""
    from torch.nn.modules import module
    from torch.optim import optimizer

    handles = [
        module.register_module_forward_pre_hook(recorder.before_forward),
        module.register_module_forward_hook(recorder.after_forward, always_call=True),
        optimizer.register_optimizer_step_pre_hook(recorder.before_step),
        optimizer.register_optimizer_step_pre_hook(lambda *_: _note_place(recorder.seen)),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
