"""Tests on two hosts that are made for them; skipped, with the reason, where they cannot be made."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from network import TwoHosts


@pytest.fixture
def hosts() -> Iterator[TwoHosts]:
    """Two hosts; the test is skipped where they cannot be made."""
    if sys.platform != "linux" or os.geteuid() or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts need Linux, root, and the packages iproute2 and util-linux")
    made = TwoHosts()
    try:
        try:
            made.up()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"two hosts cannot be made here: {error.stderr.decode().strip()}")
        yield made
    finally:
        made.down()
