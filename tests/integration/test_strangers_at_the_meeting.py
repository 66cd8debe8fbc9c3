"""Processes that torchrun's variables start meet in a store that every user of the machine can reach."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [
    pytest.mark.usefixtures("warm_torch"),
    pytest.mark.integration,
    pytest.mark.timeout(150),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]
SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users can write to; not below pytest's own, which another run may close to them."""
    with tempfile.TemporaryDirectory(prefix="workbench-test-") as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.fixture
def port() -> int:
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Stranger:
    """``stranger.py``, as another user."""

    def __init__(self, how: str, port: int, folder: Path) -> None:
        words = [sys.executable, str(SCRIPTS / "stranger.py"), how, str(port), str(folder)]
        self._process = subprocess.Popen(words, stdout=subprocess.DEVNULL)

    def end(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()


@pytest.fixture
def attack(jobs: Runner, open_folder: Path, port: int) -> Iterator[object]:
    """Run the two ranks while a stranger attacks them."""
    strangers: list[Stranger] = []

    def run(how: str, *words: str, **env: str) -> Job:
        strangers.append(Stranger(how, port, open_folder))
        meet = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        each = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
        env = {"WORKBENCH_INIT_TIMEOUT_S": "15"} | meet | env
        words = (str(SCRIPTS / "meets.py"), str(open_folder), *words)
        return jobs.together(2, *words, deadline_s=90, each=each, **env)

    yield run
    for stranger in strangers:
        stranger.end()


SECRET = {"WORKBENCH_SECRET": "a secret that only the ranks know"}


@pytest.mark.parametrize(
    ("how", "env"),
    [
        ("overwrite", {}),
        once_more("replay", {}),
        once_more("be first", {}),
        *(once_more(how, SECRET) for how in ("be first", "move", "overwrite")),
    ],
)
def test_a_stranger_at_the_store_runs_nothing(attack: Any, open_folder: Path, how: str, env: dict[str, str]) -> None:
    """Whatever another user writes there: no code of his runs, no rank goes on with wrong values, and each says why."""
    for _ in range(5):  # the ranks may meet before the stranger has come to it
        job = attack(how, *(["again"] if how == "replay" else []), **env)
        assert (open_folder / "ready").exists(), job.report()
        if (open_folder / "done").exists():
            break
    assert (open_folder / "done").exists(), job.report()
    assert not (open_folder / "ran").exists(), (open_folder / "ran").read_text() + job.report()
    assert not job.left, job.report()
    wrong = [rank for rank in range(2) if "right" not in job.out(rank)]
    for rank in wrong:
        assert "WRONG" not in job.out(rank), job.report()
        # Of a rank that has found the lie, the other one may see only that it has ended.
        assert "LaunchError: " in job.err(rank) or "PeerLostError: " in job.err(rank), job.report()
    assert not wrong or any("LaunchError: " in job.err(rank) for rank in wrong), job.report()
