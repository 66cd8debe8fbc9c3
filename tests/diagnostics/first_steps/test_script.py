"""What a script's text shows: the rate, files of all ranks, data that nobody shards. Right scripts are quiet."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from workbench.diagnostics.first_steps.script import Script, read

ROOT = Path(__file__).resolve().parents[3]
RIGHT = [*sorted((ROOT / "examples").glob("*.py")), ROOT / "notebooks/steps/09_done.py"]
RIGHT += sorted((ROOT / "notebooks/steps").glob("*/*.py"))

BEGIN = "import horovod.torch as hvd\nhvd.init()\n"
WRAP = "optimizer = hvd.DistributedOptimizer(optim.SGD(model.parameters(), lr={}))\n"


def found(text: str, begin: str = BEGIN) -> list[tuple[int, str]]:
    """Lines, counted from 1 after the beginning, and what is said of them."""
    script = Script("train.py", begin + textwrap.dedent(text))
    return [(each.at[1] - begin.count("\n"), each.text) for each in script.mistakes()]


@pytest.mark.parametrize("path", RIGHT, ids=lambda path: str(path.relative_to(ROOT)))
def test_right_scripts_are_quiet(path: Path) -> None:
    """The examples, and the scripts of the lessons that are complete."""
    script = read(str(path))
    assert script is not None
    assert list(script.mistakes()) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("lr = args.lr * hvd.size()\n" + WRAP.format("lr * hvd.size()"), 2),
        ("n = hvd.size()\nargs.lr *= n\nargs.lr = args.lr * n\n" + WRAP.format("args.lr"), 3),
        ("lr = 0.1\nlr *= hvd.size()\nlr *= hvd.size()\n" + WRAP.format("lr"), 3),
        (WRAP.format("0.1 * hvd.size()") + "for g in optimizer.param_groups:\n    g['lr'] *= hvd.size()\n", 3),
        (WRAP.format("0.1 * hvd.size()") + "for g in groups:\n    g['lr'] = g['lr'] * hvd.size()\n", 3),
    ],
)
def test_a_rate_that_is_scaled_twice(text: str, line: int) -> None:
    """In the second of the two lines."""
    ((at, words),) = found(text)
    assert at == line
    assert "multiplied by the number of ranks here, and in line" in words


@pytest.mark.parametrize(
    "text",
    [
        WRAP.format("args.lr * hvd.size()"),
        "scaler = hvd.size() if not args.adasum else 1\n" + WRAP.format("args.lr * scaler"),
        "scaler = args.accumulate * hvd.size()\nlr = args.base_lr * scaler\n" + WRAP.format("lr"),
        "if args.adasum:\n    lr = args.lr\nelse:\n    lr = args.lr * hvd.size()\n" + WRAP.format("lr"),
        "if a:\n    args.lr *= hvd.size()\nelse:\n    args.lr *= 2 * hvd.size()\n" + WRAP.format("args.lr"),
        "batch_size = 64 // hvd.size()\n" + WRAP.format("0.1"),
        "lr = 0.1 * hvd.size() ** 0.5\n" + WRAP.format("lr"),
        WRAP.format("0.1 * hvd.size()") + "for g in optimizer.param_groups:\n    g['lr'] = 0.1 * hvd.size() * decay\n",
        WRAP.format("0.1 * hvd.size()") + "for g in optimizer.param_groups:\n    g['lr'] *= 0.5\n",
    ],
)
def test_a_rate_that_is_scaled_once(text: str) -> None:
    """By a product, a name for it, one of two branches; or the batch is divided."""
    assert found(text) == []


def test_a_rate_that_is_not_scaled() -> None:
    """It is said in the line of the optimizer."""
    ((line, words),) = found(WRAP.format("0.1"))
    assert line == 1
    assert words.startswith("The learning rate does not depend on the number of ranks")


@pytest.mark.parametrize(
    "text",
    [
        "if hvd.rank() == 0:\n    torch.save(model, 'm.pt')\n",
        "me = hvd.rank()\nif me == 0 and epoch > 3:\n    torch.save(model, 'm.pt')\n",
        "verbose = hvd.rank() == 0\nif verbose: torch.save(model, 'm.pt')\n",
        "torch.save(model, f'm{hvd.rank()}.pt')\n",
        "def save():\n    if hvd.rank() != 0:\n        return\n    torch.save(model, 'm.pt')\nsave()\n",
        "def save():\n    torch.save(model, 'm.pt')\nif hvd.rank() == 0:\n    save()\n",
        "callbacks = []\nif hvd.rank() == 0: callbacks.append(ModelCheckpoint('m.keras'))\n",
        "hvd.rank() == 0 and torch.save(model, 'm.pt')\n",
    ],
)
def test_a_file_of_one_rank_is_right(text: str) -> None:
    """Behind a test of the rank, in whatever form, or with the rank in its name."""
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("torch.save(model, 'm.pt')\n", 1),
        ("def save():\n    torch.save(model, 'm.pt')\nif epoch == 3:\n    save()\n", 2),
        ("if hvd.rank() == 0:\n    print(1)\nmodel.save('m.keras')\n", 3),
        ("callbacks = [ModelCheckpoint('m.keras')]\n", 1),
    ],
)
def test_a_file_of_all_ranks(text: str, line: int) -> None:
    """A note in the line that writes it; none, if that line was seen to write."""
    assert [each[0] for each in found(text)] == [line]
    script = Script("train.py", BEGIN + text)
    assert list(script.mistakes(writes=frozenset({line + 2}))) == []


def test_data_that_nobody_shards() -> None:
    """And a model that is compiled to one graph, and results that stay on their ranks."""
    text = "local_batch = 64 // hvd.size()\nloader = DataLoader(dataset, batch_size=local_batch)\n" + WRAP.format("0.1")
    ((line, words),) = [each for each in found(text) if "part of the data" in each[1]]
    assert line == 2
    assert (
        found(text.replace("=local_batch)", "=local_batch, sampler=DistributedSampler(d, hvd.size(), hvd.rank()))"))
        == []
    )
    ((line, words),) = found("local_batch = 64 // hvd.size()\nmodel = torch.compile(model)\n" + WRAP.format("0.1"))
    assert (line, words[:44]) == (2, "The model is compiled to one graph: gradient")
    samplers = "one = DistributedSampler(a)\ntwo = DistributedSampler(b)\nmodel.eval()\n"
    assert [line for line, _ in found(samplers)] == [3]
    assert found(samplers + "hvd.allreduce(accuracy)\n") == []


SHARED = "test = DataLoader(d, sampler=DistributedSampler(d, hvd.size(), hvd.rank()))\n"
COUNT = "right = sum((model(a) == b).sum() for a, b in test)\n"
LOOP = "right = 0\nfor a, b in test:\n    right += (model(a) == b).sum()\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"{SHARED}{COUNT}print(right)\n", 2),
        (f"{SHARED}{LOOP}print(right)\nloss = hvd.allreduce(loss)\n", 3),
        (f"{SHARED}{LOOP}print(hvd.allreduce(right / len(test.sampler)))\n", 0),
        (f"{SHARED}def count(test):\n    {COUNT}    return right\nprint(hvd.allreduce(count(test)))\n", 0),
        (f"{SHARED}def count(part):\n    {COUNT.replace('test', 'part')}    return right\nprint(count(test))\n", 3),
        (f"class Mean:\n    def add(self, x):\n        self.x += hvd.allreduce(x)\nm = Mean()\n{SHARED}"
         "for a, b in test:\n    right = model(a) == b\n    m.add(right)\n", 0),
        (f"{SHARED}for a, b in test:\n    loss = model(a)\n    loss.backward()\n", 0),
    ],
)  # fmt: skip
def test_results_of_a_part_that_nobody_averages(text: str, line: int) -> None:
    """In the line that runs over a share of the test data, though something else is averaged; 0: all is well."""
    assert [at for at, words in found(text) if "its own part of the test data" in words] == [line][: bool(line)]


def test_statistics_of_one_rank_that_are_saved() -> None:
    """A note in the line of the save, unless they are averaged, or those of all ranks, before."""
    train, save = (
        "model = BatchNorm1d(2)\nloss.backward()\n",
        "if hvd.rank() == 0:\n    torch.save(model.state_dict(), 'm')\n",
    )
    assert [at for at, words in found(train + save) if "Batch norm's statistics" in words] == [4]
    for cure in (
        "hvd.broadcast_parameters(model.state_dict(), root_rank=0)\n",
        "for b in model.buffers():\n    hvd.allreduce_(b)\n",
    ):
        assert not found(train + cure + save)
    assert not found("hvd.SyncBatchNorm\n" + train + save)
    assert not found(train.replace("BatchNorm1d", "Linear") + save)


def test_what_is_no_script_of_ours_is_not_judged(tmp_path: Path) -> None:
    """Nothing is said of a script without init(), nor of what is no Python."""
    assert found("torch.save(model, 'm.pt')\n", begin="") == []
    (tmp_path / "old.py").write_text("print 'Python 2'\n")
    assert read(str(tmp_path / "old.py")) is read(str(tmp_path / "none.py")) is None
    (tmp_path / "latin.py").write_text("# coding: latin-1\nwords = 'à'\n", encoding="latin-1")
    assert read(str(tmp_path / "latin.py")) is not None
