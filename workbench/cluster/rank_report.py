"""What a rank says about itself when the doctor asks."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench import config
from workbench.diagnostics.rank_checks import RankReport
from workbench.launch.start import mpi
from workbench.launch.start.cores import usable

_ASK_CARDS = "import json, torch; from workbench.cluster.rank_report import cards; print(json.dumps(cards(torch)))"
_ASK_TIMEOUT_S = 30.0


def about(rank: int, size: int, total: float = 0.0, transport: str = "") -> RankReport:
    """This process as a rank. Neither torch nor CUDA is begun for it in this process.

    Args:
        rank, size, total, transport: see :class:`~workbench.diagnostics.rank_checks.RankReport`.

    Example:
        >>> about(rank=0, size=1).rank
        0
    """
    torch = sys.modules.get("torch")
    return RankReport(
        rank=rank,
        size=size,
        total=total,
        transport=transport,
        host=socket.gethostname(),
        cores=tuple(usable()),
        unbound=config.unbound(),
        omp=config.omp_threads(),
        hidden=config.visible_gpus() == "",
        torch_threads=torch.get_num_threads() if torch is not None else 0,
        **_cards(torch, config.launch().local_rank),
    )


def engine() -> RankReport:
    """An engine of a notebook's cluster, by its MPI rank."""
    rank, size, _ = mpi.whoami()
    return about(rank, size)


def _cards(torch: Any, local_rank: int) -> dict[str, Any]:
    """Where CUDA has begun the GPU in use; elsewhere another process is asked what there would be."""
    if torch is not None and torch.cuda.is_initialized():
        found = cards(torch)
        return found | {"gpu": found["gpus"][torch.cuda.current_device()][0]}
    if find_spec("torch") is None or not (shutil.which("nvidia-smi") or torch):
        return {}
    if torch is not None and not torch.cuda.is_available():
        return cards(torch)
    found = _ask_cards()
    return found and found | {"gpu": found["gpus"][local_rank % len(found["gpus"])][0] if found["gpus"] else ""}


def _ask_cards() -> dict[str, Any]:
    ask = [sys.executable, "-c", _ASK_CARDS]
    try:
        done = subprocess.run(ask, capture_output=True, check=True, timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return {}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def cards(torch: Any) -> dict[str, Any]:
    """What torch knows of GPUs, CUDA and NCCL; this begins CUDA where there is some.

    Example:
        >>> import torch
        >>> sorted(cards(torch))
        ['cuda', 'gpus', 'nccl']
    """
    with_nccl = torch.cuda.is_available() and torch.distributed.is_available() and torch.distributed.is_nccl_available()
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = [torch.cuda.get_device_properties(i) for i in range(count)]
    return {
        "gpus": [(str(getattr(each, "uuid", i)), each.name) for i, each in enumerate(found)],
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if with_nccl else "",
    }


def main(folder: str) -> None:
    """What a rank runs that the doctor has started: meet the others, add up the numbers, write down what it saw."""
    import numpy as np

    from workbench.job import api
    from workbench.job.built import connected_by
    from workbench.job.context import HOLDER

    if find_spec("torch") is not None:
        torch: Any = import_module("torch")
        if torch.cuda.is_available():
            torch.cuda.set_device(config.launch().local_rank % torch.cuda.device_count())
            torch.cuda.init()
    api.init()
    rank, size = api.rank(), api.size()
    total = float(api.allreduce(np.array([rank + 1.0]), name="doctor", op=api.Sum)[0])
    gpu = HOLDER.get().gpu_operations
    said = about(rank, size, total, connected_by())
    said = replace(said, gpu_route=gpu.name, gpu_reason=gpu.why)
    Path(folder, f"rank.{rank:03}.json").write_text(json.dumps(asdict(said)))
    api.shutdown()
