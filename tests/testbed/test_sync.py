"""``--sync``, ``--host-discovery-script`` and ``--output-dir`` on two hosts that share no working folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from hosts import Hosts
from test_run_in_slurm import WORKBENCH, called, lines

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]


@pytest.fixture
def apart(hosts: Hosts, tmp_path: Path) -> Path:
    """A folder that each host has for itself; the first host's holds a program."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for i in (0, 1):
        assert hosts.run(i, "mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(tmp_path)).returncode == 0
    _write(
        hosts,
        folder / "train.py",
        "import helper, socket, os; print(os.environ['RANK'], socket.gethostname(), helper.WORD)\n",
    )
    _write(hosts, folder / "helper.py", "WORD = 'one'\n")
    _write(hosts, folder / ".gitignore", "*.log\n")
    _write(hosts, folder / "old.log", "secret\n")
    return folder


def _write(hosts: Hosts, path: Path, text: str) -> None:
    words = ["sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1"', "sh", str(path), text]
    assert hosts.run(0, *words).returncode == 0


RUN = [WORKBENCH, "run", "-H", "wb1:1,wb2:1"]
TRAIN = [sys.executable, "train.py"]


def test_the_working_folder_is_copied(apart: Path, hosts: Hosts) -> None:
    """Without it the cure is named; with it, what has changed and nothing else; what git ignores stays here."""
    done = called(hosts, *RUN, *TRAIN, folder=apart)
    assert (done.returncode, "wb2: it has no folder" in done.stderr, "--sync" in done.stderr) == (1, True, True)
    done = called(hosts, *RUN, "--sync", *TRAIN, folder=apart)
    assert (done.returncode, lines(done.stdout)) == (0, ["0 wb1 one", "1 wb2 one"]), done.stderr
    assert re.search(r"--sync: wb2: 3 files copied, \d+ bytes: \.gitignore, helper\.py, train\.py", done.stderr)
    there = set(hosts.run(1, "ls", "-A", str(apart)).stdout.split()) - {"__pycache__"}
    assert there == {".gitignore", "helper.py", "train.py"}
    _write(hosts, apart / "helper.py", "WORD = 'two or more'\n")
    done = called(hosts, *RUN, "--sync", *TRAIN, folder=apart)
    assert lines(done.stdout) == ["0 wb1 two or more", "1 wb2 two or more"], done.stderr
    assert "--sync: wb2: 1 file copied, 21 bytes: helper.py" in done.stderr
    assert "--sync: wb2: nothing has changed" in called(hosts, *RUN, "--sync", *TRAIN, folder=apart).stderr


def test_a_copy_that_fails(apart: Path, hosts: Hosts) -> None:
    """A full disk, no rsync, no such host: one line with the host and the cure, and nothing is started."""
    assert hosts.run(0, "dd", "if=/dev/urandom", f"of={apart}/large", "bs=1M", "count=8").returncode == 0
    assert hosts.run(1, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(apart.parent)).returncode == 0
    done = called(hosts, *RUN, "--sync", *TRAIN, folder=apart)
    assert (done.returncode, "wb2: its disk is full. Delete what is old there." in done.stderr) == (1, True), (
        done.stderr
    )
    assert done.stdout == ""
    # A program whose interpreter is missing is "not found".
    hide = f"umount {apart.parent}; printf '#!/nowhere/sh\\n' > /dev/shm/none; chmod +x /dev/shm/none; "
    assert hosts.run(1, "sh", "-c", f"{hide} mount --bind /dev/shm/none /usr/bin/rsync").returncode == 0
    done = called(hosts, *RUN, "--sync", *TRAIN, folder=apart)
    assert (done.returncode, "wb2: its rsync cannot be run" in done.stderr) == (1, True), done.stderr
    done = called(hosts, WORKBENCH, "run", "-H", "wb1,nowhere", "--sync", *TRAIN, folder=apart)
    assert (done.returncode, "nowhere: there is no host of this name" in done.stderr) == (1, True), done.stderr


def test_a_script_finds_the_hosts_and_a_folder_takes_the_output(apart: Path, hosts: Hosts) -> None:
    """``--host-discovery-script`` instead of -H; each rank's output is in a folder of its own, too."""
    _write(hosts, apart / "find", "#!/bin/sh\necho wb2:2\necho wb1\n")
    assert hosts.run(0, "chmod", "+x", str(apart / "find")).returncode == 0
    words = [WORKBENCH, "run", "--sync", "--host-discovery-script", "./find", "--output-dir", "out", *TRAIN]
    done = called(hosts, *words, folder=apart)
    assert (done.returncode, lines(done.stdout)) == (0, ["0 wb2 one", "1 wb2 one", "2 wb1 one"]), done.stderr
    found = [hosts.run(0, "cat", str(apart / "out" / f"rank.{rank}" / "stdout")).stdout for rank in range(3)]
    assert found == ["0 wb2 one\n", "1 wb2 one\n", "2 wb1 one\n"]
