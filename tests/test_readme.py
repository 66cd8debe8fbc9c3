"""README.md is one page, and true: its commands are run, its outputs, figures and links are looked at."""

from __future__ import annotations

import html
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from doc_blocks import ROOT, blocks, commands, unknown_extras

from workbench.course.links import course

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = [block.code for block in blocks(ROOT / "README.md", "python")]
COMMANDS = commands(ROOT / "README.md")


def test_it_is_one_page() -> None:
    """At most 200 lines and 12 kB."""
    assert len(TEXT.splitlines()) <= 200
    assert len(TEXT.encode()) <= 12_000


def run(folder: Path, *command: str) -> str:
    """What a command of this environment prints, on both streams."""
    words = [str(Path(sys.executable).parent / "workbench"), *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_the_training_prints_what_stands_below_it(tmp_path: Path) -> None:
    """On two ranks, whose lines come in any order."""
    pytest.importorskip("torch")
    (block,) = [block for block in blocks(ROOT / "README.md", "console") if "train.py" in block.text]
    command, *expected = block.text.splitlines()
    (tmp_path / "train.py").write_text(PYTHON[0])
    words = command.removeprefix("$ workbench ").replace("python ", f"{sys.executable} ").split()
    assert sorted(run(tmp_path, *words).splitlines()) == sorted(expected)


@pytest.mark.process
def test_a_horovod_script_runs_as_it_says(tmp_path: Path) -> None:
    """The command of the README, with a script that knows nothing of the workbench."""
    pytest.importorskip("torch")
    (command,) = [each for each in COMMANDS if "--as-horovod" in each]
    (tmp_path / "your_horovod_script.py").write_text(PYTHON[0].replace("workbench.torch", "horovod.torch"))
    words = command.removeprefix("workbench ").replace("python ", f"{sys.executable} ").split()
    assert len(re.findall(r"rank \d of 4: my loss", run(tmp_path, *words))) == 4


@pytest.mark.process
def test_engines_come_up_as_it_says(tmp_path: Path) -> None:
    """And a cell runs on both."""
    code = PYTHON[1] + "print(engines.client[:].apply_sync(lambda: 6 * 7))\nengines.down()\n"
    (tmp_path / "script.py").write_text(code)
    done = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "[42, 42]" in done.stdout, done.stderr


def test_every_command_is_run_by_a_test() -> None:
    """Those above, or where its own tests are: `make demo` in tests/course, `make lab` in tests/browser."""
    ours = {"workbench run -np 2 python train.py", 'pip install ".[torch]"'}
    assert {each for each in COMMANDS if each not in ours and "--as-horovod" not in each} == {"make demo", "make lab"}
    assert '".[torch]"' in TEXT
    assert unknown_extras(TEXT) == set()


def test_each_link_leads_somewhere() -> None:
    """Files of this repository; and within the page, headings."""
    links = re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", TEXT)
    found = [one or other for one, other in links if not (one or other).startswith(("http", "../../actions"))]
    headings = {
        "#" + re.sub(r"[^\w\- ]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.+)$", TEXT, re.M)
    }
    assert len(found) > 30
    assert [each for each in found if each not in headings and not (ROOT / each.partition("#")[0]).exists()] == []


def minutes(lesson: Any) -> int:
    """What its head says: to read, and to do."""
    head = re.sub(r"\s*\n# ?", " ", (ROOT / "lessons" / f"{lesson.stem}.py").read_text(encoding="utf-8")[:5000])
    found = re.search(r"\*\*Takes\*\* (?:about )?(\d+) minutes to read(?: and try)?,? ?(\d+)?", head)
    assert found, lesson.stem
    return int(found[1]) + int(found[2] or 0)


def test_the_course_is_listed_with_its_minutes() -> None:
    """Each lesson with its title and the minutes of its head."""
    rows = re.findall(r"^\| (\d\d) \| \[(.+)\]\(notebooks/(.+)\.ipynb\) \| (\d+) \|$", TEXT, re.MULTILINE)
    expected = [(each.stem[:2], each.title, each.stem, str(minutes(each))) for each in course(ROOT / "lessons")]
    assert rows == expected


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
    row = re.findall(r"^\| 64 MiB \|(.*)\|$", results, re.MULTILINE)[0].split("|")
    shown = ("workbench in place", "MPI.Allreduce", "Horovod", "Gloo")
    ours, *ms = [round(float(re.findall(r"[\d.]+", row[place[peer]])[0])) for peer in shown]
    says = "64 MiB on two ranks take {} ms, MPI's allreduce {}, Horovod's {}, Gloo's {}"
    assert says.format(ours, *ms) in " ".join(TEXT.split())


def test_the_number_of_compared_outputs_is_counted() -> None:
    """Of lessons and solutions, as nbval reads them."""
    paths = [path for kind in ("notebooks", "solutions") for path in (ROOT / kind).glob("[0-9]*.ipynb")]
    cells = [cell for path in paths for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    ignored = [
        c for c in cells if "NBVAL_IGNORE_OUTPUT" in c.source or "nbval-ignore-output" in c.metadata.get("tags", [])
    ]
    says = (
        f"Of {len(cells)} code cells in lessons and solutions, {len(cells) - len(ignored)} have their output compared"
    )
    assert says in " ".join(TEXT.split())
    assert f"{len(ignored)} show" in TEXT


@pytest.mark.process
@pytest.mark.timeout(180)
def test_the_picture_shows_what_the_cells_print() -> None:
    """Both pictures, line by line; the seconds are the machine's."""
    path = ROOT / "docs" / "pictures" / "front_door.py"
    spec = importlib.util.spec_from_file_location("front_door", path)
    assert spec
    assert spec.loader
    sys.modules["front_door"] = script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    cells = script.run()
    assert [cell.failed for cell in cells] == [True, False]
    for theme in script.THEMES:
        picture = (path.parent / f"front-door-{theme}.svg").read_text(encoding="utf-8")
        assert len(picture) < 1 << 20
        for line in (line for cell in cells for line in script.wrapped(cell.output)):
            assert html.escape(line).replace(" ", "\u00a0") in picture
