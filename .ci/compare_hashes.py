"""For .ci/setup, where pip takes uv's place: has it installed what requirements.hashes says?

``python compare_hashes.py <pip's report> <requirements.hashes>``: names what is another file, uninstalls it, and fails
then: else the next set-up would find it installed, and ask no more. It needs the standard library and pip only. What is
not in the list, our own checkout and builds of torch such as +cpu, is not looked at.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

Known = dict[tuple[str, str], set[str]]


def known(text: str) -> Known:
    """(name, version) → the hashes of its files."""
    found: Known = {}
    for entry in text.replace("\\\n", " ").splitlines():
        if pin := re.match(r"([\w.-]+)==([^\s;]+)", entry):
            found.setdefault((_plain(pin[1]), pin[2]), set()).update(re.findall(r"--hash=sha256:(\w+)", entry))
    return found


def others(report: str, right: Known) -> dict[str, str]:
    """What was installed from a file that the list does not know: by its name, what to say."""
    wrong = {}
    for each in json.loads(report)["install"]:
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        got = each["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256", "")
        if got not in right.get((_plain(name), version), {got}):
            wrong[name] = f"{name} {version}: {got or 'no hash'}, from {each['download_info']['url']}"
    return wrong


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    found = others(Path(sys.argv[1]).read_text(), known(Path(sys.argv[2]).read_text()))
    for line in found.values():
        print(f"setup: not the file that requirements.hashes names: {line}", file=sys.stderr)
    if found:
        subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *found], check=True)
    sys.exit(bool(found))
