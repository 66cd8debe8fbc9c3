"""Reads the code blocks of Markdown pages, and holds what they name to what there is."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from project import PROJECT, ROOT

from workbench.cli import main as cli

_FENCE = re.compile(r"^( *)```(\w+)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MAGIC = re.compile(r"^%.*\n", re.MULTILINE)
_STAND_FOR = {"hvd": "workbench.torch", "workbench": "workbench", "cluster": "workbench.cluster"}


@dataclass(frozen=True)
class Block:
    """A block of code.

    Args:
        page: the file's name without its ending.
        kind: the language.
        text: what stands in it.
    """

    page: str
    kind: str
    text: str

    @property
    def code(self) -> str:
        """Python without the notebook's magics."""
        return _MAGIC.sub("", self.text)


def blocks(path: Path, kind: str) -> list[Block]:
    """Those of one language, in their order."""
    found = _FENCE.findall(path.read_text(encoding="utf-8"))
    return [Block(path.stem, kind, text) for _, one, text in found if one == kind]


def commands(path: Path) -> list[str]:
    """The lines behind ``$``, without their comments."""
    lines = [line for block in blocks(path, "console") for line in block.text.splitlines()]
    return [line[2:].partition(" #")[0].strip() for line in lines if line.startswith("$ ")]


def unknown_extras(text: str) -> set[str]:
    """Those of `pip install ".[…]"` that pyproject.toml does not have."""
    named = {extra for found in re.findall(r'"\.\[([\w,]+)\]"', text) for extra in found.split(",")}
    return named - set(PROJECT["optional-dependencies"])


def check_command(command: str, elsewhere: set[str]) -> None:
    """The program is ours and understands these words, or is one of those that are known to be ``elsewhere``."""
    for words in (shlex.split(part) for part in command.split(" | ")):
        program = Path(words[0]).name
        if program == "workbench":
            cli.parsed(words[1:])
        elif program == "make":
            makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
            targets = [word for word in words[1:] if "=" not in word]
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), command
        elif program == "pip":
            assert not unknown_extras(command)
        else:
            assert program in elsewhere, command
        assert all((ROOT / word).exists() for word in words if word.startswith("deploy/")), command


def check_options(words: str) -> None:
    """A command within a sentence, which may stop halfway: there is this command, with these options."""
    name, *rest = words.split()
    parser = cli.parser(True).commands()[name]
    known = {option for action in parser._actions for option in action.option_strings}
    before = [word for word in rest[: rest.index("python")] if "python" in rest] if "python" in rest else rest
    assert {word for word in before if re.match("--?[a-zA-Z]", word)} <= known, words


def check_names(block: Block, more: dict[str, str]) -> None:
    """What it takes of the workbench exists, and can be called as it is called.

    Args:
        more: name → module, of names that the text around the block explains.
    """
    tree = ast.parse(block.code)
    modules = {**_STAND_FOR, **more, **dict(_imported(tree))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (path := _dotted(node)):
            _resolve(path, modules)
        if isinstance(node, ast.Call) and (path := _dotted(node.func)):
            _check_call(node, _resolve(path, modules))


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name → the module, or the module and the name in it, that an import of the workbench binds."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((each.asname or "workbench", each.name) for each in node.names if "workbench" in each.name)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("workbench"):
            yield from ((each.asname or each.name, f"{node.module}.{each.name}") for each in node.names)


def _dotted(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    path = _dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*path, node.attr] if isinstance(node, ast.Attribute) and path else []


def _resolve(path: list[str], modules: dict[str, str]) -> Any:
    """What stands behind a name; None for one that is not the workbench's, or whose framework is not installed."""
    if path[0] not in modules:
        return None
    try:
        return found(".".join([modules[path[0]], *path[1:]]))
    except ModuleNotFoundError as error:
        if not (error.name or "workbench").startswith("workbench"):
            return None
        raise


def found(dotted: str) -> Any:
    """What a dotted name leads to: a module, or something within one."""
    names = dotted.split(".")
    value: Any = importlib.import_module(names[0])
    for i, name in enumerate(names[1:], 2):
        if not hasattr(value, name) and inspect.ismodule(value):
            importlib.import_module(".".join(names[:i]))
        value = getattr(value, name)
    return value


def _check_call(call: ast.Call, function: Any) -> None:
    if function is None or any(isinstance(each, ast.Starred) for each in call.args):
        return
    words = {each.arg: None for each in call.keywords if each.arg}
    inspect.signature(function).bind(*call.args, **words)


__all__ = [
    "ROOT",
    "Block",
    "blocks",
    "check_command",
    "check_names",
    "check_options",
    "commands",
    "found",
    "unknown_extras",
]
