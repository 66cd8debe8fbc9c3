"""Lightning's Trainer and Fabric on our ranks: the training of one process, to rounding."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import needs
from thorough import quick

needs("lightning")
np = pytest.importorskip("numpy")

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.usefixtures("warm_torch"),
]


def trained(n: int, folder: Path) -> dict[str, Any]:
    """What ``trained.py`` prints, on n ranks, which also run the blocks of docs/; without any strategy on one."""
    script = [sys.executable, str(HERE / "trained.py"), "workbench" if n > 1 else "auto", str(folder)]
    launcher = [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(n)] if n > 1 else []
    env = os.environ | {"PYTHONPATH": str(HERE.parent / "helpers")}
    done = subprocess.run([*launcher, *script], capture_output=True, text=True, timeout=150, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if "{" in line)
    return json.loads(line[line.index("{") :])  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def both(warm_torch: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """One process, and two ranks."""
    return trained(1, tmp_path_factory.mktemp("one")), trained(2, tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("what", ["automatic", "resumed", "manual"])
def test_two_ranks_train_as_one_process(both: tuple[dict[str, Any], dict[str, Any]], what: str) -> None:
    """With accumulation, clipping, a schedule, a checkpoint, early stopping; and with two optimizers by hand."""
    one, two = (each[what] for each in both)
    assert two["same"]
    for mine, wanted in zip(two["weights"], one["weights"], strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-11)
    assert two["rate"] == one["rate"]
    assert two["metrics"] == pytest.approx(one["metrics"], rel=1e-6)
    assert two.get("epochs") == one.get("epochs")


def test_mixed_precision_is_that_of_ddp(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """With bfloat16 on two ranks, to the last bit: an average over two is exact."""
    assert both[1]["mixed"] == both[1]["mixed by DDP"]


def test_learning_rates_that_differ_are_an_error(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """ReduceLROnPlateau that decides by each rank's own metric: the next epoch does not begin."""
    assert "before an epoch (rank 0: 0.5; rank 1: 0.25). If ReduceLROnPlateau" in both[1]["drifted"]


def test_rank_0_alone_writes(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """As many checkpoints as one process, and one log."""
    assert both[1]["files"] == both[0]["files"] == 1
    assert both[1]["logs"] == 1


def test_what_the_trainer_decides_is_refused(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """With a sentence that says where it is given."""
    said = both[1]["refused"]
    assert "backward_passes_per_step cannot be given here" in said
    assert "accumulate_grad_batches" in said


def test_fabric_on_two_ranks_trains_as_one_process(both: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """With two models, accumulation, clipping, a schedule, a checkpoint; with an optimizer that it does not know."""
    one, two = (each["fabric"] for each in both)
    assert (one["world"], two["world"], two["is_global_zero"]) == (1, 2, True)
    assert two["rate"] == one["rate"]
    for what in ("trained", "resumed", "plain"):
        for mine, wanted in zip(two[what], one[what], strict=True):
            np.testing.assert_allclose(mine, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("package", quick(["lightning/pytorch", "pytorch_lightning"], "pytorch_lightning"))
def test_a_lightning_that_is_too_old_is_refused(package: str, tmp_path: Path) -> None:
    """With its version, the one that is needed, and what to do."""
    module = tmp_path / package / "__init__.py"
    for folder in (module.parent, *module.parent.parents[: package.count("/")]):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").touch()
    module.write_text('__version__ = "1.9.5"')
    code = f"import {package.replace('/', '.')}, workbench.torch.lightning"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=60)
    last = done.stderr.strip().splitlines()[-1]
    assert "serves Lightning 2.1 or later, and this is 1.9.5: pip install -U lightning" in last, done.stderr
