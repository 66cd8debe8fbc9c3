"""Scripts written for Horovod run unchanged: ``import workbench.as_horovod``, or ``workbench run --as-horovod``."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from fork_server import ForkServer
from installed import needs
from project import ROOT
from running import Runner
from thorough import once_more

from workbench.as_horovod import util
from workbench.as_horovod.finder import PARTS, targets
from workbench.as_horovod.sparkdl import HorovodRunner
from workbench.errors import LaunchError
from workbench.launch.start import mpi

pytestmark = [pytest.mark.integration]

RUN = ("-m", "workbench.cli.main", "run")

# The example of Horovod's README for PyTorch, on digits instead of a download; nothing in it knows of the workbench.
EXAMPLE = """
import argparse
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
import horovod.torch as hvd
from workbench.data import digits

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
args = parser.parse_args()

# Initialize Horovod
hvd.init()

# Pin GPU to be used to process local rank (one GPU per process)
if torch.cuda.is_available():
    torch.cuda.set_device(hvd.local_rank())

# Define dataset...
train_dataset, test_dataset = digits().torch("train"), digits().torch("test")

# Partition dataset among workers using DistributedSampler
train_sampler = torch.utils.data.distributed.DistributedSampler(
    train_dataset, num_replicas=hvd.size(), rank=hvd.rank())

train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=32, sampler=train_sampler)

# Build model...
torch.manual_seed(hvd.rank())
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

optimizer = optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)

# Add Horovod Distributed Optimizer
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

# Broadcast parameters from rank 0 to all other processes.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(args.epochs):
    train_sampler.set_epoch(epoch)
    for batch_idx, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()

x, y = test_dataset.tensors
accuracy = (model(x).argmax(1) == y).float().mean()
average = hvd.allreduce(accuracy, name="accuracy", op=hvd.Average)
weights = hvd.allgather_object([p.detach().flatten()[:3].tolist() for p in model.parameters()])
print(hvd.rank(), hvd.size(), f"{average:.3f}", all(each == weights[0] for each in weights), __name__)
"""


def python(code: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a text in a fresh Python."""
    words = [sys.executable, "-c", textwrap.dedent(code)]
    return subprocess.run(words, capture_output=True, text=True, timeout=50, cwd=folder, env=mpi.environment(1) | env)


def answer(code: str, folder: Path, **env: str) -> object:
    """What a text prints last, as a Python value."""
    done = python(code, folder, **env)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_the_readmes_example_trains(torch_forks: ForkServer, jobs: Runner, tmp_path: Path) -> None:
    """Horovod's example, unchanged, on two ranks: it learns digits, and both ranks end with the same weights."""
    script = tmp_path / "train.py"
    script.write_text(EXAMPLE)
    words = ("--as-horovod", "-np", "2", torch_forks.python, str(script), "--epochs", "2")
    job = jobs.python(*RUN, *words, deadline_s=100)
    assert job.code == 0, job.report()
    assert not job.left
    lines = sorted(job.out(0).splitlines())
    assert [line.split(":")[0] for line in lines] == ["[0]<stdout>", "[1]<stdout>"], job.report()
    for rank, line in enumerate(lines):
        number, n, accuracy, same, name = line.partition(":")[2].split()
        assert (number, n, same, name) == (str(rank), "2", "True", "__main__")
        assert float(accuracy) > 0.9
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("job-")] == ["train.py"]


@pytest.mark.parallel
def test_every_way_to_a_python_is_reached(jobs: Runner, tmp_path: Path) -> None:
    """``-c``, ``-m``, a shell script, and processes that the script starts: all find the alias, as ``__main__``."""
    (tmp_path / "own.py").write_text("import horovod.common.util as u; print('m', __name__, u.split_list([1, 2], 2))\n")
    (tmp_path / "both.sh").write_text(
        "cd $(dirname $0)\npython -c 'import horovod; print(\"c\", __name__, horovod.__version__)'\npython -m own\n"
        'python -c \'import subprocess, sys; subprocess.run([sys.executable, "-O", "own.py"])\'\n'
    )
    command = ("--as-horovod", "-np", "1", "--gloo", "sh", str(tmp_path / "both.sh"))
    job = jobs.python(*RUN, *command, deadline_s=40)
    assert job.code == 0, job.report()
    assert job.out(0).splitlines() == [
        "[0]<stdout>:c __main__ 0.28.1",
        "[0]<stdout>:m __main__ [[1], [2]]",
        "[0]<stdout>:m __main__ [[1], [2]]",
    ]


def test_a_program_that_starts_its_ranks_itself_is_reached(tmp_path: Path) -> None:
    """``python -m workbench.as_horovod`` is Python with the alias: a script, ``-m``, ``-c``; children have it, too."""
    (tmp_path / "own.py").write_text("import sys, horovod; print(__name__, sys.argv[1:], horovod.__version__)\n")
    child = "import subprocess, sys; subprocess.run([sys.executable, 'own.py', 'c'], check=True)"
    for words, arguments in ((["own.py", "a"], ["a"]), (["-m", "own", "b"], ["b"]), (["-c", child], ["c"])):
        done = subprocess.run(
            [sys.executable, "-m", "workbench.as_horovod", *words],
            capture_output=True,
            text=True,
            timeout=50,
            cwd=tmp_path,
            env=mpi.environment(1),
        )
        assert done.stdout == f"__main__ {arguments} 0.28.1\n", done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "workbench.as_horovod"],
        capture_output=True,
        text=True,
        timeout=50,
        env=mpi.environment(1),
    )
    assert done.stderr.startswith("usage: python -m workbench.as_horovod")


def test_names_lead_to_ours(tmp_path: Path, torch_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module that there is can be imported under Horovod's name, and its names are our objects; others are named.

    A missing part is a ModuleNotFoundError with its name, a missing name an AttributeError.
    """
    code = """
    import workbench.as_horovod, importlib
    import horovod, horovod.torch as hvd, horovod.torch.elastic as elastic
    import workbench.torch, workbench.torch.elastic, workbench.errors
    import workbench.launch.function, workbench.job.process_sets
    names = "elastic mpi_ops sync_batch_norm compression functions optimizer elastic.state elastic.sampler".split()
    common = "util exceptions process_sets basics elastic".split()
    for name in [*(f"torch.{each}" for each in names), *(f"common.{each}" for each in common), "runner", "version"]:
        importlib.import_module(f"horovod.{name}")
    from horovod.torch.mpi_ops import allreduce_async, is_homogeneous
    from horovod.torch.elastic.state import TorchState
    from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
    star = {}
    exec("from horovod.torch import *; from horovod.torch.elastic.state import *", star)
    missing = []
    for name in ["nonsense", "torch.nonsense", "data", "common.util.deeper", "spark.nonsense"]:
        try: __import__(f"horovod.{name}")
        except ModuleNotFoundError as error: missing.append(error.name == f"horovod.{name}" in str(error))
    try: horovod.nonsense
    except AttributeError as error: missing.append("horovod.nonsense" in str(error))
    print([
        missing == [True] * 6 and star["TorchState"] is TorchState,
        hvd.DistributedOptimizer is workbench.torch.DistributedOptimizer is star["DistributedOptimizer"],
        elastic.TorchState is workbench.torch.elastic.TorchState is TorchState is hvd.elastic.TorchState,
        horovod.run.func is workbench.launch.function.run and horovod.runner.run is horovod.run,
        horovod.common.process_sets.ProcessSet is workbench.job.process_sets.ProcessSet,
        HorovodInternalError is workbench.errors.CollectiveError is hvd.HorovodInternalError,
        issubclass(HostsUpdatedInterrupt, RuntimeError) and hvd.elastic.HostsUpdatedInterrupt is HostsUpdatedInterrupt,
        horovod.common.basics.HorovodBasics(__name__, "x").size is workbench.torch.size is hvd.size,
        hvd.SyncBatchNorm is horovod.torch.sync_batch_norm.SyncBatchNorm,
        horovod.__version__ == horovod.version.__version__ == "0.28.1" and horovod.__file__.endswith(".py"),
        {"allreduce", "init"} <= set(dir(hvd)) and not hasattr(hvd, "nonsense") and not hasattr(hvd, "__wrapped__"),
        workbench.torch.__name__ == "workbench.torch" and not hasattr(workbench.torch, "mpi_ops"),
    ])
    """
    monkeypatch.setattr(sys, "executable", torch_forks.python)
    assert answer(code, tmp_path) == [True] * 12


# What scripts for TensorFlow and Keras import, and the modules of ours that have it: Horovod's own examples and README.
IMPORTS = """
horovod.tensorflow | workbench.tensorflow | DistributedGradientTape DistributedOptimizer BroadcastGlobalVariablesHook \\
    Compression SyncBatchNormalization broadcast_variables broadcast_global_variables broadcast_object \\
    allgather_object allreduce allgather broadcast alltoall reducescatter grouped_allreduce join barrier size_op \\
    rank_op elastic init shutdown rank size local_rank mpi_threads_supported nccl_built Average Sum Adasum ProcessSet
horovod.tensorflow.mpi_ops | workbench.tensorflow | allreduce size_op is_homogeneous process_set_included_op \\
    grouped_allgather broadcast_
horovod.tensorflow.util | workbench.as_horovod.tensorflow_util | _executing_eagerly _make_subgraph _cache \\
    vars_to_refs refs_to_vars
horovod.tensorflow | workbench.as_horovod.tensorflow_util | _executing_eagerly vars_to_refs
horovod.tensorflow | workbench.as_horovod.util | gpu_available split_list check_extension
horovod.tensorflow.elastic | workbench.elastic | run_fn
horovod.tensorflow.compression | workbench.training.compression | Compressor
horovod.common.util | workbench.as_horovod.util | _cache extension_available EXTENSIONS
horovod.tensorflow.functions | workbench.tf.functions | broadcast_variables broadcast_object_fn
horovod.tensorflow.compression | workbench.tensorflow | Compression
horovod.tensorflow.elastic | workbench.tensorflow.elastic | run TensorFlowState TensorFlowKerasState
horovod.tensorflow.sync_batch_norm | workbench.tensorflow.sync_batch_norm | SyncBatchNormalization
horovod.tensorflow.keras | workbench.keras | DistributedOptimizer PartialDistributedOptimizer Compression callbacks \\
    elastic allreduce allgather broadcast broadcast_global_variables load_model init rank size local_rank Average Sum
horovod.tensorflow.keras.callbacks | workbench.keras.callbacks | BroadcastGlobalVariablesCallback \\
    MetricAverageCallback LearningRateWarmupCallback LearningRateScheduleCallback BestModelCheckpoint
horovod.tensorflow.keras.elastic | workbench.keras.elastic | run KerasState CommitStateCallback \\
    UpdateBatchStateCallback UpdateEpochStateCallback
horovod.keras | workbench.keras | DistributedOptimizer callbacks elastic broadcast_global_variables load_model
horovod.keras.callbacks | workbench.keras.callbacks | LearningRateWarmupCallback BestModelCheckpoint
horovod.keras.elastic | workbench.keras.elastic | run KerasState
horovod.tensorflow.data.compute_service | workbench.tensorflow.data.compute_service | TfDataServiceConfig \\
    tf_data_service send_to_data_service compute_worker_fn
horovod.tensorflow.data.compute_worker | workbench.tensorflow.data.compute_worker | main
horovod.runner.common.service.compute_service | workbench.data.registry | ComputeService ComputeClient
"""


@pytest.mark.thorough
def test_tensorflows_and_keras_names_lead_to_ours(tmp_path: Path) -> None:
    """Every name can be imported from where Horovod has it, and is our object; what is Horovod's alone says so.

    What suites take from ``horovod.tensorflow.util`` and from the package does what Horovod's does.
    """
    needs("tensorflow")
    wanted = [[word.strip() for word in line.split("|")] for line in IMPORTS.replace("\\\n", "").strip().splitlines()]
    code = f"""
    import workbench.as_horovod
    from importlib import import_module
    told = []
    for theirs, ours, names in {wanted!r}:
        for name in names.split():
            found = {{}}
            exec(f"from {{theirs}} import {{name}}", found)
            if found[name] is not getattr(import_module(ours), name): told.append((theirs, name))
    import horovod.tensorflow, horovod.tensorflow.keras as hvd, workbench.keras
    mine = workbench.keras.callbacks.MetricAverageCallback
    if not (horovod.tensorflow.keras is hvd and hvd.callbacks.MetricAverageCallback is mine): told.append("attributes")
    for name in ("tensorflow.gradient_aggregation", "_keras", "keras.nonsense"):
        try: import_module(f"horovod.{{name}}")
        except ModuleNotFoundError as error: told.append((error.name, "the workbench has no such part" in str(error)))
    import horovod.tensorflow as hvd, tensorflow as tf
    from horovod.tensorflow.util import _cache, _make_subgraph, refs_to_vars, vars_to_refs
    calls, one, two = [], tf.Variable(1.0), tf.Variable(2.0)
    @_cache
    def add(x, y):
        calls.append(tf.executing_eagerly())
        return x + y
    inside = []
    @_make_subgraph
    def graph(): inside.append((hvd.util._executing_eagerly(), add(1, 2), add(1, 2)))
    graph()
    back = refs_to_vars(vars_to_refs([one, [two]]))
    print(told, [hvd._executing_eagerly(), inside, add(1, 2), add(1, 2), calls, back[0] is one and back[1][0] is two,
                 hvd.gpu_available("tensorflow"), hasattr(hvd.compression, "nonsense"),
                 hvd.extension_available("tensorflow")], sep=", ")
    """
    assert answer(code, tmp_path, TF_CPP_MIN_LOG_LEVEL="3") == (
        [("horovod.tensorflow.gradient_aggregation", True), ("horovod._keras", True), ("horovod.keras.nonsense", True)],
        [True, [(False, 3, 3)], 3, 3, [False, True], True, False, False, True],
    )


def test_helpers_of_the_runner(tmp_path: Path) -> None:
    """What public examples take from ``horovod.runner.common`` and ``horovod.runner.util`` does what Horovod's does."""
    code = """
    import workbench.as_horovod, threading
    from horovod.runner.common.util import env, secret, timeout
    from horovod.runner.common.util.hosts import parse_hosts
    from horovod.runner.common.util.timeout import TimeoutException
    from horovod.runner.common.util.host_hash import host_hash
    from horovod.runner.util.threads import execute_function_multithreaded, in_thread, on_event
    done, event = [], threading.Event()
    in_thread(done.append, (1,)).join()
    later = on_event(event, done.append, (2,))
    event.set()
    later.join()
    try: timeout.Timeout(-1, "too late for {activity}").check_time_out_for("tea")
    except TimeoutException as error: done.append(str(error))
    key = secret.make_secret_key()
    print([done, execute_function_multithreaded(pow, [(2, 3), (3, 2)]), env.get_env_rank_and_size(),
           secret.check_digest(key, b"x", secret.compute_digest(key, b"x")), secret.check_digest(key, b"x", b"y"),
           [(each.hostname, each.slots) for each in parse_hosts("a:2,b:1")], host_hash() == host_hash("salt")])
    """
    assert answer(code, tmp_path, PMI_RANK="1", PMI_SIZE="4") == [
        [1, 2, "too late for tea"], {0: 8, 1: 9}, (1, 4), True, False, [("a", 2), ("b", 1)], False,
    ]  # fmt: skip


def test_a_rank_and_size_that_may_change(tmp_path: Path) -> None:
    """In an elastic job both are those of the epoch, or before the first one what the launcher expects."""
    code = """
    import workbench.as_horovod
    from horovod.runner.common.util import env
    print(env.get_env_rank_and_size())
    """
    elastic = {"WORKBENCH_MEMBERSHIP": "/none", "WORKBENCH_WORKER": "7", "HOROVOD_RANK": "1", "HOROVOD_SIZE": "2"}
    assert answer(code, tmp_path, **elastic) == (1, 2)


def test_a_framework_that_is_not_installed_is_named(tmp_path: Path) -> None:
    """The part is there, and its framework is not: the error is about the framework."""
    code = """
    import sys, workbench.as_horovod
    sys.modules["mxnet"] = None
    try: import horovod.mxnet
    except ModuleNotFoundError as error: print(repr(error.name))
    """
    assert answer(code, tmp_path) == "mxnet"


def test_parts_under_construction_come_by_themselves(tmp_path: Path) -> None:
    """Other frameworks' modules are mapped by name: as soon as ``workbench.<framework>`` exists it is found."""
    code = """
    import sys, types, workbench.as_horovod, workbench
    from importlib.machinery import ModuleSpec
    for name in ("workbench.keras", "workbench.keras.callbacks"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name].__path__ = []
    sys.modules["workbench.keras.callbacks"].Mark = 7
    from horovod.keras.callbacks import Mark
    print(Mark)
    """
    assert answer(code, tmp_path) == 7
    assert targets("horovod.jaxlib") == ()


def test_the_alias_loads_no_framework_that_nobody_asked_for(tmp_path: Path) -> None:
    """``import horovod`` and its helpers load no torch; ``workbench`` alone does not make a ``horovod``."""
    code = """
    import sys, workbench.job.api
    try: import horovod
    except ModuleNotFoundError as error: print(error.name == "horovod")
    """
    assert answer(code, tmp_path) is True
    code = """
    import sys, workbench.as_horovod, horovod, horovod.common.util, horovod.common.exceptions
    horovod.common.util.mpi_built()
    print(sorted({"torch", "mpi4py", "tensorflow"} & set(sys.modules)))
    """
    assert answer(code, tmp_path) == []


@pytest.fixture
def real(tmp_path: Path) -> str:
    """A folder with another package of that name."""
    package = tmp_path / "site" / "horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = 'real'\n")
    return str(package.parent)


def path_with(folder: str) -> str:
    """PYTHONPATH with another folder before the workbench's."""
    return ":".join(filter(None, [folder, mpi.environment(1).get("PYTHONPATH", "")]))


def test_a_real_horovod_is_hidden_only_on_demand(real: str, tmp_path: Path) -> None:
    """Without the alias a real Horovod is found; with it ours is, and one line says so; the two never mix."""
    show = "import workbench.job.api, horovod; print(repr(horovod.__version__))"
    assert answer(show, tmp_path, PYTHONPATH=path_with(real)) == "real"
    done = python(f"import workbench.as_horovod; {show}", tmp_path, PYTHONPATH=path_with(real))
    assert done.stdout == "'0.28.1'\n"
    assert done.stderr.splitlines() == [
        f"workbench: `horovod` means the workbench here, not the one in {real}/horovod/__init__.py."
    ]
    mixed = python("import horovod, workbench.as_horovod", tmp_path, PYTHONPATH=path_with(real))
    assert mixed.returncode == 1
    assert f"ImportError: {real}/horovod/__init__.py is imported already" in mixed.stderr


@pytest.mark.parallel
def test_the_option_hides_it_in_the_ranks_only(jobs: Runner, real: str) -> None:
    """With ``--as-horovod`` the ranks find ours before an installed one, and rank 0 says so; without it, theirs."""
    show = ("python", "-c", "import horovod; print(horovod.__version__)")
    for option, version, lines in (("--as-horovod", "0.28.1", 1), ("--verbose", "real", 0)):
        job = jobs.python(*RUN, "-np", "2", "--gloo", option, *show, deadline_s=40, PYTHONPATH=path_with(real))
        assert job.code == 0, job.report()
        assert sorted(job.out(0).splitlines()) == [f"[{rank}]<stdout>:{version}" for rank in range(2)]
        assert job.err(0).count("means the workbench here") == lines


@pytest.mark.parallel
def test_functions_run_on_ranks_with_the_alias(jobs: Runner, tmp_path: Path) -> None:
    """``horovod.run`` calls a function on ranks in which ``import horovod`` works; ``HorovodRunner`` does the same.

    It returns what rank 0 does, from processes of this machine; an installed sparkdl goes first.
    """
    script = tmp_path / "driver.py"
    script.write_text(
        "import horovod\nfrom sparkdl import HorovodRunner\n"
        "def f(x):\n    import horovod\n    from horovod.common.util import num_rank_is_power_2\n"
        "    return horovod.__version__, num_rank_is_power_2(x)\n"
        "def g(lr):\n    import horovod, workbench as hvd\n    hvd.init()\n    return hvd.rank(), hvd.size(), lr\n"
        "if __name__ == '__main__':\n    print(horovod.run(f, args=(4,), num_proc=1, use_gloo=True))\n"
        "    print(HorovodRunner(np=2).run(g, lr=0.5))\n"
    )
    job = jobs.python("-m", "workbench.as_horovod", str(script), deadline_s=60)
    assert job.code == 0, job.report()
    assert [*map(ast.literal_eval, job.out(0).splitlines())] == [[("0.28.1", True)], (0, 2, 0.5)]
    assert job.err(0).count("no SparkContext is active: HorovodRunner starts 2 processes here") == 1
    (tmp_path / "sparkdl.py").write_text("HorovodRunner = 'theirs'\n")
    assert answer("import workbench.as_horovod, sparkdl; print(repr(sparkdl.HorovodRunner))", tmp_path) == "theirs"


def test_databricks_runner_refuses_what_it_cannot_do() -> None:
    """Before anything is started."""
    for np in (0, True, "2"):
        with pytest.raises(ValueError, match=r"HorovodRunner\(np="):
            HorovodRunner(np=np)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all, log_callback_only"):
        HorovodRunner(np=-1, driver_log_verbosity="none")
    with pytest.raises(LaunchError, match="give a function, without calling it"):
        HorovodRunner(np=-1).run(None)  # type: ignore[arg-type]


# As Horovod's examples with --num-proc: functions and classes of __main__ that speak of the modules by global names.
STARTS_ITSELF = """
import argparse
import horovod
import horovod.torch as hvd
import torch
import torch.nn.functional as F

parser = argparse.ArgumentParser()
parser.add_argument("--num-proc", type=int)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x):
        return F.log_softmax(self.fc(x), dim=1)


def metric_average(value, name):
    return hvd.allreduce(torch.tensor(value), name=name).item()


def main(args):
    def train_epoch():
        optimizer.zero_grad()
        F.nll_loss(model(torch.ones(4, 3)), torch.zeros(4, dtype=torch.long)).backward()
        optimizer.step()

    hvd.init()
    torch.manual_seed(hvd.rank())
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        optimizer, named_parameters=model.named_parameters(), compression=hvd.Compression.fp16, op=hvd.Average)
    train_epoch()
    weights = hvd.allgather_object(model.state_dict()["fc.weight"].tolist(), name="weights")
    same = all(each == weights[0] for each in weights)
    return hvd.rank(), hvd.size(), args.num_proc, metric_average(float(hvd.rank()), "mean"), same


if __name__ == "__main__":
    args = parser.parse_args()
    if args.num_proc:
        print(horovod.run(main, args=(args,), np=args.num_proc, hosts=None, use_gloo=False, use_mpi=False))
    else:
        main(args)
"""


@pytest.mark.parallel
@pytest.mark.timeout(120)
@pytest.mark.parametrize("how", [once_more("an import"), once_more("run -np 1")])
def test_a_script_starts_its_own_ranks(how: str, jobs: Runner, tmp_path: Path) -> None:
    """A function of ``__main__`` that uses the global ``hvd`` runs on two ranks: modules travel by their names."""
    script = tmp_path / "train.py"
    script.write_text(("import workbench.as_horovod\n" if how == "an import" else "") + STARTS_ITSELF)
    words = (*RUN, "--as-horovod", "-np", "1", "python") if how == "run -np 1" else ()
    job = jobs.python(*words, str(script), "--num-proc", "2", deadline_s=100)
    assert job.code == 0, job.report()
    last = job.out(0).splitlines()[-1]
    assert ast.literal_eval(last[last.index("[(") :]) == [(rank, 2, 2, 0.5, True) for rank in range(2)]
    assert not job.left


def test_a_module_of_the_alias_is_pickled_by_its_name(tmp_path: Path) -> None:
    """Also where nobody has imported the alias; a copy is the module itself."""
    code = "import workbench.as_horovod, horovod.common.util as util, copy, pickle, cloudpickle\n"
    code += "assert copy.deepcopy(util) is util\n"
    code += "print([pickle.dumps(util), cloudpickle.dumps(lambda: util.split_list([1, 2], 2))])"
    module, function = answer(code, tmp_path)
    assert len(module) < 200
    code = f"import pickle; print([pickle.loads({module!r}).__name__, pickle.loads({function!r})()])"
    assert answer(code, tmp_path) == ["horovod.common.util", [[1], [2]]]


# --- helpers ------------------------------------------------------------------------------------------


def test_every_module_of_the_table_exists() -> None:
    """The table speaks of modules that there are."""
    for name, ours in PARTS.items():
        assert targets(name)[: len(ours)] == ours
        for each in ours:
            path = ROOT / each.replace(".", "/")
            assert path.is_dir() or path.with_suffix(".py").is_file(), each


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_split_list_is_even(n: int) -> None:
    """The pieces are the list again, and their lengths differ by one at most, longer ones first."""
    pieces = util.split_list(list(range(5)), n)
    assert [each for piece in pieces for each in piece] == list(range(5))
    lengths = [len(piece) for piece in pieces]
    assert len(pieces) == n
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_helpers_answer_for_this_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is built is what check-build finds; a part that there is not is an ImportError."""
    import torch

    from workbench.diagnostics import check_build

    assert util.extension_available("torch") == check_build.has_framework("torch") is True
    assert util.gpu_available("torch") == torch.cuda.is_available()
    assert util.gloo_built(verbose=True), "ranks can do without MPI"
    assert capsys.readouterr().out == "Gloo: True\n"
    assert util.mpi_built() is True
    assert (util.ddl_built(), util.ccl_built()) == (False, False)
    assert isinstance(util.nccl_built(), int)
    assert (util.nccl_built() > 0) <= torch.cuda.is_available()
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.nonsense"):
        util.check_extension("horovod.nonsense", "HOROVOD_WITH_NONSENSE", __file__, "mpi_lib")
    assert util.check_installed_version("torch", torch.__version__) is None
    assert util.get_extension_full_path("/a/b.py", "c", "d") == f"/a/c/d{util.get_ext_suffix()}"


def test_variables_are_changed_within_the_block_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """``env`` sets variables, leaves out None, and restores what was there, also after an exception."""
    import os

    monkeypatch.setenv("WORKBENCH_TEST_A", "1")

    def values() -> list[str | None]:
        return [os.environ.get(f"WORKBENCH_TEST_{letter}") for letter in "ABC"]

    def fail_within() -> None:
        with util.env(WORKBENCH_TEST_A="2", WORKBENCH_TEST_B="3", WORKBENCH_TEST_C=None):
            assert values() == ["2", "3", None]
            raise KeyError

    with pytest.raises(KeyError):
        fail_within()
    assert values() == ["1", None, None]


def test_op_and_average() -> None:
    """``op`` counts; ``average`` is understood with a warning; both are an error; neither means Average."""
    from workbench.job import api

    choose = util.get_average_backwards_compatibility_fun(api)
    assert (choose(None, None), choose(api.Sum, None)) == (api.Average, api.Sum)
    with pytest.warns(DeprecationWarning, match="average"):
        assert (choose(None, True), choose(None, False)) == (api.Average, api.Sum)
    with pytest.raises(ValueError, match="supersedes"):
        choose(api.Sum, True)


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.13.0+cpu", "2.4.0", True),
        ("2.4.0", "2.4.0", True),
        ("2.4", "2.4.0", True),
        ("2.4.0rc1", "2.4.0", False),
        ("2.4.0.dev2024", "2.4.0", False),
        ("1.99.9", "2.0.0", False),
        ("2.10.0", "2.9.1", True),
        ("2.4.0+cu121", "2.4.1", False),
    ],
)
def test_versions_compare_as_numbers(version: str, target: str, expected: bool) -> None:
    """As packaging's versions compare, which is the oracle."""
    from packaging.version import Version

    assert util.is_version_greater_equal_than(version, target) is expected
    assert (Version(version.partition("+")[0]) >= Version(target)) is expected


def test_a_target_version_has_three_parts() -> None:
    """As Horovod's helper wants it."""
    with pytest.raises(ValueError, match=r"major\.minor\.patch"):
        util.is_version_greater_equal_than("2.4.0", "2.4")
    with pytest.raises(ValueError, match="texts"):
        util.is_version_greater_equal_than(2, "2.4.0")  # type: ignore[arg-type]


def test_a_shell_that_workbench_env_has_made_ready(tmp_path: Path) -> None:
    """The practical session's commands, as typed, whatever was on PATH and PYTHONPATH before."""
    (tmp_path / "other.py").write_text("")
    (tmp_path / "two.py").write_text(
        # One string: with PYTHONUNBUFFERED, print writes each argument by itself, and mpirun mixes them.
        "import horovod, other, workbench as hvd\nhvd.init()\nprint(f'rank {hvd.rank()} of {hvd.size()}')\n"
    )
    lines = [
        f'eval "$({sys.executable} -m workbench.cli.main env)"',
        "mpirun -n 2 python two.py",
        "horovodrun -np 2 python two.py",
    ]
    env = os.environ | {"PATH": "/usr/bin:/bin", "PYTHONPATH": f":{tmp_path}"}
    words = ["sh", "-e", "-c", "\n".join(lines)]
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"rank {rank} of 2") for rank in range(2)] == [2, 2], done.stdout
