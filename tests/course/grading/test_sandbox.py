"""``--sandbox``: with bubblewrap there is no network, no other process and no other file."""

from __future__ import annotations

from pathlib import Path

import pytest
from submissions import RIGHT, SETUP, state, write

from workbench.cli.grade import grade
from workbench.cli.grade.grade import Grading, How
from workbench.cli.grade.submissions import read
from workbench.errors import LaunchError


def works() -> bool:
    """Is bubblewrap there, and may it make namespaces?"""
    try:
        grade.check_sandbox()
    except LaunchError:
        return False
    return True


@pytest.mark.skipif(
    not works(), reason="bubblewrap is not installed (make setup-tests), or may not make namespaces here"
)
def test_a_sandboxed_notebook_sees_itself_only(tmp_path: Path) -> None:
    """Honest answers pass; files, processes and networks of others are not there."""
    other = tmp_path / "lee.ipynb"
    write(other, SETUP)
    looks = [
        f"assert not os.path.exists({str(other)!r})",
        "assert len([one for one in os.listdir('/proc') if one.isdigit()]) < 6, os.listdir('/proc')",
        "names = [line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]\nassert names == ['lo']",
        "open('own.txt', 'w').write('x')",
    ]
    sheet = Grading(read(write(tmp_path / "kim.ipynb", SETUP, *looks, RIGHT)), How(50.0, sandbox=True)).run()
    assert (sheet.notes, sheet.problem, state(sheet)) == ({}, "", "✓")


def test_a_sandbox_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without bubblewrap, or where it may not make namespaces, the error says what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="apt-get install bubblewrap"):
        grade.check_sandbox()
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    false.chmod(0o755)
    with pytest.raises(LaunchError, match=r"No permissions.*unprivileged user namespaces"):
        grade.check_sandbox()


def test_root_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root has to say that it is meant; others need not."""
    monkeypatch.setattr("os.geteuid", lambda: 0)
    with pytest.raises(LaunchError, match="--as-root"):
        grade.check_user(as_root=False)
    grade.check_user(as_root=True)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    grade.check_user(as_root=False)
