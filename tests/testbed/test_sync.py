"""``workbench run --sync``, between two hosts that share no folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from hosts import Hosts
from test_run_in_slurm import called, lines
from test_run_on_hosts import RUN
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with a script, and what is not to be copied."""
    folder = tmp_path / "my project"
    (folder / "data").mkdir(parents=True)
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("secret")
    (folder / "train.sh").write_text("cat settings.txt; ls -A . data")
    (folder / "settings.txt").write_text("one\n")
    (folder / ".gitignore").write_text("*.log\ndata/*.bin\n")
    (folder / "old.log").write_text("log")
    (folder / "data" / "large.bin").write_text("data")
    return folder


def test_the_folder_is_copied(project: Path, hosts: Hosts) -> None:
    """Code is the same then; ignored files stay here, theirs stay there."""
    assert hosts.run(1, "mount", "-t", "tmpfs", "tmpfs", str(project.parent)).returncode == 0
    words = ["sh", "train.sh"]
    done = called(hosts, *RUN, "--sync", *words, folder=project)
    assert done.returncode == 0, done.stderr
    assert "workbench: wb2: --sync copied 3 files, 51 bytes; nothing is deleted there" in done.stderr
    assert "workbench:   train.sh" in done.stderr
    there = [line.partition(":")[2] for line in done.stdout.splitlines() if line.startswith("[3@wb2]")]
    assert there == ["one", ".:", ".gitignore", "data", "settings.txt", "train.sh", "", "data:"]
    # Later: one file has changed, one is new there, one is gone here.
    (project / "settings.txt").write_text("another\n")
    (project / "old.log").unlink()
    assert hosts.run(1, "touch", str(project / "theirs")).returncode == 0
    (project / ".gitignore").write_text("*.log\n*.bin\n")
    done = called(hosts, *RUN, "--sync", "cat", "settings.txt", folder=project)
    assert "wb2: --sync copied 2 files, 20 bytes" in done.stderr, done.stderr
    assert done.stdout.count(":another") == 4
    assert hosts.run(1, "ls", str(project)).stdout.split() == ["data", "settings.txt", "theirs", "train.sh"]


@pytest.mark.parametrize(
    ("options", "said"), [("size=16k", "its disk is full"), once_more("ro", "this user may not make")]
)
def test_what_hinders_a_copy(options: str, said: str, project: Path, hosts: Hosts) -> None:
    """The host, the reason and the cure; nothing is started."""
    (project / "large").write_bytes(bytes(1 << 20))
    assert hosts.run(1, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(project.parent)).returncode == 0
    done = called(hosts, *RUN, "--sync", "echo", "started", folder=project)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"--sync failed, and nothing was started:\n  wb2: {said}" in done.stderr, done.stderr


def test_hosts_of_one_machine(project: Path, hosts: Hosts) -> None:
    """There is nothing to do, which is said."""
    done = called(hosts, RUN[0], "run", "--sync", "-H", "localhost:2", "sh", "-c", "echo done", folder=project)
    assert (done.returncode, "--sync has nothing to do" in done.stderr) == (0, True), done.stderr
    assert lines(done.stdout) == []
