"""``workbench run python -``: a script on standard input."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest

from workbench.cli.standard_input import with_script
from workbench.errors import LaunchError

SCRIPT = """\
import sys
import workbench as hvd
hvd.init()
print("it's", hvd.rank(), "of", hvd.size(), sys.argv[1:])
"""


@pytest.mark.parametrize("words", [["-u", "-", "--epochs", "3"], []], ids=" ".join)
def test_every_rank_runs_the_script(words: list[str]) -> None:
    """As one process would: with its arguments, and also without the ``-``."""
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", sys.executable, *words]
    done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    arguments = words[words.index("-") + 1 :] if words else []
    expected = {f"[{rank}]<stdout>:it's {rank} of 2 {arguments}" for rank in range(2)}
    assert set(done.stdout.splitlines()) == expected


@pytest.mark.parametrize(
    "command",
    ["python train.py -", "python -m train", "python -uc pass", "python3 -Im train -", "python -V", "cat -", "env", ""],
)
def test_other_commands_are_left_alone(command: str) -> None:
    """Python reads no script from standard input there, and so does nobody."""
    assert with_script(command.split(), io.StringIO("not read")) == command.split()


@pytest.mark.parametrize(
    "command", ["python3.11 -", "/usr/bin/python -u -", "python -W error -", "python -X dev", "python -W", "python"]
)
def test_where_python_reads_a_script(command: str) -> None:
    """The ``-`` is replaced by the text; without it, it comes last."""
    words = command.split()
    assert with_script(words, io.StringIO("pass")) == [*[word for word in words if word != "-"], "-c", "pass"]


def test_no_script() -> None:
    """Nothing on standard input, a terminal on which nobody has begun to type, or more than a command takes."""
    terminal = io.StringIO("typed")
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    for words, stream in ((["python", "-"], io.StringIO("\n")), (["python"], terminal)):
        with pytest.raises(LaunchError, match=r"no script.*workbench run -np 2 python - < train\.py"):
            with_script(words, stream)
    endless = io.StringIO("#" * 1_000_000)
    with pytest.raises(LaunchError, match=r"more than 131,071 bytes.*save it in a file"):
        with_script(["python", "-"], endless)
    assert endless.tell() < 200_000, "a data set by mistake would fill the memory"
    with pytest.raises(LaunchError, match="no text"):
        with_script(["python", "-"], io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
