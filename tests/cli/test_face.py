"""What a person sees of the command ``workbench``: the overview, the answer to a mistyped word, pages, completion."""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

import workbench
from workbench.cli import flags, learn
from workbench.cli import main as cli
from workbench.cli.completion import script
from workbench.cli.face import GROUPS
from workbench.diagnostics.explain import explanation, names
from workbench.errors import LaunchError


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints."""
    assert cli.main(words) == 0
    return capsys.readouterr().out


def test_the_overview_has_every_command_once_and_fits_a_terminal() -> None:
    """By what it is for; with examples and the exit codes; at most 30 lines of 120 characters."""
    parser = cli.parser()
    lines = parser.format_help().splitlines()
    assert len(lines) <= 30
    assert max(map(len, lines)) <= 120
    assert sorted(name for group in GROUPS.values() for name in group) == sorted(parser.commands())
    for name in parser.commands():
        (line,) = [line for line in lines if line.startswith(f"  {name} ")]
        assert len(line.split()) > 4, "its line says what it is for"


def test_the_command_alone_shows_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, and as a line that is mistyped: a script that forgot the rest learns of it."""
    assert cli.main([]) == 2
    assert capsys.readouterr().err == cli.parser().format_help()


@pytest.mark.parametrize(("typed", "meant"), [("rnu", "run"), ("docter", "doctor"), ("expalin", "explain")])
def test_a_mistyped_command_is_answered_with_the_nearest(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And nothing is run."""
    monkeypatch.setattr("sys.argv", ["workbench", typed])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert f"Did you mean `workbench {meant}`?" in capsys.readouterr().err


def test_help_shows_what_most_jobs_need_and_help_all_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    """An option that switches another one off has no line of its own in either."""
    texts = []
    for word in ("--help", "--help-all"):
        with pytest.raises(SystemExit):
            cli.main(["run", word])
        texts.append(capsys.readouterr().out)
    often, everything = texts
    assert len(often.splitlines()) < len(everything.splitlines())
    assert "--cache-capacity" not in often
    assert "the opposite" not in everything


def test_versions_are_json_for_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    """Of this package, Python, the system, and what is installed."""
    found = json.loads(shown(capsys, "version", "--json"))
    assert found["workbench"] == workbench.__version__
    assert {"python", "platform", "numpy", "mpi4py"} <= found.keys()
    assert workbench.__version__ in shown(capsys, "version")


def test_a_page_is_printed_as_it_stands(capsys: pytest.CaptureFixture[str]) -> None:
    """Its headings without their marks; the name in any case; without a name the list."""
    page = shown(capsys, "explain", "missingrankserror")
    assert page.splitlines()[0] == "MissingRanksError"
    assert page.splitlines()[2] == explanation("MissingRanksError").splitlines()[2]
    assert [line.split()[0] for line in shown(capsys, "explain").splitlines()] == list(names())


def test_an_unknown_error_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    """As a mistyped command is."""
    assert cli.main(["explain", "MissingRankError"]) == 1
    assert "Did you mean MissingRanksError?" in capsys.readouterr().err


def completed(words: str) -> list[str]:
    """What bash offers behind these words, the last of which is being typed."""
    code = f"{script('bash', cli.parser().commands())}\nCOMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
    done = subprocess.run(
        ["bash", "-c", code + 'complete() { :; }; _workbench; echo "${COMPREPLY[@]}"'], capture_output=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().split()


@pytest.mark.process
def test_bash_completes_commands_and_their_options() -> None:
    """A word that is no option behind a command is a file's name, which bash completes by itself."""
    assert completed("workbench do") == ["doctor"]
    assert completed("workbench doctor --host") == ["--hostfile", "--hosts"]
    assert completed("workbench run trai") == []


@pytest.mark.process
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_read_its_script(shell: str, tmp_path: Path) -> None:
    """Each that is installed here parses it without a word."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed here")
    path = tmp_path / "script"
    path.write_text(script(shell, cli.parser().commands()))
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("words", [["--no-browser"], ["--no-browser", "--port=8888"], [], ["--", "--no-browser"]])
def test_what_follows_lab_is_jupyterlabs(words: list[str]) -> None:
    """Options of its own, as `make lab ARGS=…` takes them."""
    assert flags.command(cli.parsed(["lab", *words])) == [word for word in words if word != "--"]


def test_lessons_are_copied_and_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A learner's own answers are never overwritten."""
    mine = tmp_path / "mine with spaces" / "exercises" / "03_ring_allreduce.ipynb"
    mine.parent.mkdir(parents=True)
    mine.write_text("my answers")
    assert "files in" in shown(capsys, "lessons", str(mine.parents[1]))
    assert mine.read_text() == "my answers"
    copied = {path.relative_to(mine.parents[1]).as_posix() for path in mine.parents[1].rglob("*") if path.is_file()}
    there = {path.relative_to(learn.built()).as_posix() for path in learn.built().glob("*s/[0-9]*.ipynb")}
    assert {name for name in there if not name.startswith("solutions")} <= copied
    assert not any(name.startswith("solutions") for name in copied)
    assert not any(part.startswith(".") for name in copied for part in name.split("/")), "somebody else's progress"
    assert learn.copy(mine.parents[1]) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here because a file has its name."""
    (tmp_path / "file").write_text("")
    assert cli.main(["lessons", str(tmp_path / "file")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_half_a_lesson_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk cut off is copied by the next command."""
    source, soft = tmp_path / "source" / "notebooks" / "00.ipynb", resource.getrlimit(resource.RLIMIT_FSIZE)
    source.parent.mkdir(parents=True)
    source.write_text("a whole lesson")
    monkeypatch.setattr(learn, "built", lambda: tmp_path / "source")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, soft[1]))
    try:
        with pytest.raises(LaunchError, match="cannot be written"):
            learn.copy(tmp_path / "mine")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, soft)
    assert [each.read_text() for each in learn.copy(tmp_path / "mine")] == ["a whole lesson"]
