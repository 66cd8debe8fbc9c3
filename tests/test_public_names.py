"""The names that scripts written for Horovod 0.28 use, with their arguments in Horovod's order.

Those of TensorFlow and Keras are in ``tests/frameworks``: it takes a process of its own to import them.
"""

from __future__ import annotations

import inspect

import pytest
from signatures import calls, check_call, named

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


def test_names_and_arguments_are_horovod_s() -> None:
    """Positional or by keyword, a call written for Horovod means the same here; ours may take more after it."""
    for call in calls(SIGNATURES):
        check_call(hvd, call)
    assert [name for name in WITHOUT_ARGUMENTS.split() if inspect.signature(named(hvd, name)).parameters] == []
    assert [name for name in OTHERS.split() if named(hvd, name) is None] == []


def test_without_init_the_world_is_a_value_error() -> None:
    """Horovod's scripts catch a ValueError where nobody has called init()."""
    for name in ("size", "rank", "local_rank", "cross_size", "mpi_threads_supported"):
        with pytest.raises(ValueError, match="init"):
            named(hvd, name)()


def test_run_takes_the_keywords_of_horovod_s() -> None:
    """Those of ``horovod.run``, the deprecated ones too."""
    names = """func args kwargs num_proc min_num_proc max_num_proc slots reset_limit cooldown_range hosts hostfile
    host_discovery_script start_timeout ssh_port ssh_identity_file disable_cache output_filename verbose use_gloo
    use_mpi mpi_args network_interface network_interfaces executable np min_np max_np"""
    assert set(names.split()) <= set(inspect.signature(workbench.run).parameters)


def test_run_is_the_package_s() -> None:
    """``workbench.run`` is the function, found at its first use, and a public name."""
    from workbench.launch.function import run

    assert workbench.run is run
    assert "run" in workbench.__all__
    assert "run" in dir(workbench)
