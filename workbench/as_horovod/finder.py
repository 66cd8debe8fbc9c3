"""The finder: which of our modules stand for which of Horovod's, and how names are handed on."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from workbench import config
from workbench.common.faces import public

_HERE = "workbench.as_horovod"
_UTIL = f"{_HERE}.runner_util"
_UTIL_OF_ALL = f"{_HERE}.util"
# Horovod's module → ours, asked for a name one after the other; the first is imported at once.
PARTS: dict[str, tuple[str, ...]] = {
    "horovod": (f"{_HERE}.version", f"{_HERE}.runner"),
    "horovod.common": (f"{_HERE}.version",),
    "horovod.common.basics": (f"{_HERE}.basics", "workbench.job.process_sets"),
    "horovod.common.elastic": ("workbench.elastic", f"{_HERE}.exceptions"),
    "horovod.common.exceptions": (f"{_HERE}.exceptions",),
    "horovod.common.process_sets": ("workbench.job.process_sets", f"{_HERE}.basics", f"{_HERE}.util"),
    "horovod.common.util": (f"{_HERE}.util", f"{_HERE}.exceptions"),
    **{
        f"horovod.{name}.compression": (f"workbench.{name}", "workbench.training.compression")
        for name in ("torch", "tensorflow", "keras", "mxnet")
    },
    "horovod.mxnet.mpi_ops": ("workbench.mxnet", "workbench.job.api"),
    "horovod.runner": (f"{_HERE}.runner",),
    "horovod.runner.common": (f"{_HERE}.version",),
    "horovod.runner.common.service": (f"{_HERE}.version",),
    "horovod.runner.common.service.compute_service": ("workbench.data.registry",),
    "horovod.runner.common.util": (f"{_HERE}.version",),
    **{f"horovod.runner.common.util.{name}": (_UTIL,) for name in ("env", "host_hash", "hosts", "secret", "timeout")},
    "horovod.runner.util": (f"{_HERE}.version",),
    "horovod.runner.util.threads": (_UTIL,),
    "horovod.tensorflow.functions": ("workbench.tf.functions", "workbench.tensorflow"),
    "horovod.tensorflow.mpi_ops": ("workbench.tensorflow", "workbench.job.api"),
    "horovod.tensorflow.util": (f"{_HERE}.tensorflow_util",),
    "horovod.torch": ("workbench.torch", "workbench.torch.sync_batch_norm"),
    "horovod.torch.mpi_ops": ("workbench.torch", "workbench.job.api"),
    "horovod.version": (f"{_HERE}.version",),
}
# Below these our names are Horovod's.
_SAME = ("torch", "tensorflow", "keras", "jax", "mxnet", "spark", "ray")
# A framework's modules have what they import from each other, from horovod.common and from its elastic part, too.
_ALSO: dict[str, tuple[str, ...]] = {name: (f"workbench.{name}", _UTIL_OF_ALL, "workbench.elastic") for name in _SAME}
_ALSO["tensorflow"] = (f"{_HERE}.tensorflow_util", *_ALSO["tensorflow"])


def targets(name: str) -> tuple[str, ...]:
    """Our modules that stand for Horovod's ``name``; none if there are none.

    Example:
        >>> targets("horovod.torch.functions")[:2], targets("horovod.data")
        (('workbench.torch.functions', 'workbench.torch'), ())
    """
    framework = name.split(".")[1] if "." in name else ""
    found = PARTS.get(name, ())
    if not found and framework in _SAME and _exists(ours := name.replace("horovod", "workbench", 1)):
        found = (ours,)
    return tuple(dict.fromkeys((*found, *_ALSO.get(framework, ())))) if found else ()


def _exists(name: str) -> bool:
    parent = name.rpartition(".")[0]
    if parent != "workbench" and not _exists(parent):
        return False
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError as error:
        if error.name in (parent, name):  # it is a module and no package
            return False
        raise  # the framework itself is not installed


def _spec_of(main: str) -> ModuleSpec | None:
    """Of our module that stands for ``….__main__``."""
    found = targets(main.removesuffix(".__main__"))
    return find_spec(found[0]) if found else None


class Facade(ModuleType):
    """A module of Horovod's name that hands every name on to ours."""

    def __init__(self, name: str) -> None:
        self._targets = targets(name)
        self._modules: dict[str, ModuleType] = {}  # those that have been needed: import_module() takes 1 µs each time
        super().__init__(name, f"`{name}` is the workbench's: {', '.join(self._targets)}.")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__all__", "__version__"):
            raise AttributeError(name)
        if name == "__all__":
            return self._starred()
        for module in map(self._module, self._targets):
            if hasattr(module, name):
                return getattr(module, name)
        if targets(f"{self.__name__}.{name}"):
            return import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"{self.__name__}.{name}: the workbench does not have it (yet).")

    def _module(self, target: str) -> ModuleType:
        return self._modules.get(target) or self._modules.setdefault(target, import_module(target))

    def _starred(self) -> list[str]:
        """What a star takes: the names of our modules, one after the other, up to one that lists its own."""
        names = list[str]()
        for module in map(self._module, self._targets):
            names += getattr(module, "__all__", public(vars(module)))
            if hasattr(module, "__all__"):
                break
        return names

    def __reduce__(self) -> tuple[Any, ...]:
        # By a function of ours: who calls it has imported the alias with it, and then Horovod's name means something.
        return load, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *(name for each in self._targets for name in dir(import_module(each)))})


def load(name: str) -> ModuleType:
    """A module of Horovod's name, where it was pickled with a function that speaks of it."""
    return import_module(name)


class Finder(MetaPathFinder, Loader):
    """Answers for ``horovod`` and all below it; and for ``sparkdl``, by the one that is installed, if there is one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for what the workbench has; nothing outside of these.

        Raises:
            ModuleNotFoundError: a part of Horovod that the workbench does not have.
        """
        if fullname == "sparkdl":
            return _real(fullname) or spec_from_file_location(fullname, Path(__file__).with_name("sparkdl.py"))
        if fullname.split(".")[0] != "horovod":
            return None
        if fullname.endswith(".__main__"):  # `python -m` asks for it, since all of ours are packages
            spec = _spec_of(fullname)
            return ModuleSpec(fullname, self, origin=spec.origin) if spec is not None else None
        if not targets(fullname):
            raise ModuleNotFoundError(f"{fullname}: the workbench has no such part (yet).", name=fullname)
        return ModuleSpec(fullname, self, is_package=True)

    def get_code(self, fullname: str) -> CodeType | None:
        """What ``python -m`` runs: our module's code, as ``__main__``."""
        spec = _spec_of(fullname)
        loader: Any = spec.loader if spec is not None else None
        return loader.get_code(spec.name) if spec is not None else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Facade(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Import what stands behind it, so that a framework that is missing shows here; programs print its file."""
        module.__file__ = getattr(import_module(targets(module.__name__)[0]), "__file__", None)


def install() -> None:
    """Let ``import horovod`` find the workbench from now on; called again, do nothing.

    Raises:
        ImportError: another ``horovod`` is imported already; the two must not mix.
    """
    if any(isinstance(each, Finder) for each in sys.meta_path):
        return
    if other := sys.modules.get("horovod"):
        raise ImportError(f"{_where(other.__spec__)} is imported already: import workbench.as_horovod before it.")
    if (real := _real("horovod")) is not None and config.launch().rank == 0:
        sys.stderr.write(f"workbench: `horovod` means the workbench here, not the one in {_where(real)}.\n")
    sys.meta_path.insert(0, Finder())


def _real(name: str) -> ModuleSpec | None:
    """The package of this name that is installed."""
    mine = Path(__file__).parent / "on_path"
    return PathFinder.find_spec(name, [path for path in sys.path if Path(path or ".").resolve() != mine])


def _where(spec: ModuleSpec | None) -> str:
    return (spec.origin if spec is not None else None) or "another horovod"
