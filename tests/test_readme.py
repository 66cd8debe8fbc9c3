"""README.md is true: its commands are run, its outputs, figures and links are looked at."""

from __future__ import annotations

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import ROOT, blocks, commands
from fork_server import ForkServer
from loading import load

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
ONE_LINE = " ".join(TEXT.split())
PYTHON = [block.code for block in blocks(ROOT / "README.md", "python")]
COMMANDS = commands(ROOT / "README.md")
FOR_THE_SHELL = [each for each in COMMANDS if each.startswith("export ")]


def run(folder: Path, *commands: str, timeout: float = 120, **variables: str) -> str:
    """What a new shell prints that knows the system's programs only; each command must succeed."""
    env = {**os.environ, "PATH": "/usr/bin:/bin", **variables}
    words = ["bash", "-ec", "\n".join(commands)]
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.process
def test_the_training_prints_what_stands_below_it(tmp_path: Path, torch_forks: ForkServer) -> None:
    """On two ranks, whose lines come in any order; in a shell that has read the line for it, and no other.

    The environment is that which `make demo` leaves in a clone, with a Python that has imported torch.
    """
    pytest.importorskip("torch")
    (block,) = [block for block in blocks(ROOT / "README.md", "console") if "train.py" in block.text]
    command, *expected = block.text.splitlines()
    (tmp_path / "train.py").write_text(PYTHON[0])
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(torch_forks.python)
    (programs / "workbench").symlink_to(Path(sys.executable).with_name("workbench"))
    assert sorted(run(tmp_path, *FOR_THE_SHELL, command.removeprefix("$ ")).splitlines()) == sorted(expected)


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_a_fresh_clone_is_set_up_and_tested(tmp_path: Path) -> None:
    """`make demo`, one file of `make test`, and what the shell then finds; the lab's own tests are in tests/browser."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    demo, test = (each for each in COMMANDS if each in ("make demo", "make test"))
    test = f"ARGS=tests/collectives/test_ring.py {test}"
    said = run(clone, demo, test, *FOR_THE_SHELL, "command -v workbench", timeout=1100, EXTRAS="torch,lessons,dev")
    assert said.splitlines()[-1] == str(clone / ".venv" / "bin" / "workbench")
    assert "demo: OK" in said
    assert re.search(r"\d+ passed", said)


def test_the_figures_are_those_of_the_results() -> None:
    """Images per second, and milliseconds of 64 MiB: of the last `make bench`."""
    results = (ROOT / "benchmarks" / "results" / "bench-quick.md").read_text(encoding="utf-8")
    (peers,) = re.findall(r"^\| images/s \|(.*)\|$", results, re.MULTILINE)
    place = {peer.strip(): i for i, peer in enumerate(peers.split("|"))}
    shown = ("independent copies (limit)", "workbench", "workbench sharded", "DDP", "DDP tuned", "Horovod")
    for name in ("CNN, 0.1 M", "ResNet-18, 11 M", "MLP, 25 M"):
        (ours,) = re.findall(rf"^\| {name}[^|]*\|(.*)\|$", TEXT, re.MULTILINE)
        theirs = re.findall(rf"^\| {name}[^|]*\|(.*)\|$", results, re.MULTILINE)[0].split("|")
        measured = [int(re.findall(r"\d+", theirs[place[peer]])[0]) for peer in shown]
        assert [int(re.findall(r"\d+", cell)[0]) for cell in ours.split("|")] == measured
    (peers,) = {*re.findall(r"^\| ms \|(.*workbench in place.*)\|$", results, re.MULTILINE)}
    place = {peer.strip(): i for i, peer in enumerate(peers.split("|"))}
    rows = {size: row.split("|") for size, row in re.findall(r"^\| (\S+ [KM]iB) \|(.*)\|$", results, re.MULTILINE)[:4]}

    def ms(size: str, *peers: str) -> list[str]:
        return [rows[size][place[peer]].split()[0].strip("*") for peer in peers]

    shown = ("workbench in place", "workbench allreduce_ (any tensor)", "MPI.Allreduce", "Horovod", "Gloo")
    large = [round(float(each)) for each in ms("64 MiB", *shown)]
    small = [each for size in ("4 KiB", "1 MiB") for each in ms(size, "MPI.Allreduce", "workbench in place")]
    says = (
        "64 MiB on two ranks take {} ms in memory of the workbench, and {} in any tensor; MPI's allreduce takes {}, "
        "Horovod's {}, Gloo's {}. MPI is faster at 4 KiB ({:.3f} ms, here {}); 1 MiB take it {} ms, here {}"
    )
    assert says.format(*large, float(small[0]), *small[1:]) in ONE_LINE


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["front-door", "ddp"])
def test_a_picture_shows_what_the_cells_print(name: str) -> None:
    """Each of both themes, line by line; the seconds are the machine's."""
    folder = ROOT / "docs" / "pictures"
    script = load("cells", folder)
    cells = script.run(script.STORIES[name])
    assert [cell.failed for cell in cells] == [True, False]
    for theme in script.THEMES:
        picture = (folder / f"{name}-{theme}.svg").read_text(encoding="utf-8")
        assert len(picture) < 1 << 20
        for line in (line for cell in cells for line in script.wrapped(cell.output)):
            assert html.escape(line).replace(" ", "\u00a0") in picture
