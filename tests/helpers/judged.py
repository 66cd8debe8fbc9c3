"""Which exercises' answers ``make test`` judges: some of every kind, and those that a change concerns."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from changed import ROOT, changed, file_of, imports, same_program
from thorough import once_more

from workbench.course.tasks import names, task

# Messages, averages, formulas, lists, plans, `hvd`, cards, hosts, a layout: each way to be judged and to be told.
ALWAYS = {"02.tree_broadcast", "03.ring_allreduce", "04.sgd_step", "05.weighted_mean", "06.in_order", "07.plan_buckets"}
ALWAYS |= {"08.ring_time", "10.rank_zero", "11.epoch", "12.local_ranks", "14.six_steps", "17.discover", "18.owners"}
ALWAYS |= {"20.two_layers", "21.late", "22.batch_script", "23.choose"}
# What tells an exercise's mistakes. Judge and simulator, which all have in common, are held by exercises of every kind.
NEAR = ("workbench.course.training.", "workbench.course.pipelines.")


def near(name: str) -> set[Path]:
    """The files of ``NEAR`` that an exercise's task imports, and its mistakes."""
    own = file_of(task(name).reference.__module__)
    found = [own.with_suffix(".txt"), *(file_of(one) for one in imports(own) if one.startswith(NEAR))] if own else []
    return {path for path in found if path}


@cache
def now(name: str) -> bool:
    """Are its answers to be judged, though the run is not thorough?

    If they have changed, or its task, or what that imports of ``NEAR`` and none of ``ALWAYS`` does.
    """
    paths, own = changed(), file_of(task(name).reference.__module__)
    if name in ALWAYS or paths is None or own is None:
        return True
    if not paths:
        return False
    alone = near(name) - {path for other in ALWAYS for path in near(other)}
    ours = {path.relative_to(ROOT).as_posix() for path in (own, *alone)}
    answers = {f"tests/course/{kind}/{kind[0]}{name[:2]}.py" for kind in ("right", "wrong")}
    return not all(map(same_program, paths & (ours | answers)))


def exercises(*left_out: str) -> list[Any]:
    """Parameters: the names of all exercises but these."""
    return [name if now(name) else once_more(name) for name in names() if name not in left_out]
