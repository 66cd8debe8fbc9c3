"""``horovod.ray`` through the alias. Horovod's own examples all download a data set; theirs is what the script does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ray_nodes import Nodes

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPT = (Path(__file__).parent / "scripts" / "as_horovod.py").read_text()


def test_a_script_of_horovods_users_runs(nodes: Nodes, tmp_path: Path) -> None:
    """With the names of its examples, older ones among them; ``horovod`` means the workbench in the ranks, too."""
    pytest.importorskip("torch")
    done = nodes.driver(SCRIPT, str(tmp_path), timeout_s=200.0)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found").read_text())
    assert found["executed"] == [0, 2, 4, 6]
    assert len(found["trained"]) == 2
    assert found["trained"][0] == found["trained"][1]
    assert found["heard"] == [1, 2, 3]
