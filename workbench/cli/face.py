"""What a person sees of the command line: the overview of all commands, and the answer to a mistyped one."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from workbench import config

GROUPS = {
    "train": ("run", "convert", "env", "slurm", "k8s"),
    "learn and teach": ("demo", "lab", "lessons", "site", "class", "grade", "badge"),
    "when something is wrong": ("doctor", "watch", "report", "explain", "check-build", "version", "completion"),
}


class Wide(argparse.RawDescriptionHelpFormatter):
    """A help in which most options have one line, and none is cut at a hyphen."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=40, width=min(shutil.get_terminal_size().columns, 120))

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


class Parser(argparse.ArgumentParser):
    """Of the command ``workbench``: its help shows the commands by what they are for."""

    def commands(self) -> dict[str, argparse.ArgumentParser]:
        return {name: each for action in self._of_commands() for name, each in action.choices.items()}

    def format_help(self) -> str:
        texts = {one.dest: one.help or "" for action in self._of_commands() for one in action._choices_actions}
        if not texts:
            return super().format_help()
        lines = ["usage: workbench COMMAND …", str(self.description)]
        for title, names in GROUPS.items():
            lines += ["", bold(title), *(f"  {name:<12} {texts[name]}" for name in names)]
        return "\n".join([*lines, "", str(self.epilog), ""])

    def error(self, message: str) -> NoReturn:
        """A mistyped command is answered with the nearest one."""
        typed = next((word for word in sys.argv[1:] if not word.startswith("-")), "")
        if "invalid choice" in message and (near := difflib.get_close_matches(typed, self.commands(), 1)):
            message = f"there is no command {typed!r}. Did you mean `workbench {near[0]}`?"
        super().error(message)

    def _of_commands(self) -> list[Any]:
        return [each for each in self._actions if isinstance(each, argparse._SubParsersAction)]


class HelpAll(argparse.Action):
    """Prints the help of a command with all its options.

    Args:
        whole: makes the parser that shows them.
    """

    def __init__(self, whole: Callable[[], Parser], **options: Any) -> None:
        super().__init__(nargs=0, default=argparse.SUPPRESS, **options)
        self._whole = whole

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(self._whole().commands()[parser.prog.split()[-1]].format_help(), end="")
        parser.exit()


def bold(text: str) -> str:
    """In bold type where a terminal shows it."""
    shows = sys.stdout.isatty() and not config.child_environment().get("NO_COLOR")
    return f"\x1b[1m{text}\x1b[0m" if shows else text
