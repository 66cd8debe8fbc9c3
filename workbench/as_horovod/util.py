"""``horovod.common.util``: what scripts and tests written for Horovod ask for."""

from __future__ import annotations

import functools
import itertools
import re
import sysconfig
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from workbench import config
from workbench.job import built

env = config.changed_environment
T = TypeVar("T")

EXTENSIONS = ["tensorflow", "torch", "mxnet"]
_cache = functools.cache  # Horovod's own decorator; its suites take it from here


def get_ext_suffix() -> str:
    """How compiled modules of this Python end."""
    return str(sysconfig.get_config_var("EXT_SUFFIX") or ".so")


def get_extension_full_path(pkg_path: str, *args: str) -> str:
    """Where a compiled module would be, beside the file ``pkg_path``."""
    return str(Path(pkg_path).parent.joinpath(*args[:-1], args[-1] + get_ext_suffix()))


def check_extension(ext_name: str, ext_env_var: str, pkg_path: str, *args: str) -> None:
    """See to it that there is a part for a framework; nothing here is compiled, so no file is looked for.

    Raises:
        ImportError: there is none, or the framework is not installed.
    """
    framework = ext_name.rpartition(".")[2]
    if not extension_available(framework):
        raise ImportError(f"{ext_name}: {framework} is not installed, or the workbench has no part for it (yet).")


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Can ``horovod.<name>`` be imported?"""
    found = find_spec(ext_base_name) is not None and find_spec(f"workbench.{ext_base_name}") is not None
    return _reported(f"part for {ext_base_name}", found, verbose)


@functools.cache
def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Does a framework see a GPU?"""
    found = False
    if ext_base_name == "torch":
        found = built.has_gpu()
    elif ext_base_name == "tensorflow" and extension_available("tensorflow"):
        import tensorflow

        found = bool(tensorflow.config.list_physical_devices("GPU"))
    return _reported(f"GPU for {ext_base_name}", found, verbose)


def _reported(what: str, found: T, verbose: bool) -> T:
    if verbose:
        print(f"{what}: {found}")
    return found


def _asking(what: str, ask: Callable[[], T]) -> Callable[..., T]:
    def answer(verbose: bool = False) -> T:
        return _reported(what, ask(), verbose)

    answer.__name__, answer.__doc__ = ask.__name__, ask.__doc__
    return answer


mpi_built = _asking("MPI", built.mpi_built)
gloo_built = _asking("Gloo", built.gloo_built)
nccl_built = _asking("NCCL", built.nccl_built)
ddl_built = _asking("DDL", built.ddl_built)
ccl_built = _asking("CCL", built.ccl_built)


def get_average_backwards_compatibility_fun(reduce_ops: Any) -> Callable[[Any, bool | None], Any]:
    """A function of ``op`` and the older ``average`` that says which op is meant.

    Args:
        reduce_ops: has ``Average`` and ``Sum``.
    """

    def choose(op: Any, average: bool | None) -> Any:
        if op is not None and average is not None:
            raise ValueError("The op parameter supersedes average. Please provide only one of them.")
        if average is None:
            return reduce_ops.Average if op is None else op
        warnings.warn("`average` is deprecated: give op=Average or op=Sum.", DeprecationWarning, stacklevel=3)
        return reduce_ops.Average if average else reduce_ops.Sum

    return choose


def num_rank_is_power_2(num_rank: int) -> bool:
    """Is it 1, 2, 4, 8 …?

    Example:
        >>> [n for n in range(10) if num_rank_is_power_2(n)]
        [1, 2, 4, 8]
    """
    return num_rank > 0 and num_rank & (num_rank - 1) == 0


def split_list(l: Sequence[T], n: int) -> list[Sequence[T]]:  # noqa: E741 - Horovod's name
    """Cut into ``n`` pieces whose lengths differ by one at most; the longer ones come first.

    Example:
        >>> split_list([1, 2, 3, 4, 5], 3)
        [[1, 2], [3, 4], [5]]
    """
    each, more = divmod(len(l), n)
    starts = [i * each + min(i, more) for i in range(n + 1)]
    return [l[start:end] for start, end in itertools.pairwise(starts)]


def check_installed_version(name: str, version: str, exception: BaseException | None = None) -> None:
    """Horovod compares with the version that it was compiled for; nothing here is, so every version is right."""


def is_iterable(x: object) -> bool:
    """Can one loop over it?

    Example:
        >>> is_iterable([1]), is_iterable("ab"), is_iterable(1)
        (True, True, False)
    """
    try:
        iter(x)  # type: ignore[call-overload]  # that is the question
    except TypeError:
        return False
    return True


@functools.cache
def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Compare versions; a pre-release comes before its release.

    Raises:
        ValueError: ``target`` is not of the form major.minor.patch, or one is no text.

    Example:
        >>> is_version_greater_equal_than("2.13.0+cpu", "2.4.0"), is_version_greater_equal_than("2.4.0rc1", "2.4.0")
        (True, False)
    """
    if not (isinstance(ver, str) and isinstance(target, str)):
        raise ValueError(f"Versions are texts, not {ver!r} and {target!r}.")
    if not re.fullmatch(r"\d+\.\d+\.\d+\S*", target):
        raise ValueError(f"The target version {target!r} is not of the form major.minor.patch.")
    return _order(ver) >= _order(target)


def _order(version: str) -> tuple[list[int], bool]:
    public = version.partition("+")[0]
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"(?i)[a-z]", public)[0])]
    return [*numbers, 0, 0, 0][:3], not re.search(r"(?i)\d\.?(a|b|c|rc|dev)", public)
