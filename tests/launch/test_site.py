"""The site file: where it is found, what it may say, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench import cluster
from workbench.course import build
from workbench.errors import LaunchError
from workbench.launch import site
from workbench.launch.start import mpi


def test_without_a_file_everything_has_its_default(tmp_path: Path) -> None:
    """No file in the folder nor above: two engines."""
    if site.find(tmp_path) is not None:
        pytest.skip("there is a site file above the folder for temporary files")
    assert site.read(tmp_path, {}) == site.Site()
    assert site.Site().engines == 2


def test_the_nearest_file_counts_and_the_variable_wins(tmp_path: Path) -> None:
    """One in the folder comes before one above it; WORKBENCH_SITE before both."""
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    for folder, engines in ((tmp_path, 3), (tmp_path / "a", 4)):
        (folder / "workbench.toml").write_text(f"engines = {engines}\n")
    (tmp_path / "other.toml").write_text("engines = 5\n")
    assert site.read(tmp_path, {}).engines == 3
    assert site.read(below, {}).engines == 4
    assert site.read(below, {}).path == str((tmp_path / "a" / "workbench.toml").resolve())
    assert site.read(below, {"WORKBENCH_SITE": str(tmp_path / "other.toml")}).engines == 5
    assert site.read(below, {"WORKBENCH_SITE": " "}).engines == 4


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    """A wrong WORKBENCH_SITE is an error, not the next best file."""
    (tmp_path / "workbench.toml").write_text("engines = 3\n")
    for name in ("none.toml", str(tmp_path)):
        with pytest.raises(LaunchError, match=r"WORKBENCH_SITE=.* is not a file"):
            site.read(tmp_path, {"WORKBENCH_SITE": name})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("engines = ", "is not TOML"),
        ("engines: 4", "is not TOML"),
        (
            'partion = "gpu"',
            "partion is not a known key. The keys are: engines, most_engines, hosts, interface, partition",
        ),
        ("[slurm]\npartition = 'gpu'", "slurm is not a known key"),
        ("path = 'x'", "path is not a known key"),
        ("engines = 0", "engines = 0, but it must be a whole number, 1 or more"),
        ("engines = -1", "1 or more"),
        ("most_engines = -1", "most_engines = -1, but it must be a whole number, 0 or more"),
        ("engines = 2.0", "engines = 2.0"),
        ("engines = true", "engines = True"),
        ("engines = '2'", "engines = '2'"),
        ("modules = 'gcc'", "must be a list of names"),
        ("hosts = 'a:2'", 'must be a list of names: ["node1:4", "node2:4"]'),
        ("interface = 1", "must be a text in quotes"),
        ("modules = ['gcc', 1]", "must be a list of names"),
        ("modules = ['']", "must be a list of names"),
        ("account = 17", "account = 17, but it must be a text"),
    ],
)
def test_a_wrong_file_is_told(text: str, words: str, tmp_path: Path) -> None:
    """The error names the file, the key, what it is and what it must be."""
    path = tmp_path / "workbench.toml"
    path.write_text(text)
    with pytest.raises(LaunchError) as caught:
        site.read(tmp_path, {})
    assert words in str(caught.value)
    assert str(path.resolve()) in str(caught.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """One that is no text."""
    (tmp_path / "workbench.toml").write_bytes(b"engines = 2 # \xff")
    with pytest.raises(LaunchError, match="cannot be read"):
        site.read(tmp_path, {})


def test_the_example_is_right_and_has_every_key() -> None:
    """instructors/workbench.toml passes, with all keys in it, and changes nothing where it is not copied to."""
    text = (build.ROOT / "instructors" / "workbench.toml").read_text(encoding="utf-8")
    found = site.parse(text)
    assert found.engines >= 1
    assert all(f"\n{key} = " in text or f"\n# {key} = " in text for key in site._KEYS)


class ReachedError(Exception):
    """``up`` has come so far."""


@pytest.mark.parametrize(("asked", "started"), [(None, 3), (5, 5)])
def test_up_takes_its_n_from_the_site(
    asked: int | None, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without ``n`` as many engines as the site says; a given ``n`` wins."""

    def command(n: int, mpiexec: str, alone: bool) -> None:
        raise ReachedError(n)

    (tmp_path / "workbench.toml").write_text("engines = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_SITE", raising=False)
    monkeypatch.setattr(cluster, "RUNNING", [])
    monkeypatch.setattr(mpi, "command", command)
    with pytest.raises(ReachedError) as caught:
        cluster.up() if asked is None else cluster.up(asked)
    assert caught.value.args == (started,)


@pytest.mark.parametrize(("most", "started"), [(0, 5), (2, 2), (5, 5), (9, 5)])
def test_a_site_limits_the_engines(
    most: int, started: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many a notebook asks for, no more are started than the site allows, and the reader is told."""

    def command(n: int, mpiexec: str, alone: bool) -> None:
        raise ReachedError(n)

    (tmp_path / "workbench.toml").write_text(f"most_engines = {most}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_SITE", raising=False)
    monkeypatch.setattr(cluster, "RUNNING", [])
    monkeypatch.setattr(mpi, "command", command)
    with pytest.raises(ReachedError) as caught:
        cluster.up(5)
    assert caught.value.args == (started,)
    assert ("2 engines instead of 5" in capsys.readouterr().out) == (most == 2)


def test_a_wrong_site_stops_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, instead of starting some other number of engines."""
    (tmp_path / "workbench.toml").write_text("engines = 'many'\n")
    monkeypatch.setenv("WORKBENCH_SITE", str(tmp_path / "workbench.toml"))
    with pytest.raises(LaunchError, match="engines = 'many'"):
        cluster.up()
