"""The chart's discovery script, run by this machine's shell with a ``getent`` that answers as DNS would.

In pods, with ``/etc/hosts`` in DNS's place: ``tests/testbed/test_pods.py``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from charts import documents, one, values

GETENT = '#!/bin/sh\n[ "$1" = hosts ] || exit 1\ngrep -qx "$2" "$(dirname "$0")/known" || exit 2\n'
SERVICE = "demo-workbench-worker"


def discover(folder: Path, known: list[str]) -> subprocess.CompletedProcess[str]:
    """What the script of three elastic workers with two slots prints while DNS knows these names."""
    elastic = {"enabled": True, "min": 1, "max": 3}
    told = values(elastic=elastic, worker={"number": 1, "slots": 2})
    script, getent = folder / "discover_hosts.sh", folder / "getent"
    script.write_text(one(documents(told), "ConfigMap", "-job")["data"]["discover_hosts.sh"])
    getent.write_text(GETENT)
    (folder / "known").write_text("".join(f"{name}\n" for name in known))
    for path in (script, getent):
        path.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.run([str(script)], capture_output=True, text=True, env=env, timeout=20)


@pytest.mark.parametrize("ready", [[0, 1, 2], [0], [2], [1, 2], []])
def test_it_prints_the_workers_that_are_ready(tmp_path: Path, ready: list[int]) -> None:
    """Each with its slots, in the order of their indices; it succeeds although others have no name."""
    known = [f"{SERVICE}-{i}.{SERVICE}" for i in ready]
    done = discover(tmp_path, [*known, "kubernetes.default"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{name}:2" for name in known]


def test_it_fails_while_dns_does_not_answer(tmp_path: Path) -> None:
    """So the job keeps the hosts that it has; a name more than 0 to 2 is not asked for."""
    done = discover(tmp_path, [])
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "DNS does not answer\n")
    done = discover(tmp_path, [f"{SERVICE}-3.{SERVICE}", "kubernetes.default"])
    assert (done.returncode, done.stdout) == (0, "")
