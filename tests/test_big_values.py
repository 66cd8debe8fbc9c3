"""More than two and four gigabytes at once: where 31 and 32 bits end, and where Linux moves no more in one call."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from big_values import filled, wrong

from workbench.elastic.checkpoint_files import ArrayPiece, read_header, write_part
from workbench.elastic.checkpoint_values import encode

if TYPE_CHECKING:
    from running import Runner

PROGRAM = str(Path(__file__).resolve().parent / "helpers" / "big_values.py")
DEADLINE_S = 1500.0
AROUND_2, OVER_2, OVER_4 = (0x7FFFF000, 0x7FFFF001, 2**31 - 1, 2**31), 2**31 + 5, 2**32 + 5
VERBS = ("broadcast", "allgather", "alltoall", "allreduce", "reducescatter", "object")
WAYS = ("auto", "mpi", "sockets")
pytestmark = [pytest.mark.thorough, pytest.mark.slow, pytest.mark.timeout(DEADLINE_S + 60)]


@pytest.fixture(autouse=True)
def one_at_a_time() -> Iterator[None]:
    """Each of these needs some ten gigabytes of memory."""
    with Path(tempfile.gettempdir(), "workbench-test-big-values.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(jobs: Runner, way: str, *what: str) -> None:
    job = jobs.mpiexec(2, PROGRAM, *what, deadline_s=DEADLINE_S, WORKBENCH_BACKEND=way)
    assert job.code == 0, job.report()
    for rank in range(2):
        assert job.out(rank).splitlines() == [f"{each.replace(':', ' ')} 0" for each in what], job.report()


@pytest.mark.parallel
@pytest.mark.parametrize("way", WAYS)
def test_every_verb_moves_more_than_two_gigabytes(jobs: Runner, way: str) -> None:
    """Over each way, all bytes of each verb's result are right."""
    _run(jobs, way, *(f"{verb}:{OVER_2}" for verb in VERBS))


@pytest.mark.parallel
@pytest.mark.parametrize("way", WAYS)
def test_messages_of_any_length_around_31_and_32_bits_arrive(jobs: Runner, way: str) -> None:
    """Over each way; reductions in shared memory alone, for elsewhere they need half as much memory again."""
    more = ("allreduce", "reducescatter") if way == "auto" else ()
    lengths = [f"broadcast:{length}" for length in AROUND_2]
    _run(jobs, way, *lengths, *(f"{verb}:{OVER_4}" for verb in ("broadcast", "allgather", "alltoall", *more)))


@pytest.mark.parametrize("length", [OVER_2, OVER_4])
def test_a_checkpoint_holds_them(tmp_path: Path, length: int) -> None:
    """What a part of a checkpoint holds is what was in the array, to the last byte."""
    _, arrays = encode({"x": filled(length, 1)})
    write_part(tmp_path / "part", "token", [ArrayPiece(0, 0, length)], arrays)
    offset: Any = read_header(tmp_path / "part")[2]
    try:
        assert wrong(np.memmap(tmp_path / "part", np.uint8, "r", offset)) == 0
        assert (tmp_path / "part").stat().st_size == offset + length
    finally:
        (tmp_path / "part").unlink()
