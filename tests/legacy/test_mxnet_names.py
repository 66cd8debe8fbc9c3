"""The names that MXNet scripts written for Horovod 0.28 use, with their arguments in Horovod's order."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest

hvd: Any = pytest.importorskip("workbench.mxnet")

REDUCTION = (
    "average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0, process_set=everybody, op=None"
)
SCATTER = "op=Average, name=None, priority=0, process_set=everybody, prescale_factor=1.0, postscale_factor=1.0"
SIGNATURES = f"""
allreduce(tensor, {REDUCTION})
allreduce_(tensor, {REDUCTION})
grouped_allreduce(tensors, {REDUCTION})
grouped_allreduce_(tensors, {REDUCTION})
allgather(tensor, name=None, priority=0, process_set=everybody)
grouped_allgather(tensors, name=None, priority=0, process_set=everybody)
broadcast(tensor, root_rank, name=None, priority=0, process_set=everybody)
broadcast_(tensor, root_rank, name=None, priority=0, process_set=everybody)
alltoall(tensor, splits=None, name=None, priority=0, process_set=everybody)
reducescatter(tensor, {SCATTER})
grouped_reducescatter(tensors, {SCATTER})
broadcast_object(obj, root_rank=0, name=None)
allgather_object(obj, name=None)
broadcast_parameters(params, root_rank=0, prefix=None)
DistributedOptimizer(optimizer, gradient_predivide_factor=1.0, num_groups=0, process_set=everybody)
DistributedTrainer(params, optimizer, optimizer_params=None, compression=none, gradient_predivide_factor=1.0,
    prefix=None, num_groups=0, process_set=everybody)
"""
OTHERS = """
init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank
mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
ProcessSet global_process_set add_process_set remove_process_set Average Sum Adasum Min Max Product is_homogeneous
Compression
"""
MEANT = {"everybody": hvd.global_process_set, "Average": hvd.Average, "none": hvd.Compression.none}


@pytest.mark.parametrize("call", [ast.unparse(each.value) for each in ast.parse(SIGNATURES).body])
def test_arguments_are_horovod_s(call: str) -> None:
    """Positional or by keyword, a call written for Horovod means the same here; ours may take more after it."""
    tree: Any = ast.parse(call, mode="eval").body
    wanted: list[tuple[str, Any]] = [(each.id, inspect.Parameter.empty) for each in tree.args]
    for word in tree.keywords:
        text = ast.unparse(word.value)
        wanted.append((word.arg, MEANT[text] if text in MEANT else ast.literal_eval(text)))
    mine = list(inspect.signature(getattr(hvd, tree.func.id)).parameters.values())
    assert [(each.name, each.default) for each in mine[: len(wanted)]] == wanted
    assert all(each.default is not inspect.Parameter.empty for each in mine[len(wanted) :])


@pytest.mark.parametrize("name", OTHERS.split())
def test_other_names(name: str) -> None:
    """They are there, and public."""
    assert getattr(hvd, name) is not None
    assert name in hvd.__all__


def test_all_public_names_exist() -> None:
    """What is public is there, once."""
    assert all(hasattr(hvd, name) for name in hvd.__all__)
    assert len(set(hvd.__all__)) == len(hvd.__all__)
