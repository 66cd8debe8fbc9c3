"""Checks over the ranks' reports: do they communicate, and do they share cores or GPUs?

Values in, findings out; :class:`RankReport` is a rank's report, see ``workbench/cluster/rank_report.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from workbench.common.text import count, numbered
from workbench.diagnostics.finding import Finding, Severity
from workbench.launch.start.cores import spelled


@dataclass(frozen=True)
class RankReport:
    """A rank's report about itself.

    Args:
        rank, size: as MPI or the workbench told it.
        total: what an allreduce over the ranks' ids + 1 gave it; 0 where none was asked for.
        transport: ``MPI`` or ``TCP``: what moved it.
        host: its machine.
        cores: numbers of the cores that it may use.
        unbound: why the launcher has not bound it to cores; "" if it has, or binds none.
        omp: OMP_NUM_THREADS; 0 if that is not set.
        torch_threads: how many threads torch uses; 0 without torch.
        gpus: (uuid, name) of each GPU that it sees.
        gpu: the uuid of the one that it uses, or would use; "" for none.
        hidden: does CUDA_VISIBLE_DEVICES hide all GPUs from it?
        cuda, nccl: versions that torch was built with; "" for none.
        gpu_route, gpu_reason: what moves tensors on GPUs, see :mod:`workbench.transport.gpu.select`; "" without a job.
    """

    rank: int
    size: int
    total: float = 0.0
    transport: str = ""
    host: str = ""
    cores: Sequence[int] = ()
    unbound: str = ""
    omp: int = 0
    torch_threads: int = 0
    gpus: Sequence[tuple[str, str]] = ()
    gpu: str = ""
    hidden: bool = False
    cuda: str = ""
    nccl: str = ""
    gpu_route: str = ""
    gpu_reason: str = ""

    @property
    def threads(self) -> int:
        """How many threads it computes with. Nobody having said a number, libraries take all cores."""
        return self.torch_threads or self.omp or len(self.cores)


def ranks(found: Sequence[RankReport], n: int, problem: str = "", test: str = "") -> Finding:
    """Did ``n`` ranks that were started for it find each other and add up their numbers?

    Args:
        found: what they said.
        n: how many were started.
        problem: what went wrong, if it did.
        test: a command that shows whether MPI itself works.
    """
    cure = f"Does this work in a terminal? {test}" if test else "Set MPI up as said above."
    right = n * (n + 1) / 2
    wrong = [f"rank {each.rank} got {each.total:g}" for each in found if each.total != right]
    if not problem and [(each.rank, each.size) for each in found] != [(rank, n) for rank in range(n)]:
        problem = f"not one job of {count(n, 'rank')}, but " + _who(found)
    elif not problem and wrong:
        problem = f"an allreduce gave a wrong sum: {', '.join(wrong)}; {right:g} is right"
    if problem:
        return Finding(Severity.FAILURE, "ranks", problem, cure)
    ids = ", ".join(str(each.rank) for each in found)
    return Finding(
        Severity.OK, "ranks", f"{count(n, 'rank')} ({ids}) talk over {found[0].transport}; allreduce is right"
    )


def engines(answers: Mapping[int, RankReport | None], n: int, timeout_s: float) -> Finding:
    """Does every engine of a notebook's cluster answer, and is it the rank of its number? No answer is None."""
    silent = [engine for engine in range(n) if answers.get(engine) is None]
    if silent:
        text = f"{numbered(silent, 'engine')} gave no answer within {timeout_s:g} s: busy, blocked or gone"
        return Finding(Severity.FAILURE, "engines", text, "Wait for the cell that runs, or call cluster.rescue().")
    found = {engine: rank for engine, rank in answers.items() if rank is not None}
    if any((rank.rank, rank.size) != (engine, n) for engine, rank in found.items()):
        text = f"engine ids and ranks differ: {_who(list(found.values()))}"
        return Finding(Severity.FAILURE, "engines", text, "Start them again: cluster.down(), then cluster.up().")
    return Finding(Severity.OK, "engines", f"all {n} answer; engine id = MPI rank, size {n}")


def _who(found: Sequence[RankReport]) -> str:
    return "; ".join(f"the {_ordinal(i)} is rank {each.rank} of {each.size}" for i, each in enumerate(found)) or "none"


def threads(found: Sequence[RankReport]) -> Finding:
    """Do the ranks of any machine have more threads than cores?"""
    said = f"{_each(rank.threads for rank in found)} per rank ({_origin(found)})"
    for host, group in itertools.groupby(sorted(found, key=lambda rank: rank.host), key=lambda rank: rank.host):
        here = list(group)
        cores = len({core for rank in here for core in rank.cores})
        total = sum(rank.threads for rank in here)
        if total > cores:
            text = (
                f"{said}: {count(len(here), 'rank')} with {count(total, 'thread')} on {count(cores, 'core')} of {host}"
            )
            return Finding(Severity.WARNING, "threads", text, _fewer(len(here), cores))
    return Finding(Severity.OK, "threads", f"{said}, no more than there are cores")


def _origin(found: Sequence[RankReport]) -> str:
    omp = f"OMP_NUM_THREADS = {_each(rank.omp or 'not set' for rank in found)}"
    with_torch = [rank.torch_threads for rank in found if rank.torch_threads]
    return f"{omp}, torch uses {_each(with_torch)}" if with_torch else omp


def _each(values: Iterable[object]) -> str:
    """Of values by rank each one once."""
    return " or ".join(sorted({str(value) for value in values}))


def _fewer(n: int, cores: int) -> str:
    if n > cores:
        return f"Fine for learning, not for timing: start {count(cores, 'rank')} at most."
    return f"Set OMP_NUM_THREADS={max(1, cores // n)}, or unset it before the ranks are started."


def binding(found: Sequence[RankReport]) -> Finding:
    """Has each rank cores of its own, and if not, why?"""
    each = "; ".join(f"rank {rank.rank}: {spelled(rank.cores)}" for rank in found)
    why = next((rank.unbound for rank in found if rank.unbound), "")
    if why:
        return Finding(Severity.OK, "binding", f"ranks are not bound to cores: {why}")
    shared = len(found) > 1 and len({(rank.host, tuple(rank.cores)) for rank in found}) == 1
    return Finding(Severity.OK, "binding", f"{'ranks share their cores' if shared else 'ranks are bound'}; {each}")


def gpus(machine: Sequence[tuple[str, str]], found: Sequence[RankReport]) -> list[Finding]:
    """Which GPU has which rank? And NCCL's version where torch was built for CUDA.

    Args:
        machine: (uuid, name) of each GPU that the driver knows.
        found: the ranks.
    """
    return [_gpus(machine, found), *_nccl(found), *(_gpu_data(found) if machine else [])]


def _gpus(machine: Sequence[tuple[str, str]], found: Sequence[RankReport]) -> Finding:
    names = dict(machine) | {uuid: name for rank in found for uuid, name in rank.gpus}
    if not names:
        return Finding(Severity.OK, "GPUs", "none")
    kinds = ", ".join(f"{list(names.values()).count(name)} × {name}" for name in dict.fromkeys(names.values()))
    users = {uuid: [rank.rank for rank in found if rank.gpu == uuid] for uuid in names}
    at = {uuid: f"GPU {i} ({uuid})" for i, (uuid, _) in enumerate(machine)}
    text = "; ".join(
        [kinds, *(f"{numbered(these, 'rank')}: {at.get(uuid, uuid)}" for uuid, these in users.items() if these)]
    )
    if found and all(rank.hidden for rank in found):
        cure = "Training runs on the CPU. If you do not want that, unset it, and leave gpus=0 out."
        return Finding(Severity.WARNING, "GPUs", f"{kinds}, but CUDA_VISIBLE_DEVICES hides them from all ranks", cure)
    if found and not any(users.values()):
        cure = (
            "Training runs on the CPU. For the GPUs, install a build of torch for CUDA: make setup TORCH_BACKEND=auto."
        )
        return Finding(Severity.WARNING, "GPUs", f"{kinds}, but no rank sees one", cure)
    pinned = bool(found) and all(len(rank.gpus) == 1 for rank in found)
    if any(len(these) > 1 for these in users.values()):
        take = "" if pinned else ", and let each use its own: torch.cuda.set_device(hvd.local_rank())"
        return Finding(Severity.WARNING, "GPUs", f"{text}; ranks share a GPU", f"Start one rank for each GPU{take}.")
    if pinned and len(names) > 1:
        text += "; each rank sees its own alone"
    return Finding(Severity.OK, "GPUs", text)


def _nccl(found: Sequence[RankReport]) -> list[Finding]:
    built = [rank for rank in found if rank.cuda and rank.gpus]
    if not built:
        return []
    versions = sorted({rank.nccl or "none" for rank in built})
    text = f"{', '.join(versions)}, with CUDA {built[0].cuda}"
    if versions == ["none"] or len(versions) > 1:
        return [Finding(Severity.WARNING, "NCCL", text, "Install one build of torch with NCCL for all ranks.")]
    return [Finding(Severity.OK, "NCCL", text)]


def _gpu_data(found: Sequence[RankReport]) -> list[Finding]:
    """Who moves the bytes of tensors on GPUs?"""
    routed = [rank for rank in found if rank.gpu_route]
    if not routed:
        return []
    texts = {
        "nccl": "NCCL, in place on the GPU",
        "mpi": "CUDA-aware MPI",
        "staged": "staged through pinned host memory",
        "off": "copied to the host and back",
    }
    text, why = texts[routed[0].gpu_route], routed[0].gpu_reason
    if not why and routed[0].gpu_route == "nccl":
        return [Finding(Severity.OK, "GPU data", text)]
    cure = "Choose with WORKBENCH_GPU_OPERATIONS=nccl, mpi, staged or off."
    return [Finding(Severity.WARNING, "GPU data", f"{text}: {why}" if why else text, cure)]


def _ordinal(i: int) -> str:
    return {0: "first", 1: "second", 2: "third"}.get(i, f"{i + 1}th")
