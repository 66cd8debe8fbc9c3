"""``workbench doctor --hosts``."""

from __future__ import annotations

import re

import pytest
from hosts import Hosts
from namespaces import check
from test_run_in_slurm import WORKBENCH, called

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]


def test_the_slow_way_is_named(hosts: Hosts) -> None:
    """One host sends at 80 Mbit/s: its row says about 10 MB/s, and the report ends with its name."""
    shape = ("tbf", "rate", "80mbit", "burst", "256kb", "latency", "50ms")
    check(*hosts.words(1, "tc", "qdisc", "add", "dev", "eth0", "root", *shape))
    done = called(hosts, "env", "PYTHONIOENCODING=utf-8", WORKBENCH, "doctor", "--hosts", "wb1,wb2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ the rehearsal with 2 hosts" in done.stdout
    bandwidth = re.search(r"^wb2 +. +(\d+) +·$", done.stdout, re.MULTILINE)
    assert bandwidth, done.stdout
    assert 5 <= int(bandwidth[1]) <= 11  # 10 MB/s, less what headers take; the burst is 0.25 MB of 1 s
    assert re.search(r"^! wb2 → wb1 is the slowest: \d+ MB/s, and the median is", done.stdout, re.MULTILINE)


def test_a_host_that_cannot_be_used(hosts: Hosts) -> None:
    """Exit code 1, and its name; and one host is too few."""
    done = called(hosts, WORKBENCH, "doctor", "--hosts", "wb1,nowhere")
    assert (done.returncode, "nowhere: there is no host of this name" in done.stderr) == (1, True), done.stderr
    done = called(hosts, WORKBENCH, "doctor", "--hosts", "wb1")
    assert (done.returncode, "Name at least two hosts" in done.stderr) == (1, True), done.stderr
