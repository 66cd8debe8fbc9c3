"""What ``cluster.up`` says while it starts engines: lines that stay, and one that is replaced."""

from __future__ import annotations

import pytest

from workbench.cluster.cluster import Speaker


def test_a_line_takes_the_place_of_the_notice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a screen nothing of the notice is left: each text is written over the one before."""
    monkeypatch.setenv("WORKBENCH_STREAM", "1")
    say = Speaker(quiet=False)
    say.now("starting: 2 of 4")
    say.now("starting: 3 of 4")
    say("4 engines ready")
    screen: dict[int, str] = {}
    at = 0
    for letter in capsys.readouterr().out.rstrip("\n"):
        at = 0 if letter == "\r" else at
        if letter != "\r":
            screen[at] = letter
            at += 1
    assert "".join(screen[i] for i in sorted(screen)).rstrip() == "4 engines ready"


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a line nor a notice."""
    say = Speaker(quiet=True)
    say.now("starting")
    say("ready")
    assert capsys.readouterr().out == ""


def test_outputs_that_are_compared_have_no_notice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody looks, as with a pipe, a start says the same however long it takes."""
    monkeypatch.delenv("WORKBENCH_STREAM", raising=False)
    say = Speaker(quiet=False)
    say.now("starting")
    say("ready")
    assert capsys.readouterr().out == "ready\n"
