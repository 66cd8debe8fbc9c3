"""Top-k compression: only the largest entries of a gradient are sent; the rest is kept for the next step.

What is left out is not lost: it is added to the next gradient (*error feedback*), so small entries are sent as soon as
they have added up. A rank sends k indices and k values instead of the whole tensor; the ranks' choices
differ, so they are gathered and added up, like a sparse gradient (Lin et al. 2018, arXiv:1712.01887).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from workbench.job.api import ReduceOp
from workbench.job.process_sets import ProcessSet
from workbench.torch.ops import gather_sparse
from workbench.training.compression import Compressor


class TopKCompression(Compressor):
    """Keep the ``ratio`` largest entries of each tensor, by magnitude.

    Args:
        ratio: part of the entries that is sent, 0 < ratio ≤ 1; at least one entry does.

    Raises:
        ValueError: a ratio outside of that.

    Example:
        >>> TopKCompression(0.5).compress(torch.tensor([1.0, -3.0, 2.0, 0.5]))[0]
        tensor([ 0., -3.,  2.,  0.])
    """

    def __init__(self, ratio: float) -> None:
        if not 0.0 < ratio <= 1.0:
            raise ValueError(f"ratio={ratio}: give the part of the entries that is sent, more than 0 and at most 1.")
        self.ratio = ratio

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """The tensor with all but its largest entries set to zero; for verbs, which need a dense tensor."""
        flat = tensor.reshape(-1)
        places = self._places(flat)
        return torch.zeros_like(flat).index_copy_(0, places, flat[places]).reshape(tensor.shape), None

    def reduce(
        self,
        grad: torch.Tensor,
        name: str,
        op: ReduceOp,
        process_set: ProcessSet,
        order: Mapping[str, Any],
        left_out: dict[str, torch.Tensor],
    ) -> Callable[[], torch.Tensor]:
        """Begin to reduce a gradient; call the result to wait for the dense sum or average.

        Args:
            grad: this rank's, dense.
            name: of the gradient.
            op: Average or Sum.
            process_set: who takes part.
            order: see :meth:`workbench.job.requests.OrderOfUse.about`.
            left_out: what the steps before have left out, by name; this one's takes its place.
        """
        flat = grad.detach().reshape(-1) + left_out.get(name, 0.0)
        places = self._places(flat)
        sparse = torch.sparse_coo_tensor(places[None], flat[places], flat.shape, check_invariants=True)
        flat[places] = 0.0
        left_out[name] = flat
        wait = gather_sparse(sparse, name, op, process_set, order)
        # In the gradient's order in memory, which torch's fused optimizers take for the parameter's.
        return lambda: torch.empty_like(grad, requires_grad=False).copy_(wait().to_dense().reshape(grad.shape))

    def _places(self, flat: torch.Tensor) -> torch.Tensor:
        k = max(1, int(self.ratio * flat.numel())) if flat.numel() else 0
        return flat.abs().topk(k, sorted=False).indices
