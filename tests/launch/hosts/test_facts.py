"""What a host says about itself, of which some must be alike on all hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from workbench.launch.hosts.facts import facts, imported

# A script's folder: each way to import, one that is only named, and what is not there.
FILES = {
    "train.py": "import models.net as net, numpy\nfrom data import load\nimport missing_here\nimport broken\n",
    "data.py": "def load():\n    import late\n",
    "late.py": "import train\n",
    "broken.py": "import (\n",
    "models/__init__.py": "",
    "models/net.py": "from . import layers\nfrom .parts.block import Block\nfrom .. import nothing\n",
    "models/layers.py": "from .parts import *\n",
    "models/parts/__init__.py": "",
    "models/parts/block.py": "import data\nclass Block: ...\n",
    "models/other.py": "print('imported by nobody')\n",
    "numpy_like.py": "",
}
IMPORTED = FILES.keys() - {"train.py", "models/other.py", "numpy_like.py"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """It, as the current one."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("words", [["python", "train.py"], ["python", "-u", "-m", "train"]], ids=" ".join)
def test_every_file_that_a_script_imports_is_found(words: list[str], folder: Path) -> None:
    """Directly or by way of others, within functions, relative or not; with -m the module is one of them."""
    assert {str(path) for path in imported(words)} == IMPORTED | ({"train.py"} if "-m" in words else set())


def test_python_imports_no_other(folder: Path) -> None:
    """What Python itself loads from a script's folder is among them."""
    (folder / "train.py").write_text("import models.net, data\ndata.load()\n")
    (folder / "late.py").write_text("")
    (folder / "models" / "net.py").write_text(FILES["models/net.py"].replace("from .. import nothing\n", ""))
    show = "print(*(getattr(module, '__file__', '') for module in list(sys.modules.values())))"
    said = f"import runpy, sys\nrunpy.run_path('train.py')\n{show}"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    loaded = {Path(each) for each in done.stdout.split() if str(folder) in each}
    assert loaded == {folder / path for path in imported(["train.py"])}


def test_a_helper_that_differs_is_seen(folder: Path) -> None:
    """Its hash is another one, and that of all others is the same."""
    before = facts(["python", "train.py"])
    (folder / "models" / "layers.py").write_text("from .parts import *  # newer\n")
    after = facts(["python", "train.py"])
    assert before["files"] == after["files"]
    assert {name for name, text in before["imports"].items() if after["imports"][name] != text} == {"models/layers.py"}
