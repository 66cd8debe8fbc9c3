"""The scripts in ``examples/``, started as a person starts them, and ``benchmarks/practical.py``."""

from __future__ import annotations

import ast
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from baseline import nearest_mean_accuracy
from installed import needs
from loading import EXAMPLES, load
from thorough import once_more

from workbench import data

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [
    pytest.mark.usefixtures("warm_torch"),
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.timeout(300, method="thread"),  # several jobs, each with a deadline of its own
]

DEADLINE_S = 120.0  # of one job; it takes about ten seconds, most of them to import torch, on two idle cores
PLAIN = ("ddp.py", "fsdp.py", "gpt.py", "nano.py", "resnet.py")  # they do not import Horovod's names
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name not in PLAIN)

# What Horovod 0.28 exports and the scripts may use, by what they import; written down from its own lists.
NAMES = """
    Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min Product Sum
    allgather allgather_object allreduce barrier broadcast broadcast_object broadcast_optimizer_state
    broadcast_parameters cross_rank cross_size init is_initialized join local_rank local_size rank shutdown size
"""
HOROVOD = set(NAMES.split())
TENSORFLOW = HOROVOD - {"broadcast_optimizer_state", "broadcast_parameters"} | {"BroadcastGlobalVariablesHook"}
KERAS = """
    Average Compression DistributedOptimizer Sum allgather allreduce broadcast callbacks init local_rank rank shutdown
    size
"""
BY_FRAMEWORK = {"tensorflow": TENSORFLOW, "tensorflow.keras": set(KERAS.split()), "keras": set(KERAS.split())}
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}  # it optimises small functions longer than they run
ELASTIC = {"ElasticSampler", "TorchState", "run"}

RESULT = re.compile(r"Loss:  (\S+)  accuracy:  (\S+)  \((\d+) of (\d+) images\)")


def run(jobs: Runner, n: int, script: str, *words: str) -> Job:
    """Start an example with n ranks; it must end well, in time, and leave nothing behind."""
    job = jobs.mpiexec(n, str(EXAMPLES / script), *words, deadline_s=DEADLINE_S)
    assert (job.code, job.left) == (0, ()), job.report()
    return job


@pytest.mark.parametrize("script", [script for script in SCRIPTS if not script.startswith("jax")])
def test_only_horovods_names_are_used(script: str) -> None:
    """With the import replaced, a script finds every name that it uses in Horovod, which has nothing for JAX."""
    text = (EXAMPLES / script).read_text(encoding="utf-8")
    framework = re.search(r"^import (?:workbench|horovod)\.(\S+) as hvd$", text, re.MULTILINE)[1]
    tree = ast.parse(text)
    used = {
        (node.value.id, node.attr)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("hvd", "elastic")
    }
    assert ("hvd", "init") in used
    assert {name for module, name in used if module == "hvd"} <= BY_FRAMEWORK.get(framework, HOROVOD)
    assert {name for module, name in used if module == "elastic"} <= ELASTIC


@pytest.mark.parametrize("launcher", ["mpiexec", once_more("torchrun")])
def test_each_rank_says_its_place(jobs: Runner, launcher: str) -> None:
    """Every rank prints one block with its own numbers, the size of the job and the name of this machine."""
    start = jobs.mpiexec if launcher == "mpiexec" else jobs.torchrun
    job = start(2, str(EXAMPLES / "test_horovod.py"), deadline_s=DEADLINE_S)
    assert (job.code, job.left) == (0, ()), job.report()
    for rank in range(2):
        framework, devices, place = job.out(rank).splitlines()
        assert framework == f"Framework: PyTorch {torch.__version__}"
        assert devices.count("cuda:") == torch.cuda.device_count()
        numbers = f"MPI_size = 2, MPI_rank = {rank}, MPI_local_size = 2,  MPI_local_rank = {rank}"
        assert place == f"{numbers} platform = {platform.node()}"


@pytest.mark.thorough
def test_the_session_is_the_same_training_with_one_and_two_ranks(jobs: Runner) -> None:
    """Equal global batches give equal accuracy; ranks agree to the letter; each test image counts exactly once.

    The tolerance: rounding in another order, magnified by Adam, may turn 5 of 357 images. Measured: none.
    """
    images, epochs = data.digits(), 4
    results = {}
    for n in (1, 2):
        job = run(jobs, n, "pytorch_horovod.py", "--epochs", str(epochs))
        assert all(job.out(rank) == job.out(0) for rank in range(n)), job.report()
        *times, result = job.out(0).splitlines()
        assert [re.fullmatch(r"Epoch: (\d+) \d+\.\d\d sec\.", line)[1] for line in times] == list("1234")
        loss, accuracy, right, count = map(float, RESULT.fullmatch(result).groups())
        assert count == len(images.test_x)
        assert accuracy == pytest.approx(right / count, abs=1e-6)
        assert 0 < loss < np.log(10), "a mean of negative log-probabilities, below that of a blind guess"
        assert accuracy > nearest_mean_accuracy(images)
        results[n] = loss, right
    assert abs(results[1][1] - results[2][1]) <= 5
    assert results[1][0] == pytest.approx(results[2][0], abs=0.03)


def test_checkpoints_are_written_once_and_resumed_from(jobs: Runner, tmp_path: Path) -> None:
    """Rank 0 alone writes; a checkpoint is the model whose figures were printed; a resumed run repeats the original."""
    folder = tmp_path / "checkpoints"
    words = ["--epochs", "2", "--checkpoint-dir", str(folder), "--fp16-allreduce", "--batches-per-allreduce", "2"]
    words += ["--batch-size", "16", "--gradient-predivide-factor", "2", "--log-interval", "5", "--no-cuda"]
    job = run(jobs, 2, "pytorch_mnist.py", *words)
    assert job.out(1) == ""
    lines = job.out(0).splitlines()
    assert [line for line in lines if "Saved" in line] == ["Saved checkpoint-1.pt", "Saved checkpoint-2.pt"]
    last = folder / "checkpoint-2.pt"
    assert sorted(folder.iterdir()) == [folder / "checkpoint-1.pt", last]

    # The oracle is one process that looks at all test images itself.
    saved, images = torch.load(last, weights_only=True), data.digits()
    model = load("pytorch_mnist", EXAMPLES).Net()
    model.load_state_dict(saved["model"])
    with torch.no_grad():
        guess, y = model.eval()(torch.from_numpy(images.test_x)), torch.from_numpy(images.test_y)
    printed = re.fullmatch(r"Test Epoch: 2 Loss: (\S+) Accuracy: (\d+)/(\d+) = \S+", lines[-2])
    assert printed, job.report()
    assert float(printed[1]) == pytest.approx(F.cross_entropy(guess, y).item(), abs=1e-5)
    assert (int(printed[2]), int(printed[3])) == ((guess.argmax(dim=1) == y).sum().item(), len(y))

    last.unlink()
    again = run(jobs, 2, "pytorch_mnist.py", *words)
    second = next(i for i, line in enumerate(lines) if line.startswith("Train Epoch: 2"))
    assert again.out(0).splitlines() == ["Resume after epoch 1", *lines[second:]]
    assert again.out(1) == ""
    repeated = torch.load(last, weights_only=True)
    assert all(torch.equal(repeated["model"][name], tensor) for name, tensor in saved["model"].items())


@pytest.mark.thorough
def test_lightning_tests_each_image_once(jobs: Runner, tmp_path: Path) -> None:
    """Rank 0 alone prints and saves; the checkpoint is the model whose figures were printed, and beats a floor."""
    needs("lightning")
    path = tmp_path / "mnist.ckpt"
    job = run(jobs, 2, "pytorch_lightning_mnist.py", "--checkpoint", str(path))
    assert job.out(1) == ""
    images, script = data.digits(), load("pytorch_lightning_mnist", EXAMPLES)
    model = script.Classifier.load_from_checkpoint(path, map_location="cpu").eval()
    with torch.no_grad():
        guess, y = model.net(torch.from_numpy(images.test_x)), torch.from_numpy(images.test_y)
    printed = re.fullmatch(r"Test Loss: (\S+) Accuracy: (\d+)/(\d+) = \S+", job.out(0).strip())
    assert printed, job.report()
    assert float(printed[1]) == pytest.approx(F.nll_loss(guess, y).item(), abs=1e-5)
    right = (guess.argmax(dim=1) == y).sum().item()
    assert (int(printed[2]), int(printed[3])) == (right, len(y))
    assert right / len(y) > nearest_mean_accuracy(images)


@pytest.mark.thorough  # what Adasum computes is in tests/parallel and tests/contract
def test_adasum_needs_no_scaled_learning_rate(jobs: Runner) -> None:
    """With one rank's learning rate, Adasum gets about as far as Average does with the scaled one.

    Over four seeds Adasum's loss was 0.64 of unscaled Average's and 1.12 of scaled Average's, each within 0.03.
    """
    job = run(jobs, 2, "pytorch_adasum.py", "--lr", "0.1")
    assert job.out(1) == ""
    rows = re.findall(r"^0\.1 x (\d) +(\w+) +(\S+) +\S+$", job.out(0), re.MULTILINE)
    assert [row[:2] for row in rows] == [("1", "Average"), ("2", "Average"), ("1", "Adasum")], job.report()
    unscaled, scaled, adasum = (float(row[2]) for row in rows)
    assert adasum < 0.8 * unscaled
    assert adasum < 1.25 * scaled


@pytest.mark.thorough
def test_a_failure_does_not_change_the_result(jobs: Runner) -> None:
    """A rank that fails in the middle of an epoch costs a reset; every epoch's figures are those of the smooth run."""
    smooth = run(jobs, 2, "pytorch_elastic.py", "--epochs", "2")
    rough = run(jobs, 2, "pytorch_elastic.py", "--epochs", "2", "--fail-at", "2:13")
    epochs = smooth.out(0).splitlines()
    assert [line[:8] for line in epochs] == ["Epoch: 1", "Epoch: 2"]
    assert all("of 357 images" in line for line in epochs)
    assert rough.out(0).splitlines() == [epochs[0], "Reset: 2 ranks go on in epoch 2", epochs[1]], rough.report()
    assert all("told to fail" not in smooth.err(rank) for rank in range(2))
    assert "told to fail" in rough.err(1)


@pytest.mark.thorough
def test_the_benchmarks_sums_are_right(jobs: Runner) -> None:
    """The rate per CPU is the mean of the iterations', the total is twice as much with two ranks."""
    words = "--model resnet18 --batch-size 2 --image-size 32 --num-warmup-batches 1 --num-batches-per-iter 1"
    job = run(jobs, 2, "pytorch_synthetic_benchmark.py", *words.split(), "--num-iters", "3", "--no-cuda")
    assert job.out(1) == ""
    out = job.out(0)
    rates = [float(rate) for rate in re.findall(r"^Iter #\d+: (\S+) img/sec per CPU$", out, re.MULTILINE)]
    per_cpu, spread = map(float, re.search(r"^Img/sec per CPU: (\S+) \+-(\S+)$", out, re.MULTILINE).groups())
    total, all_spread = map(float, re.search(r"^Total img/sec on 2 CPU\(s\): (\S+) \+-(\S+)$", out, re.M).groups())
    assert len(rates) == 3
    assert per_cpu == pytest.approx(np.mean(rates), abs=0.11)
    assert spread == pytest.approx(1.96 * np.std(rates), abs=0.2)
    assert (total, all_spread) == (pytest.approx(2 * per_cpu, abs=0.11), pytest.approx(2 * spread, abs=0.11))


@pytest.mark.parametrize(("name", "parameters"), [("resnet18", 11_689_512), once_more("resnet50", 25_557_032)])
def test_the_residual_networks_are_the_published_ones(name: str, parameters: int) -> None:
    """They have as many parameters as torchvision states for its own, and give one score per class."""
    model = load("resnet", EXAMPLES).resnet(name)
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.eval()(torch.zeros(1, 3, 64, 64)).shape == (1, 1000)


def run_job(jobs: Runner, script: str, *words: str, **env: str) -> dict[int, str]:
    """Start an example on two ranks with ``workbench run``; what each rank printed."""
    alias = ["--as-horovod"] if "import horovod" in (EXAMPLES / script).read_text(encoding="utf-8") else []
    command = ["-m", "workbench.cli.main", "run", *alias, "-np", "2", sys.executable, str(EXAMPLES / script), *words]
    job = jobs.python(*command, deadline_s=DEADLINE_S, **QUICK, **env)
    assert (job.code, job.left) == (0, ()), job.report()
    said = re.findall(r"^\[(\d)\]<stdout>:(.*)$", job.out(0), re.MULTILINE)
    return {rank: "\n".join(line for of, line in said if int(of) == rank) for rank in range(2)}


@pytest.mark.parametrize("script", [once_more("tensorflow_horovod_basic.py"), once_more("tensorflow_horovod.py")])
def test_the_session_in_tensorflow(script: str, jobs: Runner) -> None:
    """Both ranks print each epoch's time and the same result, over each test image once, better than a floor."""
    needs("tensorflow")
    images, out = data.digits(), run_job(jobs, script)
    results = [RESULT.search(out[rank]).groups() for rank in range(2)]
    assert results[0] == results[1], out
    times = [re.findall(r"^Epoch: (\d+) \d+\.\d\d sec\.$", out[rank], re.MULTILINE) for rank in range(2)]
    assert times[0] == times[1] == [str(epoch + 1) for epoch in range(len(times[0]))]
    assert len(times[0]) >= 4
    loss, accuracy, right, count = map(float, results[0])
    assert count == len(images.test_x)
    assert accuracy == pytest.approx(right / count, abs=1e-6)
    assert 0 < loss < np.log(10)
    assert accuracy > nearest_mean_accuracy(images)


# Once more from a checkpoint is thorough: test_tensorflow_training.py goes on from one in the same kind of session.
@pytest.mark.parametrize("times", [once_more(1), once_more(2)])
def test_tensorflow_1_goes_on_from_rank_0s_checkpoint(times: int, jobs: Runner, tmp_path: Path) -> None:
    """Rank 0 alone has a checkpoint, and all go on from its step; it holds the model whose figures were printed."""
    tf = pytest.importorskip("tensorflow")
    said = re.compile(r"Step: (\d+) to (\d+)  Loss: \S+  Accuracy: (\d+)/(\d+) = \S+")
    images, folder = data.digits(), str(tmp_path / "checkpoints")
    for steps, first, last in [("200", "0", "100"), ("300", "100", "150")][:times]:
        out = run_job(jobs, "tensorflow_mnist_v1.py", "--steps", steps, "--checkpoint-dir", folder)
        found = said.fullmatch(out[0])
        assert found, out
        assert (found[1], found[2], out[1]) == (first, last, "")
        # The oracle is numpy, with the checkpoint's variables and all test images.
        saved = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
        w1, b1, w2, b2 = (saved.get_tensor(f"net/{name}") for name in ("w1", "b1", "w2", "b2"))
        scores = np.maximum(images.test_x.reshape(-1, 64) @ w1 + b1, 0) @ w2 + b2
        assert (int(found[3]), int(found[4])) == ((scores.argmax(axis=1) == images.test_y).sum(), len(images.test_y))


# test_framework_training.py trains on both with all that the script uses.
@pytest.mark.parametrize("backend", [once_more("torch"), once_more("jax")])
def test_keras_on_another_backend(backend: str, jobs: Runner, tmp_path: Path) -> None:
    """The script is the same; the learning rate warms up to that of two ranks; rank 0 saves, and prints for all."""
    needs("keras", backend)
    images, folder = data.digits(), tmp_path / "checkpoints"
    out = run_job(jobs, "keras_mnist.py", "--checkpoint-dir", str(folder), KERAS_BACKEND=backend)
    rates = [float(rate) for rate in re.findall(r"lr: (\S+)$", out[0], re.MULTILINE)]
    assert rates[0] == pytest.approx(0.075)
    assert rates[1:] == pytest.approx([0.1] * 5)
    right, count = map(int, re.search(r"Accuracy: (\d+)/(\d+) = \S+$", out[0]).groups())
    assert count == len(images.test_x)
    assert right / count > nearest_mean_accuracy(images)
    assert out[1] == ""
    assert [path.name for path in folder.iterdir()] == ["best.keras"]


@pytest.mark.thorough
def test_jax_trains_in_compiled_steps(jobs: Runner) -> None:
    """Every epoch is told once, over each test image once, and the last one is better than a floor."""
    needs("jax", "optax")
    images, out = data.digits(), run_job(jobs, "jax_mnist.py")
    told = re.findall(r"^Epoch: (\d)  Loss: \S+  Accuracy: (\d+)/(\d+) = \S+$", out[0], re.MULTILINE)
    assert [epoch for epoch, _, _ in told] == list("12345"), out
    assert {int(count) for _, _, count in told} == {len(images.test_x)}
    assert int(told[-1][1]) / len(images.test_x) > nearest_mean_accuracy(images)
    assert out[1] == ""


# Stand-ins for the session's scripts: no torch, no training, no MPI; rank and size are the launcher's.
FAKE = "from workbench import config; rank, size = config.launch().rank, config.launch().size\n"
FAKE_PLACE = FAKE + (
    "print(f'MPI_size = {size}, MPI_rank = {rank}, MPI_local_size = {size},  MPI_local_rank = {rank} platform = here')"
)
FAKE_TRAINING = FAKE + (
    "accuracy, seconds = {accuracy}, 3 / size\n"
    "print(f'Epoch: 1 9.00 sec.\\nEpoch: 2 {{seconds:.2f}} sec.\\nEpoch: 3 {{seconds:.2f}} sec.')\n"
    "print(f'Loss:  0.500000  accuracy:  {{accuracy:.6f}}  (1 of 2 images)')\n"
    "raise SystemExit({code})"
)


@pytest.mark.usefixtures("by_mpiexec")
def test_practical_judges_accuracy_and_success_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The exit code says whether scripts end well, ranks agree, and the accuracies lie within the tolerance."""
    practical = load("practical")
    (tmp_path / "test_horovod.py").write_text(FAKE_PLACE)
    script = tmp_path / "pytorch_horovod.py"
    script.write_text(FAKE_TRAINING.format(accuracy="0.9 - 0.015 * (size == 2)", code="0"))
    assert practical.main(["--deadline", "60"], tmp_path) == 0
    words = r" 1 +9\.00 s +3\.00 s +1\.00 +100 % .*\n +2 +9\.00 s +1\.50 s +2\.00 +100 % "
    assert re.search(words + r"[\s\S]*0\.0150 apart; up to 0\.02 is allowed: ok", capfd.readouterr().out)
    script.write_text(FAKE_TRAINING.format(accuracy="0.9", code="rank"))
    assert practical.main(["--ranks", "2", "--deadline", "60"], tmp_path) == 1
    assert "with 2 ranks ended with code" in capfd.readouterr().err
    said = "Epoch: 1 9.00 sec.\nEpoch: 2 3.00 sec.\nLoss:  0.5  accuracy:  {}  (1 of 2 images)\n"
    one, other = (practical.read(said.format(f"{accuracy:.6f}"), 1) for accuracy in (0.9, 0.85))
    assert practical.judge("some", [one, other], 0.02) == 1
    assert "0.0500 apart; up to 0.02 is allowed: FAILED" in capfd.readouterr().out
    with pytest.raises(practical.PracticalError, match="The ranks disagree"):
        practical.read(said.format("0.900000") + said.format("0.899000"), 2)
