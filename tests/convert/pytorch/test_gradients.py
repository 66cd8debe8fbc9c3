"""Gradients are averaged once, when they are complete, and before they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from converting import DATA, LOADER, MODEL, TRAINING, both, decided

pytest.importorskip("libcst")

from workbench.convert.conversion import convert

WAYS = {
    "a rest of three batches": """\
for epoch in range(3):
    optimizer.zero_grad()
    for i, (xb, yb) in enumerate(loader):
        (F.cross_entropy(model(xb), yb) / 3).backward()
        if (i + 1) % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
    "a rest that steps": """\
for epoch in range(3):
    for i, (xb, yb) in enumerate(loader):
        (F.cross_entropy(model(xb), yb) / 3).backward()
        if (i + 1) % 3 == 0 or i + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
""",
    "two backward": """\
for xb, yb in loader:
    optimizer.zero_grad()
    out = model(xb)
    F.cross_entropy(out, yb).backward(retain_graph=True)
    (out ** 2).mean().backward()
    for each in model.parameters():
        each.grad.clamp_(-0.1, 0.1)
    optimizer.step()
""",
    "two optimizers": """\
head = torch.optim.Adam(model[2].parameters(), lr=0.1)
optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
for xb, yb in loader:
    optimizer.zero_grad()
    head.zero_grad()
    F.cross_entropy(model(xb), yb).backward()
    optimizer.step()
    head.step()
""",
    "a flag for precision": """\
fast = False
scaler = torch.amp.GradScaler("cpu", enabled=fast)
for xb, yb in loader:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(xb), yb)
    if fast:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
""",
}


@pytest.mark.parallel
@pytest.mark.timeout(120)
def test_two_ranks_end_with_the_weights_of_one(tmp_path: Path) -> None:
    """64 samples in batches of 16 on one rank, and of 8 on two."""
    found = both([DATA + LOADER + MODEL + way for way in WAYS.values()], tmp_path)
    for name, (one, two) in zip(WAYS, found, strict=True):
        for rank in two:
            for mine, alone in zip(rank.weights, one.weights, strict=True):
                np.testing.assert_allclose(mine, alone, atol=1e-6, err_msg=name)


def test_a_step_in_another_function_is_left_to_decide() -> None:
    """Where the optimizer has no name at ``backward()``, and steps under a condition."""
    text = TRAINING.replace("        optimizer.step()", "        if epoch: update()")
    text += "def update():\n    optimizer.step()\n"
    assert "the optimizer's step() is in another function" in decided(text)[0][1]


def test_a_function_that_gets_the_optimizer_may_read_gradients() -> None:
    """They are averaged before; once, and not for each parameter of a loop."""
    text = TRAINING.replace("        optimizer.step()", "        shorten(optimizer)\n        optimizer.step()")
    lines = [line.strip() for line in convert("train.py", text).after.splitlines()]
    assert lines[lines.index("shorten(optimizer)") - 1] == "optimizer.synchronize()"
    loop = "        for p in model.parameters():\n            p.grad.clamp_(-1, 1)\n        optimizer.step()"
    lines = [
        line.strip()
        for line in convert("train.py", TRAINING.replace("        optimizer.step()", loop)).after.splitlines()
    ]
    assert lines[lines.index("for p in model.parameters():") - 1] == "optimizer.synchronize()"
