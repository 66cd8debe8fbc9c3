"""What is said where no Spark can run: no session, no Java, another version."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import workbench
from workbench.errors import LaunchError
from workbench.spark import session

CALL = "import workbench.spark; workbench.spark.run(print, num_proc=2)"


def said(code: str, **env: str) -> str:
    """The last line of a program that fails."""
    path = str(Path(workbench.__file__).parents[1])
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "/nowhere", "PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 1
    return process.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(("version", "good"), [("4.0.0", True), ("4.3.0.dev1", True), ("3.5.6", False)])
def test_old_versions_are_refused(version: str, good: bool) -> None:
    """With the one that is needed."""
    if good:
        session.check_version(version)
        return
    with pytest.raises(LaunchError, match=r"Spark 3.5.6 is old; the workbench needs 4.0 or newer"):
        session.check_version(version)


def test_without_a_session_the_error_says_how_to_get_one() -> None:
    """In Horovod's words, which scripts look for."""
    pytest.importorskip("pyspark")
    text = said(CALL, JAVA_HOME=str(Path(sys.prefix)))
    assert "Could not find an active SparkContext, are you running in a PySpark session?" in text


def test_without_java_the_error_says_so() -> None:
    """For then there can be no session."""
    pytest.importorskip("pyspark")
    assert "needs Java 17 or newer, and no java is found here" in said(CALL, JAVA_HOME="/nowhere")


def test_without_pyspark_the_error_says_what_to_install() -> None:
    """The part itself can be imported."""
    text = said(f"import sys; sys.modules['pyspark'] = None; {CALL}")
    assert "pyspark is not installed" in text
    assert "pip install 'pyspark>=4,<5'" in text


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("org.apache.spark.SparkException: Python worker exited\n\tat java.lang", "Python worker exited"),
        ("Job 3 cancelled", "Job 3 cancelled"),
        (
            "org.a.PythonException: [X]: Traceback (most recent call last):\n  File x\n    y\nKeyError: 1\n at",
            "KeyError: 1",
        ),
        ("", "no reason is known"),
    ],
)
def test_of_sparks_errors_one_line_is_told(text: str, line: str) -> None:
    """Without Java's classes and stacks."""
    assert session.first_line(text) == line
