"""The names that scripts written for Horovod 0.28 use, with their arguments in Horovod's order."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

import workbench

hvd = pytest.importorskip("workbench.torch")

REDUCTION = "name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, process_set=global_process_set"
SCATTER = "op=Average, process_set=global_process_set, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = f"""
allreduce(tensor, average=None, name=None, compression=Compression.none, {REDUCTION.partition(", ")[2]})
allreduce_(tensor, average=None, {REDUCTION})
allreduce_async(tensor, average=None, {REDUCTION})
allreduce_async_(tensor, average=None, {REDUCTION})
grouped_allreduce(tensors, average=None, name=None, compression=Compression.none, {REDUCTION.partition(", ")[2]})
grouped_allreduce_(tensors, average=None, {REDUCTION})
grouped_allreduce_async(tensors, average=None, {REDUCTION})
grouped_allreduce_async_(tensors, average=None, {REDUCTION})
sparse_allreduce_async(tensor, name, op, process_set=global_process_set)
allgather(tensor, name=None, process_set=global_process_set)
allgather_async(tensor, name=None, process_set=global_process_set)
grouped_allgather(tensors, name=None, process_set=global_process_set)
grouped_allgather_async(tensors, name=None, process_set=global_process_set)
broadcast(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_async(tensor, root_rank, name=None, process_set=global_process_set)
broadcast_async_(tensor, root_rank, name=None, process_set=global_process_set)
alltoall(tensor, splits=None, name=None, process_set=global_process_set)
alltoall_async(tensor, splits=None, name=None, process_set=global_process_set)
reducescatter(tensor, name=None, compression=Compression.none, {SCATTER})
reducescatter_async(tensor, name=None, {SCATTER})
grouped_reducescatter(tensors, name=None, compression=Compression.none, {SCATTER})
grouped_reducescatter_async(tensors, name=None, {SCATTER})
poll(handle)
synchronize(handle)
join(device=-1)
barrier(process_set=global_process_set)
broadcast_parameters(params, root_rank)
broadcast_optimizer_state(optimizer, root_rank, model=None)
broadcast_object(obj, root_rank=0, name=None, process_set=global_process_set)
allgather_object(obj, name=None)
DistributedOptimizer(optimizer, named_parameters=None, compression=Compression.none, backward_passes_per_step=1,
    op=Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, sparse_as_dense=False,
    process_set=global_process_set)
SyncBatchNorm(num_features, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
init(comm=None, process_sets=None)
add_process_set(process_set)
remove_process_set(process_set)
start_timeline(file_path, mark_cycles=False)
elastic.run(func)
elastic.TorchState(model=None, optimizer=None)
elastic.ElasticSampler(dataset, shuffle=True, seed=0)
"""
WITHOUT_ARGUMENTS = """
shutdown is_initialized stop_timeline size rank local_size local_rank cross_size cross_rank is_homogeneous
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
_check_has_gpu
"""
OTHERS = """
ProcessSet global_process_set Average Sum Adasum Min Max Product Compression.none.compress Compression.fp16.decompress
HorovodInternalError elastic.get_handler_registry elastic.set_handler_registry elastic.ModelStateHandler
elastic.OptimizerStateHandler elastic.SamplerStateHandler
"""


def named(path: str) -> Any:
    """What stands behind a dotted name in ``workbench.torch``."""
    value: Any = hvd
    for part in path.split("."):
        value = getattr(value, part)
    return value


@pytest.mark.parametrize("call", [ast.unparse(each.value) for each in ast.parse(SIGNATURES).body])
def test_arguments_are_horovod_s(call: str) -> None:
    """Positional or by keyword, a call written for Horovod means the same here; ours may take more after it."""
    tree: Any = ast.parse(call, mode="eval").body
    mine = list(inspect.signature(named(ast.unparse(tree.func))).parameters.values())
    wanted = [(arg.id, inspect.Parameter.empty) for arg in tree.args]
    defaults = {"global_process_set": hvd.global_process_set, "Average": hvd.Average}
    defaults["Compression.none"] = hvd.Compression.none
    for word in tree.keywords:
        text = ast.unparse(word.value)
        wanted.append((word.arg, defaults[text] if text in defaults else ast.literal_eval(text)))
    for parameter, (name, default) in zip(mine, wanted, strict=False):
        assert parameter.name == name
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        # One may be left out here that Horovod needs, such as elastic.run's.
        assert default is inspect.Parameter.empty or parameter.default == default
    assert len(mine) >= len(wanted)
    for more in mine[len(wanted) :]:
        assert more.default is not inspect.Parameter.empty or more.kind is inspect.Parameter.VAR_KEYWORD


@pytest.mark.parametrize("name", WITHOUT_ARGUMENTS.split())
def test_functions_without_arguments(name: str) -> None:
    """They are there, and need nothing."""
    assert not inspect.signature(named(name)).parameters


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_names(name: str) -> None:
    """They are there."""
    assert named(name) is not None


def test_without_init_the_world_is_a_value_error() -> None:
    """Horovod's scripts catch a ValueError where nobody has called init()."""
    for name in ("size", "rank", "local_rank", "cross_size", "mpi_threads_supported"):
        with pytest.raises(ValueError, match="init"):
            named(name)()


def test_run_is_the_package_s() -> None:
    """``workbench.run`` is the function, found at its first use, and a public name."""
    from workbench.runner import run

    assert workbench.run is run
    assert "run" in workbench.__all__
    assert "run" in dir(workbench)
