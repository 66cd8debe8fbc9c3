"""Hosts and slots, as people write them, and as a program prints them."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.errors import LaunchError
from workbench.launch.start.hosts import check, discover, parse, read


def test_lists_and_files(tmp_path: Path) -> None:
    """Names with slots, or one slot."""
    assert parse("a:2, b") == [("a", 2), ("b", 1)]
    (tmp_path / "hosts").write_text("# ours\na slots=4\nb:2  # the new one\n\nc\n")
    assert read(str(tmp_path / "hosts")) == [("a", 4), ("b", 2), ("c", 1)]
    with pytest.raises(LaunchError, match="a: named twice"):
        check([("a", 1), ("a", 2)], 1)


def _script(folder: Path, text: str) -> str:
    path = folder / "find hosts"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return f"'{path}'"


def test_a_program_prints_them(tmp_path: Path) -> None:
    """Its words may have spaces; a host without slots has as many as are said."""
    assert discover(_script(tmp_path, "echo a:2; echo; echo b '# new'"), slots=3) == [("a", 2), ("b", 3)]
    assert discover(_script(tmp_path, 'echo "$1"') + " c:5") == [("c", 5)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo no leader >&2; exit 3", "ended with exit code 3: no leader"),
        ("exit 1", "exit code 1: it wrote nothing on stderr"),
        ("true", "printed no host. It is to print a line such as node1:4"),
        ("echo 'a: many'", "'a: many' is no host"),
        ("exec sleep 60", r"did not end within 0\.5 s"),
    ],
)
def test_a_program_that_does_not(tmp_path: Path, text: str, said: str) -> None:
    """It fails, prints nonsense or nothing, or does not end."""
    with pytest.raises(LaunchError, match=said):
        discover(_script(tmp_path, text), timeout_s=0.5 if "sleep" in text else 10.0)


@pytest.mark.parametrize("script", ["/no/such/program", "'", "", "/dev/null"])
def test_a_program_that_is_none(script: str) -> None:
    """It is not there, cannot be executed, or is no word."""
    with pytest.raises(LaunchError, match=r"cannot be run: .*chmod"):
        discover(script)
