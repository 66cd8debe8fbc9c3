"""Loaders whose call does not show what they are, and loops that train and evaluate."""

from __future__ import annotations

import pytest
from converting import DATA, LOOP, MODEL, decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert


def test_a_loader_of_another_file_is_shared_where_the_loop_reads_it() -> None:
    """Its length, and what else reads it, stay those of all samples."""
    text = f"from data import get_loaders\n{DATA}loader, test = get_loaders()\n{MODEL}{LOOP}    print(len(loader))\n"
    after = convert("train.py", text).after
    assert "for xb, yb in share_of(loader):" in after
    assert "print(len(loader))" in after


def test_batches_of_no_loader_are_left_to_decide() -> None:
    """They may be the same on all ranks."""
    assert "no loop over a DataLoader" in decided(DATA + MODEL + LOOP.replace("in loader", "in batches()"))[0][1]
