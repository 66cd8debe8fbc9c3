"""``torch.compile`` and DistributedOptimizer.

What is compiled to one graph is one node to autograd: its backward hands all gradients over at its end, and none can
travel before. :func:`split_at_buckets` cuts the graph where a bucket is full, as torch does by itself for its own
DistributedDataParallel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from workbench.training.memory import bucket_bytes

P = ParamSpec("P")
R = TypeVar("R")


def split_at_buckets(backend: str | Callable[..., Any] = "inductor") -> Callable[..., Any]:
    """A backend for ``torch.compile``: gradients are sent while the compiled backward still computes others.

    The model is compiled in parts, each with the parameters of a bucket (``WORKBENCH_BUCKET_BYTES``). Without it, or
    something like ``block.compile()`` for the blocks of a model, training is right, too, but communication begins only
    when backward is over.

    Args:
        backend: compiles the parts; a name or a function, as ``torch.compile`` takes them.

    Raises:
        RuntimeError: this torch has no splitter.

    Example::

        model = torch.compile(model, backend=hvd.split_at_buckets())
    """
    from torch._dynamo import lookup_backend  # takes seconds, and torch.compile does it, too

    try:
        from torch._dynamo.backends.distributed import DDPOptimizer
    except ImportError as error:
        raise RuntimeError(
            f"torch {torch.__version__} has no DDPOptimizer in torch._dynamo.backends.distributed, which cuts graphs. "
            "Compile the blocks of the model one by one, with block.compile()."
        ) from error
    inner = lookup_backend(backend) if isinstance(backend, str) else backend

    def compile_parts(graph: torch.fx.GraphModule, inputs: list[torch.Tensor], **options: Any) -> Any:
        limit = bucket_bytes()  # of the job that there is now, which may begin after torch.compile() was called
        if not limit:
            return inner(graph, inputs, **options)
        return DDPOptimizer(limit, inner, min(limit, 1 << 20)).compile_fn(graph, inputs, **options)

    return compile_parts


def not_traced(function: Callable[P, R]) -> Callable[P, R]:
    """The function runs as it is written, also where its caller is compiled: it hands memory to another thread.

    As ``torch.compiler.disable``, which would import the compiler, seconds long, for programs that never compile.
    """
    plain: list[Callable[P, R]] = []

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not plain:
            if "torch._dynamo" not in sys.modules:
                return function(*args, **kwargs)
            plain.append(torch.compiler.disable(function))
        return plain[0](*args, **kwargs)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    return run
