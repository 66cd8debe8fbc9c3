"""The names that scripts written for Horovod 0.28 use on TensorFlow and Keras, with their arguments in its order."""

from __future__ import annotations

import inspect
from importlib import import_module

import pytest
from exports import differences, opaque, seen_by_mypy
from signatures import calls, check_call, named

import workbench

FACES = [f"workbench.{name}" for name in ("tensorflow", "tensorflow.keras", "keras", "jax")]
HANDED_ON = {"workbench.jax": ["workbench.jax.distributed_value_and_grad"]}

DEVICES = "device_dense='', device_sparse=''"
FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
SET = "process_set=global_process_set"
TAPE = f"""gradtape, {DEVICES}, compression=Compression.none, sparse_as_dense=False, op=Average,
    gradient_predivide_factor=1.0, num_groups=0, groups=None, {SET}"""
TENSORFLOW = f"""
allreduce(tensor, average=None, {DEVICES}, compression=Compression.none, op=None, {FACTORS}, name=None, {SET},
    ignore_name_scope=False)
grouped_allreduce(tensors, average=None, {DEVICES}, compression=Compression.none, op=None, {FACTORS}, {SET},
    ignore_name_scope=False, name=None)
reducescatter(tensor, device_dense='', compression=Compression.none, op=Average, name=None, {SET},
    ignore_name_scope=False, {FACTORS})
grouped_reducescatter(tensors, device_dense='', compression=Compression.none, op=Average, {SET},
    ignore_name_scope=False, {FACTORS})
allgather(tensor, name=None, ignore_name_scope=False, {SET})
grouped_allgather(tensors, name=None, ignore_name_scope=False, {SET})
broadcast(tensor, root_rank, name=None, ignore_name_scope=False, {SET})
broadcast_(variables, root_rank, name=None, {SET})
alltoall(tensor, splits=None, name=None, ignore_name_scope=False, {SET})
join()
size_op(process_set_id=0, name=None)
process_set_included_op(process_set_id=0, name=None)
local_size_op(name=None)
rank_op(name=None)
local_rank_op(name=None)
broadcast_variables(variables, root_rank, {SET}, inplace=False)
broadcast_object(obj, root_rank=0, session=None, name=None, {SET})
broadcast_object_fn(root_rank=0, session=None, name=None, {SET})
allgather_object(obj, session=None, name=None, {SET})
broadcast_global_variables(root_rank)
BroadcastGlobalVariablesHook(root_rank, device='')
DistributedOptimizer(optimizer, name=None, use_locking=False, {DEVICES}, compression=Compression.none,
    sparse_as_dense=False, backward_passes_per_step=1, op=Average, gradient_predivide_factor=1.0,
    average_aggregated_gradients=False, num_groups=0, groups=None, {SET}, scale_local_gradients=True)
DistributedGradientTape({TAPE}, scale_local_gradients=True)
PartialDistributedGradientTape({TAPE}, local_layers=None, scale_local_gradients=True)
SyncBatchNormalization(fused=False)
elastic.run(func)
elastic.TensorFlowKerasState(model, optimizer=None, backend=None)
elastic.TensorFlowState(variables=None, session=None)
init(comm=None, process_sets=None)
start_timeline(file_path, mark_cycles=False)
add_process_set(process_set)
remove_process_set(process_set)
"""
# horovod.tensorflow.keras' order. horovod.keras has some in another order, and none that is not here.
STEPS = "momentum_correction=True, steps_per_epoch=None"
KERAS = f"""
DistributedOptimizer(optimizer, name=None, {DEVICES}, compression=Compression.none, sparse_as_dense=False,
    gradient_predivide_factor=1.0, op=Average, backward_passes_per_step=1, average_aggregated_gradients=False,
    num_groups=0, groups=None, {SET}, scale_local_gradients=True)
broadcast_global_variables(root_rank)
allreduce(value, name=None, average=None, {FACTORS}, op=None, compression=Compression.none)
allgather(value, name=None)
broadcast(value, root_rank, name=None)
reducescatter(value, name=None, op=Average)
load_model(filepath, custom_optimizers=None, custom_objects=None, compression=Compression.none, legacy_opts=False)
callbacks.BroadcastGlobalVariablesCallback(root_rank, device='', local_variables=None)
callbacks.MetricAverageCallback(device='')
callbacks.LearningRateScheduleCallback(initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True,
    {STEPS})
callbacks.LearningRateWarmupCallback(initial_lr, warmup_epochs=5, {STEPS}, verbose=0)
callbacks.BestModelCheckpoint(monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch')
elastic.run(func)
elastic.KerasState(model, optimizer=None)
elastic.CommitStateCallback(state, batches_per_commit=1)
elastic.UpdateBatchStateCallback(state)
elastic.UpdateEpochStateCallback(state)
init(comm=None, process_sets=None)
"""
BY_KEYWORD = {
    "PartialDistributedOptimizer": "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step average_aggregated_gradients groups process_set "
    "local_layers scale_local_gradients",
    "DistributedOptimizer": "num_groups groups",
    "callbacks.BestModelCheckpoint": "monitor verbose mode save_freq",
}
OTHERS = """
shutdown is_initialized stop_timeline size rank local_size local_rank cross_size cross_rank is_homogeneous
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set Average Sum Adasum Min Max Product Compression.none.compress Compression.fp16.decompress
elastic barrier
"""


@pytest.mark.parametrize(
    ("module", "call"),
    [(module, call) for module, text in (("tensorflow", TENSORFLOW), ("keras", KERAS)) for call in calls(text)],
)
def test_arguments_are_horovod_s(module: str, call: str) -> None:
    """Positional or by keyword, a call written for Horovod means the same here; ours may take more after it."""
    check_call(import_module(f"workbench.{module}"), call)


@pytest.mark.parametrize("name", BY_KEYWORD)
def test_keywords_of_horovod_keras(name: str) -> None:
    """Where the order is another one, the words are the same."""
    mine = inspect.signature(named(import_module("workbench.keras"), name)).parameters
    assert set(BY_KEYWORD[name].split()) <= set(mine)


@pytest.mark.parametrize("module", ["tensorflow", "keras", "jax"])
def test_other_names(module: str) -> None:
    """They are there; JAX, which Horovod has not, is without elastic."""
    for name in OTHERS.split():
        if (module, name) != ("jax", "elastic"):
            assert named(import_module(f"workbench.{module}"), name) is not None


@pytest.mark.thorough  # mypy reads three frameworks, on each rank; of the others it is in tests/test_exports.py
def test_dir_all_and_mypy_agree() -> None:
    """What is public is there, once; it is what dir() shows and what a strict mypy sees."""
    pytest.importorskip("mypy")
    if workbench.rank() == 0:
        for face, typed in seen_by_mypy(FACES).items():
            assert differences(face, typed) == []
            assert all(hasattr(import_module(face), name) for name in dir(import_module(face)))


@pytest.mark.parametrize("face", FACES)
def test_signatures_are_real(face: str) -> None:
    """A function says what it takes; one hands further options on to ``jax.value_and_grad``."""
    assert [each.partition("(")[0] for each in opaque(face)] == HANDED_ON.get(face, [])
