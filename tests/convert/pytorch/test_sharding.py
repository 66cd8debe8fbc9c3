"""Loaders whose call does not show what they are, and loops that train and evaluate."""

from __future__ import annotations

from pathlib import Path

import pytest
from converting import DATA, LOADER, LOOP, MODEL, both, decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert

SAYS = "    print(correct / 64)\n"
PHASES = """\
loaders = {"train": DataLoader(data, 16, shuffle=True), "val": DataLoader(data, 16)}
for epoch in range(2):
    for phase in ["train", "val"]:
        correct = 0
        for xb, yb in loaders[phase]:
            optimizer.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                out = model(xb)
                loss = F.cross_entropy(out, yb)
                if phase == "train":
                    loss.backward()
                    optimizer.step()
            correct += (out.argmax(1) == yb).sum().item()
        print(phase, correct / 64)
"""
HELPER = """\
def make(data):
    return DataLoader(data, batch_size=16, shuffle=True)
loader, test = make(data), make(data)
"""


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_loaders_that_are_not_seen(tmp_path: Path) -> None:
    """With options, in a dictionary of phases, of a function that makes several: the output is that of one rank."""
    options = LOADER.replace("batch_size=16,", "**{'batch_size': 16},")
    count = "    print(sum(len(yb) for xb, yb in test))\n"
    scripts = [DATA + options + MODEL + LOOP + SAYS, DATA + MODEL + PHASES, DATA + HELPER + MODEL + LOOP + SAYS + count]
    for one, two in both(scripts, tmp_path):
        assert [each.output for each in two] == [one.output, ""]


def test_a_loader_of_another_file_is_shared_where_the_loop_reads_it() -> None:
    """Its length, and what else reads it, stay those of all samples."""
    text = f"from data import get_loaders\n{DATA}loader, test = get_loaders()\n{MODEL}{LOOP}    print(len(loader))\n"
    after = convert("train.py", text).after
    assert "for xb, yb in share_of(loader):" in after
    assert "print(len(loader))" in after


def test_batches_of_no_loader_are_left_to_decide() -> None:
    """They may be the same on all ranks."""
    assert "no loop over a DataLoader" in decided(DATA + MODEL + LOOP.replace("in loader", "in batches()"))[0][1]
