"""The practical session: outputs are read as a person would, and six steps are found in scripts of any style."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.course import practical, six_steps

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BLOCK = "MPI_size = {}, MPI_rank = {}, MPI_local_size = {},  MPI_local_rank = {} platform = here\n"
TRAINING = "Epoch: 1 2.50 sec.\nEpoch: 1 2.60 sec.\nEpoch: 2 1.00 sec.\nEpoch: 2 1.25 sec.\n"
RESULT = "Loss:  0.1  accuracy:  0.9  (9 of 10 images)\n"

TENSORFLOW = """\
import horovod.tensorflow.keras as hvd
hvd.init()
gpus = tf.config.experimental.list_physical_devices("GPU")
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")
local_batch_size = BATCH_SIZE // int(hvd.size())
if int(hvd.size()) > 1:
    replica = len(X_train) // int(hvd.size())
    X_train = X_train[int(hvd.rank()) * replica : (int(hvd.rank()) + 1) * replica]
optimizer = hvd.DistributedOptimizer(tf.optimizers.Adam(LEARNING_RATE), backward_passes_per_step=1)
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
"""
NAMES = """\
from horovod.torch import DistributedOptimizer as Wrapped, broadcast_parameters, init, local_rank, rank, size
init()
me, n = rank(), size()
device = local_rank()
torch.cuda.set_device(device)
torch.manual_seed(1000 * me + n)
batch = 64 / n
mine = samples[me::n]
broadcast_parameters(model.state_dict(), 0)
opt = Wrapped(opt)
"""
STAR = """\
from horovod.torch import *
init()
class Trainer:
    def __init__(self):
        self.rank, self.size = rank(), size()
        print(f"rank {rank()} of {size()}, {local_rank()} here, batch {64 // size()}")
        self.batch = 64 // self.size
        torch.cuda.set_device(local_rank())
        self.samples = samples[self.rank :: self.size]
        broadcast_parameters(model.state_dict(), 0)
        self.optimizer = DistributedOptimizer(optimizer)
"""
SERIAL = "import torch\n\nbatch = 64 // 2\nmodel.init()\nloader = DataLoader(train, batch)\n"


@pytest.mark.parametrize(
    ("script", "lines"),
    [
        (TENSORFLOW, [[2], [6], [5], [9], [11], [10]]),
        (NAMES, [[2], [7], [5], [8], [9], [10]]),
        (STAR, [[2], [7], [8], [9], [10], [11]]),
        (SERIAL, [[], [], [], [], [], []]),
        ("import torch\nhvd.init()\n", [[], [], [], [], [], []]),
    ],
    ids=["the slides' style", "names of one's own", "a star, and attributes", "a serial script", "another hvd"],
)
def test_the_steps_of_a_script(script: str, lines: list[list[int]]) -> None:
    """Each step has the lines that take it, by whatever names the library and its numbers go."""
    assert six_steps.find(script) == dict(enumerate(lines, 1))


def test_each_step_that_is_taken_out_is_missed() -> None:
    """And no other."""
    for step, lines in six_steps.find(TENSORFLOW).items():
        kept = "\n".join(line for k, line in enumerate(TENSORFLOW.splitlines(), 1) if k not in lines)
        kept = kept.replace("if gpus:\n", "if gpus:\n    pass\n")
        assert [each for each, found in six_steps.find(kept).items() if not found] == [step]


@pytest.mark.parametrize("name", ["pytorch_horovod", "tensorflow_horovod", "tensorflow_horovod_basic"])
def test_the_session_s_scripts_take_all_six(name: str) -> None:
    """In lines that say so."""
    text = (EXAMPLES / f"{name}.py").read_text()
    found = {step: [text.splitlines()[k - 1] for k in lines] for step, lines in six_steps.find(text).items()}
    words = ["init", "batch", "local_rank", "rank", "roadcast", "DistributedOptimizer"]
    for step, word in enumerate(words, 1):
        assert found[step], step
        assert all(word in line for line in found[step]), found[step]


def test_what_is_no_script_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line, where there is one."""
    for contents, said in [
        (b"x = 1\nprint 'Python 2'\n", "a.py, line 2: this is no Python"),
        (b"\x7fELF\x00\xd0", "a.py: this is no Python"),
        (b"x = 1\n\n\ny = '\xe9'\n", "a.py: Python cannot read this"),
        (b"x = " + b"-" * 100_000 + b"1\n", "a.py"),  # what Python says differs from version to version
        (b"torch.distributed.init_process_group()\n", "a.py does not call init() of Horovod or the workbench"),
    ]:
        (tmp_path / "a.py").write_bytes(contents)
        six_steps.show(tmp_path / "a.py")
        assert said in capsys.readouterr().out


def test_the_line_shown_is_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In any encoding that Python reads, with form feeds and without a terminal's commands, on one line."""
    text = "# coding: latin-1\n# é\nimport horovod.torch as hvd\n\x0c\nhvd.init()  # \x1b[2J" + 500 * "x" + "\n"
    (tmp_path / "a.py").write_text(text, encoding="latin-1")
    six_steps.show(tmp_path / "a.py")
    line = capsys.readouterr().out.splitlines()[1]
    assert line.startswith("      5  hvd.init()  #  [2Jxx")
    assert len(line) < 140


@pytest.mark.parametrize(
    ("name", "output", "said"),
    [
        ("test_2.txt", BLOCK.format(2, 1, 2, 1) + BLOCK.format(2, 0, 2, 0), "✓ test_2.txt: 2 of 2 ranks"),
        ("test_2.txt", 2 * BLOCK.format(1, 0, 1, 0), "✗ test_2.txt: 2 processes, and each believes that it is alone"),
        ("test_2.txt", BLOCK.format(2, 1, 2, 1), "✗ test_2.txt: Not one block of each of 2 ranks"),
        ("tf_2.txt", TRAINING + 2 * RESULT, "    2        2.60 s         1.25 s       1.00"),
        ("tf_2.txt", TRAINING + RESULT, "✗ tf_2.txt: 1 of 2 ranks printed a result"),
        ("tf_2.txt", TRAINING + RESULT + RESULT.replace("0.9", "0.8"), "✗ tf_2.txt: The ranks disagree"),
        (
            "tf_2.txt",
            "ModuleNotFoundError: No module named 'tensorflow'",
            "✗ tf_2.txt: 0 of 2 ranks printed a result: tenso",
        ),
        (
            "tf_2.txt",
            "sh: 1: mpirun: not found",
            "0 of 2 ranks printed a result: mpirun is not there. Was begin() called",
        ),
        (
            "build.txt",
            "    [X] TensorFlow\n    [X] PyTorch\n    [X] MPI\n    [ ] Gloo\n",
            "✓ build.txt: TensorFlow and PyTorch",
        ),
        ("build.txt", "    [ ] TensorFlow\n    [X] MPI\n", "✗ build.txt: No framework, or no MPI"),
        ("tf_1.txt", None, "✗ tf_1.txt: It is not here: run the cell above."),
    ],
)
def test_what_an_output_shows(
    name: str,
    output: str | None,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The seconds are those of the slowest rank; what is missing has its cause."""
    monkeypatch.chdir(tmp_path)
    if output is not None:
        Path(name).write_text(output)
    practical.look(name)
    assert said in capsys.readouterr().out


def test_a_shell_that_is_made_ready_twice_is_as_after_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever stands in its paths; the workbench comes before a horovod that is there."""
    monkeypatch.setenv("PYTHONPATH", '/home/ada/it\'s a "folder":/real/horovod')
    ours = f"{shlex.quote(sys.executable)} -m workbench.cli.main env"
    shell = f'eval "$({ours})"; printf "%s\\n" "$PYTHONPATH" "$PATH"; '
    once = subprocess.run(["sh", "-ec", shell], capture_output=True, text=True, check=True).stdout
    twice = subprocess.run(["sh", "-ec", shell * 2], capture_output=True, text=True, check=True).stdout
    assert twice == once * 2
    paths = once.splitlines()[0].split(":")
    assert paths[0].endswith("on_path")
    assert paths[-2:] == ['/home/ada/it\'s a "folder"', "/real/horovod"]
