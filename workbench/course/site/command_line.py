"""A page of all commands and options of ``workbench``, from their parsers: what ``--help`` says."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from workbench.cli.main import parser

_THIS = "\0"  # the command, where sections are compared


def commands() -> str:
    """A section for each command, in Markdown."""
    return "\n".join(_sections(parser()))


def _sections(top: argparse.ArgumentParser) -> Iterator[str]:
    """Commands that differ in their name alone share a section."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            said = {choice.dest: choice.help or "" for choice in action._choices_actions}
            names: dict[str, list[str]] = {}
            for name, command in action.choices.items():
                body = "\n".join([*_body(command, said.get(name, "")), *_sections(command)])
                names.setdefault(body.replace(f"{top.prog} {name}", _THIS), []).append(name)
            for body, alike in names.items():
                yield f"\n## {', '.join(f'`{top.prog} {name}`' for name in alike)}\n"
                yield body.replace(_THIS, f"{top.prog} {alike[0] if len(alike) == 1 else 'KIND'}")


def _body(command: argparse.ArgumentParser, said: str) -> Iterator[str]:
    about = (command.description or said).strip()
    if about:
        yield (f"```text\n{_bare(about)}\n```" if "\n  " in about else _sentence(about)) + "\n"
    yield f"```text\n{_bare(command.format_usage())}\n```\n"
    for group in command._action_groups:
        rows = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        rows = [each for each in rows if not isinstance(each, argparse._HelpAction | argparse._SubParsersAction)]
        if rows:
            yield f"| {(group.title or 'options').removeprefix('positional ')} | meaning |\n|---|---|"
            yield from (_row(command, each) for each in rows)
            yield ""
    if command.epilog:
        yield f"```text\n{_bare(command.epilog)}\n```\n"


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = command._get_formatter()
    written = formatter._format_action_invocation(action)
    said = formatter._expand_help(action) if action.help else ""
    return f"| `{_bare(written)}` | {_cell(said)} |"


def _sentence(text: str) -> str:
    text = _prose(text)
    return text if text.endswith((".", ":")) else f"{text[:1].upper()}{text[1:]}."


def _prose(text: str) -> str:
    """Text that Markdown shows as it stands."""
    return re.sub(r"([\\<>*_\[\]{}])(?![^`]*`[^`]*$)", r"\\\1", re.sub(r"\s+", " ", _bare(text)))


def _cell(text: str) -> str:
    return _prose(text).replace("|", r"\|")


def _bare(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).strip()
