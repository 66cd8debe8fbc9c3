"""Optional packages: if one is missing, the error says what to install."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any


def has(module: str) -> bool:
    """Can it be imported? It is not, but for the package that it is in.

    Example:
        >>> has("json"), has("no_such_module"), has("no_such_package.module")
        (True, False, False)
    """
    try:
        return sys.modules.get(module) is not None or find_spec(module) is not None
    except ModuleNotFoundError:  # not even that package is there
        return False


def loaded(module: str) -> Any:
    """The module, if somebody has imported it; None while another thread is about to, for then it is not whole.

    Example:
        >>> loaded("sys").__name__, loaded("no_such_module")
        ('sys', None)
    """
    found = sys.modules.get(module)
    return None if getattr(getattr(found, "__spec__", None), "_initializing", False) else found


def cure(extra: str) -> str:
    """The command that installs an extra, from a clone: nobody has registered our name on PyPI yet, and anybody may.

    Example:
        >>> cure("torch")
        "pip install '.[torch]' in a clone of the workbench"
    """
    return f"pip install '.[{extra}]' in a clone of the workbench"


def need(who: str, *modules: str, install: str) -> None:
    """See to it that modules are there, before their first import fails far from its cause.

    Args:
        who: needs them.
        modules: their names.
        install: what to do, such as :func:`cure`.

    Raises:
        ModuleNotFoundError: one is not.

    Example:
        >>> need("workbench.torch", "no_such_module", install=cure("torch"))
        Traceback (most recent call last):
        ModuleNotFoundError: workbench.torch needs no_such_module, which is not installed in this Python: pip install \
'.[torch]' in a clone of the workbench
    """
    for module in modules:
        if not has(module):
            raise ModuleNotFoundError(
                f"{who} needs {module}, which is not installed in this Python: {install}", name=module
            )
