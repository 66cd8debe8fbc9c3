"""Groups with a backend for each kind of device: ``init_process_group("cpu:workbench,cuda:nccl")``.

torch takes a group that is written in Python for tensors on every device. So each other backend gets a group of torch's
beside ours, and ours hands the calls for its device on.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from workbench.torch.distributed.group import ProcessGroup

c10d: Any = dist.distributed_c10d


def make(real: Callable[..., Any], asked: dict[str, Any]) -> tuple[Any, Any]:
    """A group of ours, with the others beside it.

    Args:
        real: torch's function that makes a group.
        asked: its arguments.

    Returns:
        What ``real`` does: the group, or a mark where this rank is no member; its store.

    Raises:
        ValueError: the workbench is asked for on another device than the CPU.
    """
    kinds = dist.BackendConfig(asked["backend"]).get_device_backend_map()
    if wrong := [kind for kind, name in kinds.items() if name == "workbench" and kind != "cpu"]:
        raise ValueError(
            f'init_process_group("{asked["backend"]}"): the backend workbench takes tensors on the CPU, and {wrong[0]} '
            f"is asked for. Write cpu:workbench, and another backend for {wrong[0]}."
        )
    others = {kind: name for kind, name in kinds.items() if kind != "cpu"}
    ordered = ",".join(f"{kind}:{name}" for kind, name in {"cpu": "workbench", **others}.items())
    group, store = real(**asked | {"backend": dist.Backend(ordered)})
    if not isinstance(group, ProcessGroup):
        return group, store
    ranks = asked["global_ranks_in_group"] or range(group.size())
    for kind, backend in others.items():
        if dist.is_backend_available(backend):  # a laptop without GPUs runs the same script
            name = f"{asked['group_name']}/{kind}"  # its tag, too: what has an equal tag and ranks is not made again
            only = {"backend": dist.Backend(f"{kind}:{backend}"), "group_name": name, "pg_tag": name}
            group.others[kind], _ = real(**asked | only)
            c10d._world.pg_group_ranks[group.others[kind]] = {rank: place for place, rank in enumerate(ranks)}
    _know_others()
    return group, store


@functools.cache
def _know_others() -> None:
    """Have two of torch's functions know what stands beside a group of ours."""
    destroy, batch = dist.destroy_process_group, dist.batch_isend_irecv

    @functools.wraps(destroy)
    def destroy_process_group(group: Any = None) -> None:
        beside = [] if group in (None, dist.group.WORLD) else getattr(group, "others", {}).values()
        destroy(group)
        for other in beside:
            destroy(other)

    @functools.wraps(batch)
    def batch_isend_irecv(p2p_op_list: list[Any]) -> Any:
        """Joined, as NCCL needs it; torch joins the messages of its own groups alone."""
        return batch([_handed_on(each) for each in p2p_op_list])

    for function in (destroy_process_group, batch_isend_irecv):
        for module in (dist, c10d):
            setattr(module, function.__name__, function)


def _handed_on(message: Any) -> Any:
    other = getattr(message.group, "others", {}).get(message.tensor.device.type)
    if other is None:
        return message
    return dist.P2POp(message.op, message.tensor, group=other, tag=message.tag, group_peer=message.group_peer)
