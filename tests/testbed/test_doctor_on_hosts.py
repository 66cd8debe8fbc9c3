"""``workbench doctor --hosts``."""

from __future__ import annotations

import pytest
from hosts import Hosts
from test_run_in_slurm import WORKBENCH, called

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]


@pytest.mark.parametrize("names", [["wb1"], ["wb1", "wb2"]])
def test_hosts_that_can_be_used(hosts: Hosts, names: list[str]) -> None:
    """The rehearsal's result, and the interface and address of each host; one host alone can be tried, too."""
    done = called(hosts, "env", "PYTHONIOENCODING=utf-8", WORKBENCH, "doctor", "--hosts", ",".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    head, *lines = (line for line in done.stdout.splitlines() if not line.startswith("!"))
    assert head == f"✓ the rehearsal with {len(names)} host{'s' * (len(names) > 1)}"
    assert [line.split()[:3] for line in lines] == [
        [f"{name}:", "by", "eth0" if len(names) > 1 else "lo"] for name in names
    ]


def test_a_host_that_cannot_be_used(hosts: Hosts) -> None:
    """Exit code 1, and its name."""
    done = called(hosts, WORKBENCH, "doctor", "--hosts", "wb1,nowhere")
    assert (done.returncode, "nowhere: there is no host of this name" in done.stderr) == (1, True), done.stderr
