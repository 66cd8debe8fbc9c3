"""Programs that others wrote for Horovod, from PyPI, unchanged: two ranks come to what one rank comes to.

Each is installed into an environment of its own, which has the packages of this one as well, and is run by
``workbench run --as-horovod``. Nightly, for it takes minutes and needs PyPI. What came of it is in
``docs/reference/programs.md``. So are the trackers that ``docs/how-to/trackers.md`` is about.

Horovod's own examples are in no package: they are run where WORKBENCH_HOROVOD_EXAMPLES names the folder ``examples``
of a checkout.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from running import Job, Runner

SCRIPTS = Path(__file__).parent / "scripts"
ROOT = Path(__file__).resolve().parents[2]
TORCH = f"torch=={version('torch').split('+')[0]}"
TORCHVISION = f"torchvision==0.{int(version('torch').split('.')[1]) + 15}.*"  # the one for this torch
TABLE = ROOT / "docs" / "reference" / "programs.md"
PAGE = ROOT / "docs" / "how-to" / "trackers.md"


@dataclass(frozen=True)
class Program:
    """One of them.

    Args:
        script: which of the scripts uses it.
        needs: what is installed.
        rel: how far the results of one and of two ranks may lie apart.
        most: … or the most that each may be, where the ranks together have other samples than one.
        ranks: how many of the two ranks print a result.
        alone: it needs older packages than this environment's, and gets none of them.
        env: variables of the ranks.
    """

    script: str
    needs: tuple[str, ...]
    rel: float = 1e-5
    most: float = 0.0
    ranks: int = 2
    alone: bool = False
    env: dict[str, str] = field(default_factory=dict)


PROGRAMS = (
    Program("deepxde_poisson", ("DeepXDE==1.15.0",), most=0.05, env={"DDE_BACKEND": "tensorflow.compat.v1"}),
    Program("ignite_classifier", ("pytorch-ignite==0.5.5",)),
    Program("lightning_classifier", ("pytorch-lightning==1.9.5", "setuptools<81")),
    Program("open_clip_pairs", ("open-clip-torch==3.3.0", TORCHVISION)),
    Program("returnn_sequences", ("returnn==1.20261022.211313", "dm-tree"), rel=0.02),
    Program(
        "mlrun_classifier",
        ("mlrun==1.12.1", TORCH, "plotly", "tensorboard", "tqdm", "cloudpickle", "psutil", "setuptools<81"),
        alone=True,
        env={"WORKBENCH_BACKEND": "sockets"},
    ),
    Program("deepmd_potential", ("deepmd-kit==3.2.0",), rel=0.02, ranks=1),
    Program(
        "tfra_embedding",
        (
            "tensorflow-recommenders-addons==0.8.1",
            *("tensorflow-cpu==2.16.2", "tf-keras==2.16.0", "psutil", "setuptools<81"),
        ),
        alone=True,
        env={"TF_USE_LEGACY_KERAS": "1", "WORKBENCH_BACKEND": "sockets"},
    ),
)

# docs/how-to/convert.md speaks of these.
FRIENDS = (
    Program("accelerated", ("accelerate==1.15.0",)),
    Program(
        "huggingface_bert",
        ("transformers==5.24.0", "accelerate==1.15.0"),
        env={"WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"},
    ),
)


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", [*PROGRAMS, *FRIENDS], ids=lambda each: each.script)
def test_two_ranks_come_to_what_one_comes_to(
    program: Program, jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank is in a world of all of them, and their result is the one of a single rank."""
    environment = installed(program, tmp_path / "environment")
    results: dict[int, list[float]] = {}
    for n in (1, 2):
        folder = tmp_path / f"ranks{n}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        job = run(jobs, program, environment, n)
        assert job.code == 0, job.report()
        found = re.findall(r"RESULT (\d+) (\S+)", job.out(0))
        assert [int(size) for size, _ in found] == [n] * min(n, program.ranks), job.report()
        results[n] = [float(result) for _, result in found]
    assert max(results[2]) == min(results[2])
    if program.most:
        assert max(results[1] + results[2]) < program.most
    else:
        assert results[2][0] == pytest.approx(results[1][0], rel=program.rel)


TRACKERS = {
    "tensorboard": ("tensorboard==2.21.0",),
    "keras": ("tensorboard==2.21.0",),
    "mlflow": ("mlflow-skinny==3.17.2", "sqlalchemy>=2,<3", "alembic>=1.10,<2"),
    "wandb": ("wandb==0.31.0",),
    "optuna": ("optuna==5.0.0",),
}


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TRACKERS)
def test_a_tracker_has_one_run_with_the_means_of_all_ranks(
    name: str, jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's block for it writes once, and what the ranks average; of Optuna's trials some are pruned, by all."""
    program = Program("tracked", TRACKERS[name], env={"WANDB_MODE": "offline"})
    environment = installed(program, tmp_path / "environment")
    monkeypatch.chdir(tmp_path)
    job = run(jobs, program, environment, 2, str(PAGE), name)
    assert job.code == 0, job.report()
    tracked, everywhere = json.loads(job.out(0).partition("RESULT ")[2].splitlines()[0])
    if name == "optuna":
        states, epochs, best = tracked
        assert (len(states), {*states}) == (10, {"COMPLETE", "PRUNED"})
        assert 10 < epochs < 30
        assert best >= 0.5
    else:
        assert tracked == pytest.approx(everywhere if name == "keras" else [0.5, 1.5, 2.5])


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_rank_may_start_its_script_by_accelerate(jobs: Runner, tmp_path: Path) -> None:
    """The ranks train together, and nobody is told that each has run alone."""
    environment = installed(FRIENDS[0], tmp_path / "environment")
    launcher = ["accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes=1", "--num_machines=1"]
    words = ["python", "-m", *launcher, "--mixed_precision=no", "--dynamo_backend=no", str(SCRIPTS / "accelerated.py")]
    env = {"PYTHONPATH": str(modules_of(environment))}
    job = jobs.python("-m", "workbench.cli.main", "run", "-np", "2", *words, deadline_s=240.0, **env)
    assert job.code == 0, job.report()
    ((size, result), other) = re.findall(r"RESULT (\d+) (\S+)", job.out(0))
    assert (size, (size, result)) == ("2", other)
    assert "has ended without init()" not in job.err(0), job.report()


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_trial_that_one_rank_prunes_alone_is_an_error(
    jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On all ranks, and it shows where each of them waits: nothing hangs."""
    program = Program("pruned_alone", TRACKERS["optuna"])
    environment = installed(program, tmp_path / "environment")
    monkeypatch.chdir(tmp_path)
    job = run(jobs, program, environment, 2)
    assert job.code == 0, job.report()
    for rank in range(2):
        (line,) = re.findall(rf"^\[{rank}\]<stdout>:RAISED (.*)", job.out(0), re.MULTILINE)
        assert line.startswith("MissingRanksError: The ranks wait for each other"), job.report()
        assert "rank 0: waiting" in line, job.report()
        assert "rank 1: waiting" in line, job.report()


@dataclass(frozen=True)
class Example:
    """One of Horovod's examples.

    Args:
        path: in the folder.
        words: its arguments.
        keras2: it speaks to Keras 2.
        needs: what it needs besides.
        total: options with the value that all ranks have together: each gets its share, and their weights are compared
            with those of a single rank. Without one each rank has samples of its own, and its loss must fall.
    """

    path: str
    words: tuple[str, ...] = ()
    keras2: bool = False
    needs: tuple[str, ...] = ()
    total: tuple[tuple[str, float], ...] = ()


FOR_EXAMPLES = (TORCHVISION, "filelock", "setuptools<81")
SHARED = (("--batch-size", 64), ("--lr", 0.01))
BENCHMARK = ("--batch-size", "2", "--num-batches-per-iter", "2", "--num-iters", "2")
EXAMPLES = (
    Example("pytorch/pytorch_mnist.py", ("--epochs", "3"), total=SHARED),
    Example("elastic/pytorch/pytorch_mnist_elastic.py", ("--epochs", "3"), total=SHARED),
    Example("pytorch/pytorch_lightning_mnist.py", ("--epochs", "2"), needs=("pytorch-lightning==1.2.10",)),
    Example("pytorch/pytorch_synthetic_benchmark.py", ("--model", "resnet18", "--num-warmup-batches", "1", *BENCHMARK)),
    Example("tensorflow2/tensorflow2_keras_mnist.py", keras2=True),
    Example("tensorflow2/tensorflow2_mnist.py", keras2=True),
    Example("elastic/tensorflow2/tensorflow2_keras_mnist_elastic.py", keras2=True),
    Example("elastic/tensorflow2/tensorflow2_mnist_elastic.py"),
    Example(
        "tensorflow2/tensorflow2_synthetic_benchmark.py",
        ("--model", "MobileNetV2", "--no-cuda", "--num-warmup-batches", "1", *BENCHMARK),
        keras2=True,
    ),
    Example(
        "tensorflow2/tensorflow2_keras_synthetic_benchmark.py",
        ("--model", "MobileNetV2", "--no-cuda", *BENCHMARK),
        keras2=True,
    ),
)


@pytest.fixture(scope="module")
def for_examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What they import beside their framework, distutils among it."""
    return installed(Program("horovod_example", FOR_EXAMPLES), tmp_path_factory.mktemp("examples") / "environment")


@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: Path(each.path).stem)
def test_an_example_of_horovod_runs_unchanged(
    example: Example, for_examples: Path, jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both ranks hold equal weights at its end; those of one rank, where the ranks share its samples."""
    folder = os.environ.get("WORKBENCH_HOROVOD_EXAMPLES", "")
    script = Path(folder, example.path)
    if not folder or not script.exists():
        pytest.skip("WORKBENCH_HOROVOD_EXAMPLES names no checkout of Horovod's examples")
    env = {"TF_USE_LEGACY_KERAS": "1"} if example.keras2 else {}
    environment = for_examples
    if example.needs:
        environment = installed(Program("horovod_example", (*example.needs, *FOR_EXAMPLES)), tmp_path / "environment")
    weights: dict[int, set[str]] = {}
    for n in (1, 2) if example.total else (2,):
        (tmp_path / f"ranks{n}").mkdir()
        monkeypatch.chdir(tmp_path / f"ranks{n}")
        shares = [word for name, value in example.total for word in (name, f"{value / n:g}")]
        words = (str(script), *example.words, *shares)
        job = run(jobs, Program("horovod_example", (), env={**env, "HOME": str(tmp_path)}), environment, n, *words)
        assert job.code == 0, job.report()
        found = re.findall(r"RESULT (\d+) (\S+)", job.out(0))
        assert [int(size) for size, _ in found] == [n] * n, job.report()
        weights[n] = {result for _, result in found}
        assert len(weights[n]) == 1, "the ranks' weights differ"
        losses = [float(each) for each in re.findall(r"[Ll]oss: (\d+\.\d+)", job.out(0))]
        assert "benchmark" in example.path or losses[-1] < max(losses[0], math.log(10) - 0.01), job.report()
    if example.total:
        assert float(min(weights[2])) == pytest.approx(float(min(weights[1])), rel=1e-6)


def installed(program: Program, folder: Path) -> Path:
    """A new environment; skip where PyPI is not there, or has nothing for this Python."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    modules, project = modules_of(folder), sysconfig.get_path("purelib")
    (modules / "project.pth").write_text(project)  # for pip, too
    words = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-warn-script-location", *program.needs]
    words += ["--ignore-installed"] if program.alone else []
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode:
        pytest.skip(f"{program.needs[0]} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    if program.alone:
        (modules / "project.pth").unlink()
    return folder


def modules_of(folder: Path) -> Path:
    """Where an environment has its modules."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def run(jobs: Runner, program: Program, environment: Path, n: int, *more: str) -> Job:
    """Its script on ``n`` ranks. This environment's Python finds its MPI, and the new one's modules first."""
    python, path = ("python", modules_of(environment)) if not program.alone else (environment / "bin" / "python", ROOT)
    how = ["--gloo"] if program.alone else []
    words = ["run", "--as-horovod", *how, "-np", str(n), str(python), str(SCRIPTS / f"{program.script}.py"), *more]
    env = {"PYTHONPATH": str(path), "TF_CPP_MIN_LOG_LEVEL": "3", **program.env}
    return jobs.python("-m", "workbench.cli.main", *words, deadline_s=240.0, **env)


def test_the_table_names_each() -> None:
    """With its version, as it is tested."""
    text = TABLE.read_text()
    for program in PROGRAMS:
        name, number = program.needs[0].split("==")
        assert re.search(rf"^\| {re.escape(name)} {re.escape(number)} \|", text, re.MULTILINE), name
    for example in EXAMPLES:
        assert re.search(rf"^\| Horovod's `{re.escape(example.path)}` \|", text, re.MULTILINE), example.path
