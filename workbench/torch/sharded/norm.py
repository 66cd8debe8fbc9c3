"""The norm of gradients of which each rank has a part."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from workbench.job import api
from workbench.torch.sharded.flat_parameter import Members


def total_norm(grads: Sequence[torch.Tensor], norm_type: float, members: Members, name: str = "") -> torch.Tensor:
    """Of all ranks' gradients together, in float64, the same on all of them.

    Args:
        grads: this rank's; there may be none.
        norm_type: p, of the p-th root of the sum of |g|ᵖ; infinity: the largest |g|.
        members: who has the other parts.
        name: of what these gradients are, the same on all ranks.

    Example:
        >>> from workbench.job.process_sets import global_process_set
        >>> total_norm([torch.tensor([3.0]), torch.tensor([-4.0])], 2, Members(0, 1, global_process_set)).item()
        5.0
    """
    largest = math.isinf(norm_type)
    norms = [float(torch.linalg.vector_norm(grad, norm_type, dtype=torch.float64)) for grad in grads]
    here = max(norms, default=0.0) if largest else sum(norm**norm_type for norm in norms)
    if members.size > 1:
        op, where = (api.Max if largest else api.Sum), members.process_set
        here = float(api.allreduce(np.array([here]), f"norm of gradients {name}", op=op, process_set=where)[0])
    return torch.tensor(here if largest else here ** (1 / norm_type), dtype=torch.float64)


def clip_factor(norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """By what gradients are multiplied: as torch.nn.utils.clip_grad_norm_ has it.

    Example:
        >>> clip_factor(torch.tensor(2.0), 5.0).item()
        1.0
    """
    return torch.clamp(max_norm / (norm + 1e-6), max=1.0)
