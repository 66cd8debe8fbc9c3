"""Which GPU has which local rank: ``cluster.up(gpus=…)`` and ``workbench run --gpus …``.

::

    what is asked for ─┐
    nvidia-smi ────────┼─► assign: a uuid per local rank ─► WORKBENCH_GPUS=GPU-a;GPU-b      one text for all ranks
    CUDA_VISIBLE_DEVICES ┘                                        │ each rank, before its command
                                                                  └─► CUDA_VISIBLE_DEVICES=GPU-b      its own one

A GPU is named by its uuid: its number is another one in a container, in a batch job, by another CUDA_DEVICE_ORDER. An
mpiexec gives all ranks one environment, so each takes its own name out of the list: by the shell's words in
:data:`TAKE_MINE`, or in ``ranks/supervisor.py``. That is before anything of CUDA is
loaded; later it would have no effect.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench import config
from workbench.common.text import count, numbered
from workbench.errors import LaunchError
from workbench.launch.ranks.supervisor import GPUS, LOCAL_RANK_NAMES

_log = logging.getLogger(__name__)
Gpu = tuple[str, str]
"""(uuid as torch writes it, without GPU-; name)"""
GpuChoice = int | str | Sequence[int | str] | None
"""What can be asked for, see :func:`assign`."""

_ASK_TIMEOUT_S = 30.0  # a driver that wakes, on a busy machine
_LOCAL_RANK = "".join(f"${{{name}:-" for name in LOCAL_RANK_NAMES) + "0" + "}" * len(LOCAL_RANK_NAMES)
TAKE_MINE = (
    f'if [ -n "${{{GPUS}-}}" ]; then local_rank={_LOCAL_RANK}; '
    f'CUDA_VISIBLE_DEVICES=$(echo "${GPUS}" | cut -d";" -f$((local_rank + 1))); '
    f"export CUDA_VISIBLE_DEVICES; unset {GPUS}; fi; "
)
"""Words of the shell, which a rank's command follows."""


@dataclass(frozen=True)
class Pins:
    """The GPUs that :func:`pin` gave to the ranks.

    Args:
        gpus: by local rank the GPU that it sees, "" where it is not pinned or sees none.
        env: the environment variables that assign them.
    """

    gpus: tuple[Gpu | str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """For whoever starts the ranks; "" where none has a GPU of its own.

        Example:
            >>> Pins((("5a1c", "H200"), ("5a1c", "H200"))).line()
            'each rank sees one GPU, its cuda:0; ranks 0, 1 share one'
        """
        users: dict[Gpu | str, list[int]] = {}
        for rank, gpu in enumerate(self.gpus):
            users.setdefault(gpu, []).append(rank)
        users.pop("", None)
        shared = [f"{numbered(ranks, 'rank')} share one" for ranks in users.values() if len(ranks) > 1]
        return "; ".join(["each rank sees one GPU, its cuda:0", *shared]) if users else ""


def pin(n: int, asked: GpuChoice = None) -> Pins:
    """Look which GPUs there are, and give each of ``n`` ranks of this machine its own.

    Args:
        n: how many ranks.
        asked: see :func:`assign`.

    Raises:
        LaunchError: as :func:`assign`.

    Example:
        >>> pin(2, "none").env
        {'CUDA_VISIBLE_DEVICES': ''}
    """
    found = visible(gpus(), config.visible_gpus())
    uuids, names = assign(n, found, asked), dict(found)
    return Pins(tuple((uuid, names.get(uuid, "MIG")) if uuid else "" for uuid in uuids), _variables(uuids, asked))


def _variables(uuids: Sequence[str], asked: GpuChoice) -> dict[str, str]:
    if any(uuids):
        return {GPUS: ";".join(for_cuda(uuid) for uuid in uuids)}
    return {"CUDA_VISIBLE_DEVICES": ""} if _means_none(asked) else {}


def for_cuda(uuid: str) -> str:
    """A uuid as CUDA_VISIBLE_DEVICES wants it.

    Example:
        >>> for_cuda("5a1c-07"), for_cuda("MIG-9e0b")
        ('GPU-5a1c-07', 'MIG-9e0b')
    """
    return uuid if uuid.startswith("MIG-") else f"GPU-{uuid.removeprefix('GPU-')}"


def visible(found: Sequence[Gpu], text: str | None) -> list[Gpu]:
    """Those GPUs that an outer CUDA_VISIBLE_DEVICES leaves, in its order.

    As CUDA does, it goes by numbers and by the beginnings of uuids, and stops at the first word that is no GPU. A part
    of a GPU, MIG-…, is believed where there is a driver, for its list does not show parts.

    Args:
        found: what the driver shows, in its order.
        text: the variable's; None if it is not set.

    Example:
        >>> visible([("5a1c", "H200"), ("77b2", "H200")], "GPU-77,0")
        [('77b2', 'H200'), ('5a1c', 'H200')]
        >>> visible([("5a1c", "H200")], "NoDevFiles")
        []
    """
    if text is None:
        return list(found)
    left: list[Gpu] = []
    for word in filter(None, (word.strip() for word in text.split(","))):
        fitting = [(word, "MIG")] if word.startswith("MIG-") and found else _fitting(found, word)
        if len(fitting) != 1:
            break
        left += fitting
    return left


def assign(n: int, found: Sequence[Gpu], gpus: GpuChoice = None) -> list[str]:
    """The uuid of the GPU of each local rank; "" for none.

    Args:
        n: how many ranks there are on this machine.
        found: the GPUs that may be used.
        gpus: what is asked for, dealt out in turn where there are more ranks than GPUs.
            None or ``"all"``: no rank is pinned, each sees all of them, and ``set_device(hvd.local_rank())`` chooses.
            ``"auto"``: one GPU for each rank.
            A number: the first so many.
            A sequence of numbers and uuids, or the same as a text with commas: these. A uuid's beginning is enough.
            0, False or ``"none"``: no rank sees any.

    Raises:
        LaunchError: this cannot be had.

    Example:
        >>> two = [("5a1c", "H200"), ("77b2", "H200")]
        >>> assign(3, two, "auto"), assign(2, two, "GPU-77"), assign(2, two, 0)
        (['5a1c', '77b2', '5a1c'], ['77b2', '77b2'], ['', ''])
        >>> assign(2, two, 4)
        Traceback (most recent call last):
        workbench.errors.LaunchError: gpus=4: there are 2 GPUs, 0 = H200 (GPU-5a1c), 1 = H200 (GPU-77b2). Ask for ...
    """
    chosen = _choose(found, gpus)
    return [chosen[rank % len(chosen)] if chosen else "" for rank in range(n)]


def _choose(found: Sequence[Gpu], gpus: GpuChoice) -> list[str]:
    """The uuids that are dealt out."""
    if gpus is None or _means_none(gpus) or gpus == "all":
        return []
    if gpus == "auto":
        return [uuid for uuid, _ in found]
    few = int(gpus) if isinstance(gpus, str) and gpus.isdecimal() else gpus
    if isinstance(few, int):
        if few is True or not 0 < few <= len(found):
            raise _wrong(gpus, found, f"Ask for 1 to {len(found)}, or for 0 to use none.")
        return [uuid for uuid, _ in found[:few]]
    these = [word for word in map(str.strip, gpus.split(",")) if word] if isinstance(gpus, str) else gpus
    if not isinstance(these, Sequence) or not these:
        raise _wrong(gpus, found, "Name at least one, or give 0 to use none.")
    return [_named(found, word, gpus) for word in these]


def _means_none(gpus: GpuChoice) -> bool:
    return gpus in ("none", "0") or (isinstance(gpus, int) and gpus == 0)


def _named(found: Sequence[Gpu], word: int | str, gpus: GpuChoice) -> str:
    """The uuid of the one that a word means. Whether there is such a MIG device nvidia-smi's list does not say."""
    if isinstance(word, str) and word.startswith("MIG-") and found:
        return word
    fitting = _fitting(found, word)
    if len(fitting) != 1:
        raise _wrong(gpus, found, f"{word!r} is {'more than one' if fitting else 'none'} of them.")
    return fitting[0][0]


def _fitting(found: Sequence[Gpu], word: int | str) -> list[Gpu]:
    """The GPUs that a number, or the beginning of a uuid, may mean. Digits alone are a number."""
    text = str(word).strip()
    if isinstance(word, bool) or not text.removeprefix("GPU-"):
        return []
    if text.isdecimal():
        return list(found[int(text) : int(text) + 1])
    return [gpu for gpu in found if gpu[0].lower().startswith(text.removeprefix("GPU-").lower())]


def _wrong(gpus: GpuChoice, found: Sequence[Gpu], cure: str) -> LaunchError:
    if not found:
        return LaunchError(
            f"gpus={gpus!r}: there is no GPU that this process may use. nvidia-smi shows none, or CUDA_VISIBLE_DEVICES "
            "hides them. Leave gpus out to run on the CPU."
        )
    those = ", ".join(f"{i} = {name} ({for_cuda(uuid)})" for i, (uuid, name) in enumerate(found))
    be = "is" if len(found) == 1 else "are"
    return LaunchError(f"gpus={gpus!r}: there {be} {count(len(found), 'GPU')}, {those}. {cure}")


def gpus() -> list[tuple[str, str]]:
    """(uuid, name) of each GPU that NVIDIA's driver knows; nothing without a driver."""
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    ask = [program, "--query-gpu=uuid,name", "--format=csv,noheader"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_ASK_TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        _log.warning("nvidia-smi has not answered for %g s: no rank gets a GPU.", _ASK_TIMEOUT_S)
        return []
    except OSError:
        return []
    return _parse(done.stdout.splitlines()) if done.returncode == 0 else []


def _parse(lines: Sequence[str]) -> list[tuple[str, str]]:
    """As torch writes them, without GPU- before the uuid.

    Example:
        >>> _parse(["GPU-5a1c, NVIDIA H200"])
        [('5a1c', 'NVIDIA H200')]
    """
    pairs = (line.partition(", ") for line in lines if ", " in line)
    return [(uuid.removeprefix("GPU-"), name.strip()) for uuid, _, name in pairs]
