"""Two machines are two, whatever their names are."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench import machine
from workbench.runtime.control.liveness import RankLiveness
from workbench.runtime.events import Beat

GONE = (1 << 22) + 1
"""A process id above the largest that Linux gives."""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, str]:
    """What another machine of this one's name, whose kernel drew another number at its start, says about itself."""
    boot_id = tmp_path / "boot_id"
    boot_id.write_text("5b0d7d0f-5a4e-4a38-a0f5-6f4d4b0c2c1e\n")
    with monkeypatch.context() as patch:
        patch.setattr(machine, "_BOOT_ID", boot_id)
        return machine.machine(), machine.host_id()


def test_machines_of_one_name_are_two(elsewhere: tuple[str, str]) -> None:
    """Neither memory nor process ids are taken to be shared where the names are equal, but the kernels are not."""
    assert machine.machine() != elsewhere[0]
    assert machine.host_id() != elsewhere[1]
    assert machine.machine().partition("/")[0] == elsewhere[0].partition("/")[0]


def test_process_ids_are_those_of_the_machine(elsewhere: tuple[str, str]) -> None:
    """A rank on another machine of this one's name lives, whatever its process id means here."""
    watch = RankLiveness(peer_timeout_s=30.0)
    watch.register(Beat(1, elsewhere[1], GONE), now=0.0)
    assert watch.lost(29.0) == []


def test_every_process_of_a_machine_says_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The answer does not change, and without the kernel's number the name alone has to do."""
    assert machine.host_id() == machine.host_id() != ""
    assert machine.host_id().startswith(machine.machine())
    monkeypatch.setattr(machine, "_BOOT_ID", tmp_path / "none")
    assert machine.machine().endswith("/")
