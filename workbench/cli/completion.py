"""Scripts by which a shell completes the command's words: made of the parsers, so they know what these know.

shtab (1.13) makes them, too, but in bash no file is completed then, unless each argument says that it is one.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping


def script(shell: str, commands: Mapping[str, argparse.ArgumentParser]) -> str:
    """The script for ``bash``, ``zsh`` or ``fish``.

    Example:
        >>> print(script("bash", {"doctor": argparse.ArgumentParser()}).splitlines()[3].strip())
        doctor) words="--help -h" ;;
    """
    options = {name: _options(each) for name, each in commands.items()}
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](options)


def _options(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Option → what it does, in the order of the alphabet."""
    found: dict[str, str] = {}
    for action in parser._actions:
        shown = action.help if action.help not in (None, argparse.SUPPRESS) else ""
        found |= dict.fromkeys(action.option_strings, " ".join(str(shown).replace("%%", "%").split()))
    return dict(sorted(found.items()))


def _cases(options: Mapping[str, Mapping[str, str]]) -> str:
    return "\n".join(f'    {name}) words="{" ".join(found)}" ;;' for name, found in options.items())


def _bash(options: Mapping[str, Mapping[str, str]]) -> str:
    return f"""\
_workbench() {{
  local words="{" ".join(options)} --help --version" here="${{COMP_WORDS[COMP_CWORD]}}"
  [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}}" in
{_cases(options)}
    *) words="" ;;
  esac
  case "$COMP_CWORD:$here" in 1:*|*:-*) COMPREPLY=($(compgen -W "$words" -- "$here")) ;; *) COMPREPLY=() ;; esac
}}
complete -o default -F _workbench workbench"""


def _zsh(options: Mapping[str, Mapping[str, str]]) -> str:
    return f"""\
_workbench() {{
  local words="{" ".join(options)} --help --version"
  (( CURRENT > 2 )) && case "$words_typed[2]" in
{_cases(options)}
    *) words="" ;;
  esac
  if (( CURRENT == 2 )) || [[ "$words_typed[CURRENT]" == -* ]]; then compadd -- ${{=words}}; else _files; fi
}}
_workbench_words() {{ local -a words_typed=("${{words[@]}}"); _workbench }}
compdef _workbench_words workbench"""


def _fish(options: Mapping[str, Mapping[str, str]]) -> str:
    lines = [f"complete -c workbench -n __fish_use_subcommand -f -a {name}" for name in options]
    for name, found in options.items():
        for option, text in found.items():
            word = (
                f"-l {option[2:]}"
                if option.startswith("--")
                else f"-o {option[1:]}"
                if len(option) > 2
                else f"-s {option[1:]}"
            )
            says = text.replace("\\", "\\\\").replace("'", "\\'")
            lines.append(f"complete -c workbench -n '__fish_seen_subcommand_from {name}' {word} -d '{says}'")
    return "\n".join(lines)
