"""The plan of the package: rooms, floors, arrows, arrows that go up, circles. ``make house``; ``--arrows`` lists them.

``--check`` compares three totals of lines with ``.ci/lines.toml``; ``--write`` lowers the numbers.

A *room* is a folder or file of ``workbench/``. An *arrow* is an import from one room to another, also one inside a
function or for types alone. Floors are those of the contract in ``pyproject.toml``, which ``make check`` holds.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

import grimp

ROOT = Path(__file__).resolve().parent.parent
LINES = ROOT / ".ci" / "lines.toml"
Arrow = tuple[str, str]


def floors() -> dict[str, int]:
    """Room → floor, from 1."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    found = {
        room.strip().removesuffix(")").removeprefix("("): floor
        for floor, rooms in enumerate(reversed(layers), 1)
        for room in rooms.split("|")
    }
    return found | {"__init__": found["as_horovod"]}


def imports() -> set[Arrow]:
    """(module, module that it imports), of all modules but the package's face."""
    graph = grimp.build_graph("workbench", exclude_type_checking_imports=False, cache_dir=None)
    face = "workbench"
    return {
        (module, other)
        for module in graph.modules - {face}
        for other in graph.find_modules_directly_imported_by(module)
    }  # fmt: skip


def room(module: str) -> str:
    """Where a module is."""
    return module.split(".")[1] if "." in module else "__init__"


def circles(arrows: Iterable[Arrow]) -> list[list[str]]:
    """Modules, or folders, that import each other in a circle."""
    to = defaultdict[str, set[str]](set)
    for one, other in arrows:
        to[one].add(other)

    def reached(start: str) -> set[str]:
        found, rest = set[str](), [start]
        while rest:
            new = to[rest.pop()] - found
            found |= new
            rest += new
        return found

    reach = {each: reached(each) for each in list(to)}
    found = {
        frozenset(other for other in goes if one in reach.get(other, ())) for one, goes in reach.items() if one in goes
    }
    return sorted(sorted(each) for each in found)


def folders(arrows: Iterable[Arrow]) -> set[Arrow]:
    """Arrows between the parts of one folder, for every folder."""
    found = set[Arrow]()
    for one, other in arrows:
        ones, others = one.split("."), other.split(".")
        same = next((i for i, (a, b) in enumerate(zip(ones, others, strict=False)) if a != b), None)
        if same is not None:
            found.add((".".join(ones[: same + 1]), ".".join(others[: same + 1])))
    return found


def lines(folder: str) -> dict[str, int]:
    """Room → lines of its Python files."""
    found = defaultdict[str, int](int)
    for path in (ROOT / folder).rglob("*.py"):
        found[path.relative_to(ROOT / folder).parts[0].removesuffix(".py")] += path.read_text().count("\n")
    return found


def totals() -> dict[str, int]:
    """The three numbers that are limited: the package without the course, the course, and the tests."""
    package = lines("workbench")
    course = package.pop("course")
    return {"package": sum(package.values()), "course": course, "tests": sum(lines("tests").values())}


def grown() -> list[str]:
    """Which total is above what ``.ci/lines.toml`` says."""
    allowed = tomllib.loads(LINES.read_text())
    return [
        f"{name} has {count:,} lines, and .ci/lines.toml allows {allowed[name]:,}. Merge or delete something. "
        "If it has to grow, write the new number there, with the reason beside it."
        for name, count in totals().items()
        if count > allowed[name]
    ]


def write() -> None:
    """Lower the numbers to what there is. What has grown stays as it is: a person gives the reason."""
    count, text = totals(), LINES.read_text()

    def lowered(found: re.Match[str]) -> str:
        return f"{found[1]} = {min(int(found[2]), count[found[1]])}"

    LINES.write_text(re.sub(r"^(\w+) = (\d+)", lowered, text, flags=re.MULTILINE))


def main() -> None:
    """Print the plan."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--arrows", action="store_true", help="list the arrows between rooms")
    parser.add_argument("--check", action="store_true", help="has a total grown beyond .ci/lines.toml?")
    parser.add_argument("--write", action="store_true", help="lower the numbers of .ci/lines.toml")
    words = parser.parse_args()
    if words.write:
        return write()
    if words.check:
        if found := grown():
            raise SystemExit("\n".join(found))
        return None
    on, between, count = floors(), imports(), lines("workbench")
    arrows = {(room(one), room(other)) for one, other in between if room(one) != room(other)}
    up = {(one, other) for one, other in arrows if on.get(other, 99) >= on.get(one, 0)}
    by_floor = defaultdict[int, list[str]](list)
    for name, floor in sorted(on.items()):
        by_floor[floor].append(f"{name} {count[name]}")
    for floor in sorted(by_floor, reverse=True):
        print(f"{floor:3}  {', '.join(by_floor[floor])}")
    if words.arrows:
        for one, other in sorted(arrows):
            print(f"{one} -> {other}{'   up' if (one, other) in up else ''}")
    package, course, tests = totals().values()
    print(f"{len(on)} rooms on {len(by_floor)} floors, {len(arrows)} arrows, {len(up)} of them up")
    print(f"{len(circles(between))} circles of files, {len(circles(folders(between)))} circles of folders")
    print(f"{package:,} lines without course, {course:,} in course, {tests:,} in tests")
    return None


if __name__ == "__main__":
    main()
