"""A script's text, or a sentence that says why there is none; and what is said of a script that is not converted."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

_PYTHON_2 = re.compile(r"^\s*(print\s+[^(=\s]|except\s+\w+\s*,\s*\w+\s*:|raise\s+\w+\s*,|exec\s+['\"])", re.MULTILINE)


@dataclass(frozen=True, order=True)
class Reason:
    """Why a script is not converted.

    Args:
        line: of the script; 0 for the whole.
        text: the reason, and what to do.
    """

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}" if self.line else self.text


class RefusedError(ValueError):
    """This script is not converted.

    Args:
        name: the script.
        reasons: why; at least one.
    """

    def __init__(self, name: str, *reasons: Reason) -> None:
        self.reasons = sorted(set(reasons))
        super().__init__("\n  ".join([f"{name} is not converted:", *map(str, self.reasons)]))


class UnclearError(Exception):
    """Something that is needed to go on is not understood.

    Args:
        line: where.
        text: what, and what to do.
    """

    def __init__(self, line: int, text: str) -> None:
        self.reason = Reason(line, text)
        super().__init__(text)


@dataclass(frozen=True)
class Source:
    """A file.

    Args:
        text: its text, with the ends of lines that it has.
        encoding: in which it is written.
    """

    text: str
    encoding: str


def read(path: Path) -> Source:
    """The text of a script, in the encoding that it declares.

    Raises:
        RefusedError: it cannot be read, or is something else.
    """
    name = str(path)
    if path.suffix == ".ipynb":
        hint = f"`jupyter nbconvert --to script {path.name}` makes a script: convert that one"
        raise RefusedError(name, Reason(0, f"it is a notebook. {hint}."))
    try:
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except OSError as error:
        raise RefusedError(name, Reason(0, f"it cannot be read: {error.strerror}.")) from None
    except (SyntaxError, UnicodeDecodeError, LookupError):
        raise RefusedError(name, Reason(0, "it is not text in UTF-8, or in the encoding that it declares.")) from None
    if not text.strip():
        raise RefusedError(name, Reason(0, "it is empty."))
    if text.lstrip().startswith("{") and '"cells"' in text and '"nbformat"' in text:
        raise RefusedError(name, Reason(0, "it is a notebook: export it as a script, and convert that one."))
    return Source(text, encoding)


def parse(name: str, text: str) -> cst.Module:
    """The script's syntax tree, with all its blanks and comments.

    Raises:
        RefusedError: it is no Python 3.
    """
    try:
        ast.parse(text)
        return cst.parse_module(text)
    except SyntaxError as error:
        raise RefusedError(name, Reason(error.lineno or 0, _not_python(text, error))) from None
    except cst.ParserSyntaxError as error:
        raise RefusedError(name, Reason(error.raw_line, "LibCST cannot read this line.")) from None
    except (RecursionError, MemoryError, ValueError) as error:
        raise RefusedError(
            name, Reason(0, f"Python cannot read it: {str(error) or 'it is nested too deeply'}.")
        ) from None


def _not_python(text: str, error: SyntaxError) -> str:
    if _PYTHON_2.search(text):
        return "this is Python 2. `2to3 -w` rewrites most of it, see PyPI's fissix; then convert it."
    return f"this is not valid Python: {error.msg}."
