"""Why ``--sync`` fails, from what shells and rsync say; copies between hosts are in ``tests/testbed``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.remote_shell import Ssh
from workbench.launch.sync import sync, why


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_no_rsync_on_the_other_side(shell: str) -> None:
    """Whatever the login shell is, the cure installs it."""
    words = [f"/bin/{shell}", "-c", "rsync --server"]
    said = subprocess.run(words, env={"PATH": "/nowhere"}, capture_output=True, text=True, timeout=20)
    assert said.returncode == 127
    assert why("b", 127, said.stderr, "/home", Ssh()) == "there is no rsync. Install it there: apt-get install rsync."


def test_no_rsync_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is said before any host is asked."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="--sync needs rsync, here and on the other hosts"):
        sync([Target("b", 1, Ssh())], str(tmp_path), print)


@pytest.mark.parametrize("folder", ["/", str(Path.home())])
def test_a_home_directory_is_not_copied(folder: str) -> None:
    """Nor is everything: that is no project, but a slip."""
    with pytest.raises(LaunchError, match="Start in the folder of your project"):
        sync([Target("b", 1, Ssh())], folder, print)
