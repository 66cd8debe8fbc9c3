"""Another user of the same machine reads nothing of a notebook's engines and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from other_user import READS, SECRET, as_nobody, heard, listening, nobody

from workbench import cluster
from workbench.course import build
from workbench.launch.ranks.watchdog import Leftovers

pytestmark = [
    pytest.mark.usefixtures("forked_engines"),
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def engines() -> Iterator[cluster.Cluster]:
    """Two engines."""
    with cluster.up(2, quiet=True) as up:
        yield up


@as_nobody
def test_another_user_reads_nothing_that_the_engines_say(engines: cluster.Cluster) -> None:
    """Whatever port of the cluster's another user subscribes at, nothing comes."""
    ports = {port for _, port in listening(Leftovers(engines.id).processes())}
    assert len(ports) >= 10

    def say() -> None:
        said = engines.view.execute(f"print({SECRET!r})", silent=False, block=False)
        said.wait_for_output(10)
        assert SECRET in said.stdout[0]

    assert not heard(ports, say)


@as_nobody
def test_another_user_cannot_read_the_files_of_a_cluster(engines: cluster.Cluster) -> None:
    """The keys are in files that their owner alone may read, in a folder that nobody else may enter."""
    assert engines.client.session.key  # what is encrypted is signed, too
    folder = engines._job.folder
    assert folder.stat().st_mode & 0o777 == 0o700
    keys = list(folder.rglob("ipcontroller-*.json"))
    assert len(keys) == 2
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}
    with nobody(READS, *map(str, keys), "/etc/passwd") as process:
        out, _ = process.communicate(timeout=60)
    assert out.split() == ["/etc/passwd"]


def test_a_kernel_that_builds_a_notebook_talks_over_sockets_of_its_own(tmp_path: Path) -> None:
    """Lessons and the demo run in a kernel that listens at no port, but in a folder that nobody else may enter."""
    source = (
        "import json, os, ipykernel\n"
        "said = json.load(open(ipykernel.get_connection_file()))\n"
        "print(said['transport'], oct(os.stat(os.path.dirname(said['ip'])).st_mode & 0o777))"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    (cell,) = build.execute(notebook, tmp_path).cells
    assert cell.outputs[0].text == "ipc 0o700\n"
