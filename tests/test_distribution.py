"""The wheel and the sdist: they hold the package, and the wheel works beside its declared dependencies alone."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from project import PROJECT, ROOT

import workbench

FILE_NAME = PROJECT["name"].replace("-", "_") + f"-{PROJECT['version']}"


def build(source: Path, out: Path, *which: str) -> None:
    """Build what hatchling makes of a source tree."""
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(out), *which]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the sdist of this checkout."""
    out = tmp_path_factory.mktemp("dist")
    build(ROOT, out)
    assert {each.name for each in out.iterdir()} == {f"{FILE_NAME}.tar.gz", f"{FILE_NAME}-py3-none-any.whl"}
    return out


def test_the_wheel_holds_the_package_and_nothing_else(built: Path) -> None:
    """Each file of ``workbench/``, and the built lessons; beside them there is only what describes the wheel."""
    with zipfile.ZipFile(built / f"{FILE_NAME}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    package = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "workbench").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    } | {
        f"workbench/_lessons/{path.relative_to(ROOT).as_posix()}"
        for kind in ("notebooks", "exercises")
        for path in (ROOT / kind).rglob("*")
        if path.is_file() and not any(part.startswith((".", "__")) for part in path.relative_to(ROOT).parts)
    }
    shared = f"{FILE_NAME}.data/data/share/jupyter/"
    assert {name for name in names if not name.startswith((f"{FILE_NAME}.dist-info/", shared))} == package
    extension = {name.removeprefix(shared) for name in names if name.startswith(shared)}
    assert extension == {
        path.relative_to(ROOT / "workbench").as_posix()
        for path in (ROOT / "workbench" / "labextensions").rglob("*")
        if path.is_file()
    }


def test_the_sdist_makes_the_same_wheel(built: Path, tmp_path: Path) -> None:
    """A wheel built from the sdist is, byte for byte, the one that is built from the checkout."""
    with tarfile.open(built / f"{FILE_NAME}.tar.gz") as sdist:
        sdist.extractall(tmp_path, filter="data")
    build(tmp_path / FILE_NAME, tmp_path, "-t", "wheel")
    name = f"{FILE_NAME}-py3-none-any.whl"
    assert (tmp_path / name).read_bytes() == (built / name).read_bytes()


def test_an_editable_install_is_the_checkout_itself(tmp_path: Path) -> None:
    """What ``make setup`` installs holds none of our files, only the path of the checkout."""
    build(ROOT, tmp_path, "-t", "wheel:editable")
    with zipfile.ZipFile(next(tmp_path.iterdir())) as wheel:
        (pth,) = (name for name in wheel.namelist() if "/" not in name)
        assert wheel.read(pth).decode().split() == [str(ROOT)]


def needed(names: list[str]) -> set[str]:
    """Distributions that these requirements bring along, themselves among them, as installed here."""
    found: set[str] = set()
    todo = [Requirement(each) for each in names]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found.add(name)
            todo += [Requirement(each) for each in distribution(name).requires or []]
    return found


@pytest.fixture(scope="module")
def clean_python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment: the wheel, and links to what pyproject.toml declares as dependencies.

    Its path has what paths of learners have: spaces and umlauts.
    """
    return environment(built, tmp_path_factory.mktemp("Übung für zwei"), PROJECT["dependencies"])


def environment(built: Path, place: Path, names: list[str]) -> Path:
    """The Python of a new environment with the wheel, and links to these requirements as they are installed here."""
    venv.create(place, symlinks=True)
    python = place / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, str(built / f"{FILE_NAME}-py3-none-any.whl")], check=True)
    (site,) = place.glob("lib/python*/site-packages")
    for name in needed(names):
        files = distribution(name)
        for top in {file.parts[0] for file in files.files or [] if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(files.locate_file(top))
    return python


def run(command: list[str | Path], cwd: Path) -> str:
    """What a command prints that must succeed, and that sees nothing of this checkout."""
    hidden = re.compile("PYTHON|WORKBENCH_|HOROVOD_|COVERAGE_")
    env = {name: value for name, value in os.environ.items() if not hidden.match(name)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_wheel_works_in_a_clean_environment(clean_python: Path, tmp_path: Path) -> None:
    """Installed from the wheel it imports, its command answers, and two ranks sum an array."""
    code = """
import importlib.metadata, sys
import numpy as np
import workbench as wb
sums = wb.run_threads(2, lambda: wb.allreduce(np.full(3, wb.rank() + 1.0), op=wb.Sum).tolist())
print(wb.__file__, importlib.metadata.version(sys.argv[1]), sums, sep="|")
"""
    where, version, sums = run([clean_python, "-c", code, PROJECT["name"]], tmp_path).split("|")
    assert Path(where).is_relative_to(clean_python.parent.parent)
    assert (version, sums.strip()) == (PROJECT["version"], "[[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]")
    said = run([clean_python.with_name("workbench"), "--help"], tmp_path)
    assert {"run", "doctor", "grade"} <= set(re.findall(r"[\w-]+", said))


ADDS = """
import numpy as np
import workbench as hvd
hvd.init()
sums = [float(hvd.allreduce(np.full(n, hvd.rank() + 1.0), op=hvd.Sum).sum()) for n in (3, 300_000)]
print(hvd.rank(), hvd.size(), hvd.broadcast(np.arange(2) + hvd.rank(), root_rank=1).tolist(), sums)
"""


NOWHERE = "http://127.0.0.1:9"
PROXIES = [f"{name}={NOWHERE}" for low in ("http_proxy", "https_proxy", "all_proxy") for name in (low, low.upper())]
POOR = ["HOME=/dev/null", *PROXIES]
NO_NETWORK = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]  # only root makes one


@pytest.mark.slow
@pytest.mark.parallel
@pytest.mark.timeout(180)
def test_numpy_alone_is_enough_for_two_ranks(clean_python: Path, tmp_path: Path) -> None:
    """They need no mpiexec, no torch, no home, no network and no proxy; elastic neither, nor doctor and lessons."""
    (tmp_path / "adds.py").write_text(ADDS)
    poor = [*POOR, *(NO_NETWORK if not subprocess.run([*NO_NETWORK, "true"], capture_output=True).returncode else [])]
    here = ["env", "-u", "no_proxy", "-u", "NO_PROXY", f"PATH={clean_python.parent}:/usr/bin:/bin:/usr/sbin:/sbin"]
    here += [*poor, str(clean_python.with_name("workbench"))]
    for words in ((), ("--min-np", "2")):
        said = run([*here, "run", "-np", "2", *words, clean_python, "adds.py"], tmp_path)
        lines = sorted(line.partition(":")[2] for line in said.splitlines())
        assert lines == [f"{rank} 2 [1, 2] [9.0, 900000.0]" for rank in range(2)]
    assert "✗" not in run([*here, "doctor"], tmp_path)
    assert "files in copied" in run([*here, "lessons", "copied"], tmp_path)


@pytest.mark.slow
def test_what_is_missing_is_named_with_what_installs_it(clean_python: Path, tmp_path: Path) -> None:
    """By a command before it begins or copies anything, and by the import of a framework's module."""
    command = [clean_python.with_name("workbench"), "demo"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "`workbench demo` needs torch, nbclient, matplotlib: " in done.stderr
    assert "pip install '.[torch,lessons,lab,mpich]' in a clone" in done.stderr
    assert list(tmp_path.iterdir()) == []
    extras = {"torch": "torch", "tensorflow": "tensorflow", "keras": "tensorflow", "jax": "jax"}
    code = f"""
for name in {[*extras]}:
    try:
        __import__("workbench." + name)
    except ModuleNotFoundError as error:
        print(error.name, error)
"""
    for (module, extra), said in zip(
        extras.items(), run([clean_python, "-c", code], tmp_path).splitlines(), strict=True
    ):
        assert said.startswith(f"{module} workbench.{module} needs {module}")
        assert f"pip install '.[{extra}]' in a clone" in said
        assert extra in PROJECT["optional-dependencies"]


@pytest.mark.timeout(180)
def test_what_the_demo_installs_is_enough_for_the_lessons() -> None:
    """``make demo`` installs all that lessons import, and their figures and widgets, but for the other frameworks."""
    pytest.importorskip("torch")
    (extras,) = re.findall(r"^for-lessons: ; @NEEDS=(\S+) ", (ROOT / "Makefile").read_text(), re.MULTILINE)
    names = [each for extra in extras.split(",") for each in PROJECT["optional-dependencies"][extra]]
    there = needed([*PROJECT["dependencies"], *names]) | {canonicalize_name(PROJECT["name"])}
    imported = {"anywidget", "ipykernel", "ipywidgets", "matplotlib", "torch"}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        if path.stem != "14_every_framework":
            cells = [each for each in json.loads(path.read_text())["cells"] if each["cell_type"] == "code"]
            code = "\n".join("".join(cell["source"]) for cell in cells)
            imported |= set(re.findall(r"^\s*(?:import|from) (\w+)", code, re.MULTILINE))
    brought_by = packages_distributions()
    theirs = imported - set(sys.stdlib_module_names) - {"gpt", "nano", "workbench"}
    assert len(theirs) > 5
    missing = {name for name in theirs if not {canonicalize_name(each) for each in brought_by.get(name, [])} & there}
    assert missing == set()


@pytest.fixture(scope="module")
def user_s_python(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of somebody who trains with torch."""
    pytest.importorskip("torch")
    names = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["torch"]]
    return environment(built, tmp_path_factory.mktemp("user"), names)


CHECKERS = {
    # torch's own `backward` is not typed, so a strict user allows such calls.
    "mypy": ("mypy", "--strict", "--allow-untyped-calls", "--python-executable"),
    "pyright": ("pyright", "--pythonpath"),
}


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("checker", CHECKERS)
def test_types_reach_the_user(checker: str, user_s_python: Path, tmp_path: Path) -> None:
    """A checker accepts a right script that uses the installed wheel, and reports each wrong line and no other."""
    pytest.importorskip(checker)
    for name in ("right", "wrong"):
        (tmp_path / f"{name}.py").write_text((ROOT / "tests" / "helpers" / f"typed_{name}.py").read_text())
    command = [sys.executable, "-m", *CHECKERS[checker], str(user_s_python), "right.py", "wrong.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    reported = set(re.findall(r"(\w+\.py):(\d+):.*\berror\b", done.stdout))
    lines = (tmp_path / "wrong.py").read_text().splitlines()
    wanted = {("wrong.py", str(number)) for number, line in enumerate(lines, 1) if "# wrong:" in line}
    assert reported == wanted, done.stdout + done.stderr


def test_nothing_installs_a_name_that_nobody_has_registered() -> None:
    """While PyPI refuses our upload, only the steps of a release install the distribution by its name."""
    assert "Private :: Do Not Upload" in PROJECT["classifiers"]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [
        name for name in listed.split("\0") if name.endswith((".md", ".py", ".ipynb", ".yml", ".yaml", ".html", ".js"))
    ]
    installs = re.compile(rf"pip install[^\n`]*{PROJECT['name']}\b")
    assert [name for name in paths if installs.search((ROOT / name).read_text(encoding="utf-8"))] == ["RELEASING.md"]


def test_one_name_and_one_version() -> None:
    """The package, CITATION.cff and the newest release in CHANGELOG.md, if there is one, agree with pyproject.toml."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    releases = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert {workbench.__version__, str(citation["version"]), *releases[:1]} == {PROJECT["version"]}
    assert PROJECT["license"] == f"{citation['license']} AND CC-BY-4.0"
    assert PROJECT["name"] == canonicalize_name(PROJECT["name"]) != "workbench"


def test_what_others_made_has_its_licence(built: Path) -> None:
    """NOTICE names each data file and each bundle that we ship; it and both licences are in the wheel and the sdist."""
    files = [path for folder in ("workbench", "docs") for path in (ROOT / folder).rglob("*")]
    theirs = [path for path in files if path.suffix in (".gz", ".LICENSE")]
    assert len(theirs) >= 3
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    assert [path for path in theirs if path.relative_to(ROOT).as_posix() not in notice] == []
    with (
        zipfile.ZipFile(built / f"{FILE_NAME}-py3-none-any.whl") as wheel,
        tarfile.open(built / f"{FILE_NAME}.tar.gz") as sdist,
    ):
        for name in ("LICENSE", "LICENSE-TEXTS", "NOTICE"):
            content = (ROOT / name).read_bytes()
            assert wheel.read(f"{FILE_NAME}.dist-info/licenses/{name}") == content
            packed = sdist.extractfile(f"{FILE_NAME}/{name}")
            assert packed is not None
            assert packed.read() == content
