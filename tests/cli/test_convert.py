"""``workbench convert``: what is printed and written, and what stays."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

pytest.importorskip("libcst")

from workbench.cli import convert
from workbench.cli import main as cli

SCRIPT = Path(__file__).parents[1] / "convert" / "corpus" / "torch_classifier.py"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A copy that may be written over."""
    path = tmp_path / "train.py"
    path.write_bytes(SCRIPT.read_bytes())
    return path


def test_it_is_printed_and_the_script_stays(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the new script alone is on stdout."""
    assert cli.main(["convert", str(script)]) == 0
    assert "hvd.init()" in capsys.readouterr().out
    assert script.read_bytes() == SCRIPT.read_bytes()
    assert list(script.parent.iterdir()) == [script]


def test_a_file_is_written_and_none_is_replaced(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not by ``-o``, also not the script itself; by ``--in-place``."""
    to = script.with_name("ranks.py")
    assert cli.main(["convert", str(script), "-o", str(to)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"workbench run -np 2 python {to}" in said.err
    for path in (to, script):
        assert cli.main(["convert", str(script), "-o", str(path)]) == 1
        assert "exists already, and is not replaced" in capsys.readouterr().err
    assert cli.main(["convert", str(script), "--in-place"]) == 0
    assert script.read_bytes() == to.read_bytes()
    assert cli.main(["convert", str(script), "--in-place", "-o", "x.py"]) == 1
    assert cli.main(["convert", str(SCRIPT), "-o", str(script / "x.py")]) == 1


@pytest.mark.process
def test_patch_understands_the_difference(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--diff`` applied to the script is the converted script."""
    assert cli.main(["convert", str(script), "--diff"]) == 0
    difference = capsys.readouterr().out
    assert cli.main(["convert", str(script)]) == 0
    done = subprocess.run(["patch", str(script)], input=difference, text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert script.read_text() == capsys.readouterr().out


def test_a_last_line_without_an_end_is_said() -> None:
    """As ``diff`` says it."""
    from workbench.convert.conversion import convert as converted

    lines = convert.diff("a.py", converted("a.py", SCRIPT.read_text().rstrip("\n"))).splitlines()
    assert lines.count("\\ No newline at end of file") in (1, 2)


def test_each_step_is_explained(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its title, its lines, and what happens without it."""
    assert cli.main(["convert", str(script), "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# train.py: from PyTorch, step by step")
    assert "## 4. Shard the data" in text
    assert "Without it, each rank trains on all samples." in text
    assert "nothing to change" not in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--check", "--scale-lr"], "larger batches"),
        (["--check", "-np", "1"], "-np 2 or more"),
        (["--to", "ddp"], "does not import workbench.torch"),
    ],
)
def test_options_that_do_not_fit(words: list[str], says: str, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence, exit code 1."""
    assert cli.main(["convert", str(script), *words]) == 1
    assert says in capsys.readouterr().err


def test_what_is_to_decide_is_listed(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, with the line; the script is written, and the exit code is neither that of success nor of failure."""
    script.write_bytes(SCRIPT.with_name("torch_full_batch.py").read_bytes())
    assert cli.main(["convert", str(script)]) == 3
    said = capsys.readouterr()
    assert "# Decide: no loop over a DataLoader" in said.out
    assert "1 to decide, each in a comment at its line:" in said.err
    assert "line 10: no loop over a DataLoader" in said.err


def test_a_refusal_names_the_line(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, exit code 1; nothing is written."""
    script.write_text("import torch\nprint 1\n")
    assert cli.main(["convert", str(script), "-o", str(script.with_name("new.py"))]) == 1
    assert "line 2: this is Python 2" in capsys.readouterr().err
    assert not script.with_name("new.py").exists()


def test_without_libcst_it_says_what_to_install(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command that installs it."""
    monkeypatch.setattr(convert, "has", lambda module: module != "libcst")
    assert cli.main(["convert", str(script)]) == 1
    assert "pip install '.[convert]' in a clone" in capsys.readouterr().err


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_the_check_compares_ten_steps(warm_torch: None, script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the script's own arguments behind ``--``."""
    assert cli.main(["convert", str(script), "--check", "--", "--lr", "0.05"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.strip()[:1].isdigit()]) == 10
    assert lines[-1] == "✓ 2 ranks train as 1 rank did."
