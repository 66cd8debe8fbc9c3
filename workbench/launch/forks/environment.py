"""Which variables imports read: where they differ, a process cannot be forked from another."""

from __future__ import annotations

from collections.abc import Mapping

PAD = "WORKBENCH_FORK_PAD"
"""Takes so much of a fork server's first environment as a fork's may need."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Of the server they are 1, else a library may start threads; a fork sets its own number."""

_READ = ("HOME", "TZ", "LANG", "LANGUAGE", "NUMEXPR_MAX_THREADS", "CUDA_VISIBLE_DEVICES")
_BEGINS = (
    "LD_",
    "DYLD_",
    "LC_",
    "GLIBC_",
    "MALLOC_",
    "PYTHON",
    "COVERAGE_",
    "JUPYTER_",
    "ZMQ_",
    "MPI4PY_",
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "GOTO_",
    "BLIS_",
    "NPY_",
    "NUMPY_",
    "TORCH",
    "PYTORCH_",
    "ATEN_",
    "CUDA_",
    "NVIDIA_",
    "CUBLAS_",
    "CUDNN_",
    "HIP_",
    "ROCR_",
    "HSA_",
    "ASAN_",
)


def read_by_imports(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of an environment that Python, numpy, torch and IPython may read while they are imported.

    Example:
        >>> read_by_imports({"OMP_WAIT_POLICY": "active", "OMP_NUM_THREADS": "4", "PATH": "/bin"})
        {'OMP_WAIT_POLICY': 'active'}
    """
    return {
        name: text for name, text in env.items() if (name in _READ or name.startswith(_BEGINS)) and name not in THREADS
    }
