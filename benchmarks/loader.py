"""Images per second against loader workers: ``python benchmarks/loader.py --out results/loader.json``.

Ranks load pictures in two ways: JPEGs that are streamed from tar shards, decoded, resized and cropped; and the same
pictures decoded and resized once, mapped by all ranks, and cropped. With and without a training step on each batch.
``--draw results/loader.json`` draws ``docs/pictures/loader.svg`` from the results.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import children
import machine
import numpy as np
from figures import quartiles, rotated
from report import table

HERE = Path(__file__).resolve().parent
WORKERS, RANKS = (0, 1, 2, 4), (1, 2)
SHARDS, EACH, PHOTO, EDGE, CROP, BATCH = 8, 16, 384, 256, 224, 16
WAYS = {"jpeg": "JPEGs in tar shards", "mapped": "decoded once, mapped"}
EPOCHS = {"jpeg": 1, "mapped": 4}
TASKS = {"load": "Loading alone", "train": "Loading and training"}


def main() -> None:
    """Start the ranks, one number of them after the other, and show what they reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path)
    args = parser.parse_args()
    if args.draw:
        draw(json.loads(args.draw.read_text()), HERE.parent / "docs" / "pictures" / "loader.svg")
        return
    if args.folder:
        rank(args.folder, args.rounds)
        return
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        words = ["--rounds", str(args.rounds), "--folder", folder]
        cases = [each for n in RANKS for each in json.loads(children.run(n, HERE / "loader.py", words, 600.0))]
    names = [
        f"{case['ranks']} rank{'s' * (case['ranks'] > 1)}, {TASKS[case['task']].lower()}, {WAYS[case['way']]}"
        for case in cases
    ]
    rows = [
        [name, *(f"{quartiles(case['images_per_s'][str(each)]).median:.0f}" for each in WORKERS)]
        for name, case in zip(names, cases, strict=True)
    ]
    print("\n".join(table(["images/s of all ranks; workers of each:", *map(str, WORKERS)], rows)))
    if args.out:
        found = {"section": "loader", "workers": WORKERS, "cases": cases, "machine": machine.about()}
        args.out.write_text(json.dumps(found, indent=1) + "\n")


def write(folder: Path) -> None:
    """Tar shards of smooth random pictures, which are about as large as photographs of their size."""
    from PIL import Image

    random = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for i in range(EACH):
                small = random.integers(0, 256, (PHOTO // 8, PHOTO // 8, 3), dtype=np.uint8)
                file = io.BytesIO()
                Image.fromarray(small).resize((PHOTO, PHOTO), Image.Resampling.BICUBIC).save(file, "jpeg", quality=90)
                for name, content in ((f"{i}.jpg", file.getvalue()), (f"{i}.cls", str(i % 10).encode())):
                    member = tarfile.TarInfo(f"{shard}-{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def smaller(content: bytes) -> Any:
    """A JPEG, decoded and resized."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(content)).resize((EDGE, EDGE), Image.Resampling.BILINEAR))


def cropped(image: Any, label: int) -> tuple[Any, int]:
    """A random part of it, in bytes: a quarter of what floats take between processes."""
    import torch

    y, x = torch.randint(EDGE - CROP, (2,)).tolist()
    return torch.from_numpy(np.ascontiguousarray(image[y : y + CROP, x : x + CROP])), label


def of_sample(sample: dict[str, Any]) -> tuple[Any, int]:
    """The same of a shard's sample."""
    return cropped(sample["jpg"], sample["cls"])


def decoded(folder: Path) -> dict[str, Any]:
    """All pictures as arrays."""
    from workbench.data import TarShards

    samples = list(TarShards(folder, 0, 1, shuffle=0, decode={"jpg": smaller}))
    return {"x": np.stack([each["jpg"] for each in samples]), "y": np.array([each["cls"] for each in samples])}


class Mapped:
    """The decoded pictures of one rank's epoch.

    Args:
        folder: of the shards, and of the arrays.
    """

    def __init__(self, folder: Path) -> None:
        from workbench.data import mapped

        self._arrays = mapped(folder / "decoded", partial(decoded, folder))

    def __len__(self) -> int:
        return len(self._arrays["y"])

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return cropped(self._arrays["x"][i], int(self._arrays["y"][i]))


def rank(folder: Path, rounds: int) -> None:
    """Measure all cases in turns; rank 0 prints them."""
    import torch
    from torch.utils.data import DataLoader

    import workbench.torch as hvd
    from workbench.data import ShardedSampler, TarShards

    torch.set_num_threads(1)
    hvd.init()

    def loader(way: str, workers: int) -> DataLoader[Any]:
        options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
        if way == "jpeg":
            stream = TarShards(folder, hvd.rank(), hvd.size(), decode={"jpg": smaller}, transform=of_sample).torch()
            return DataLoader(stream, BATCH, **options)
        data = Mapped(folder)
        return DataLoader(data, BATCH, sampler=ShardedSampler(data, hvd.rank(), hvd.size()), **options)  # type: ignore[arg-type]

    step = training_step()
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for way in WAYS:
        for turn in range(rounds):
            for workers in map(int, rotated(list(map(str, WORKERS)), turn)):
                batches = loader(way, workers)
                for _ in batches:
                    pass  # workers begin, files come into memory
                for task in TASKS:
                    hvd.barrier()
                    begun = time.perf_counter()
                    for _ in range(EPOCHS[way]):
                        for x, y in batches:
                            if task == "train":
                                step(x, y)
                    hvd.barrier()
                    rate = SHARDS * EACH * EPOCHS[way] / (time.perf_counter() - begun)
                    found.setdefault((way, task), {}).setdefault(str(workers), []).append(round(rate, 1))
                del batches  # its workers end
    if hvd.rank() == 0:
        cases = [{"ranks": hvd.size(), "way": way, "task": task, "images_per_s": f} for (way, task), f in found.items()]
        print(json.dumps(cases), flush=True)
    hvd.shutdown()


def training_step() -> Any:
    """A small convolutional network's."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    import workbench.torch as hvd

    torch.manual_seed(0)
    pool = nn.AdaptiveAvgPool2d(1)
    layers = [nn.Conv2d(3, 32, 7, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2), nn.ReLU(), pool, nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())

    def step(x: Any, y: Any) -> None:
        optimizer.zero_grad()
        x = (x.permute(0, 3, 1, 2).float() - 127.5) / 64
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def draw(found: dict[str, Any], path: Path) -> None:
    """Images per second over workers, with the range between the quartiles."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "loader"
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = dict(zip(TASKS, figure.subplots(1, len(TASKS)), strict=True))
    for case in found["cases"]:
        axes, workers = panels[case["task"]], found["workers"]
        spread = [quartiles(case["images_per_s"][str(each)]) for each in workers]
        label = f"{WAYS[case['way']]}, {case['ranks']} rank{'s' * (case['ranks'] > 1)}"
        style = {"color": f"C{list(WAYS).index(case['way'])}", "linestyle": "-" if case["ranks"] > 1 else "--"}
        axes.plot(workers, [each.median for each in spread], marker="o", markersize=4, label=label, **style)
        low, high = [each.low for each in spread], [each.high for each in spread]
        axes.fill_between(workers, low, high, color=style["color"], alpha=0.15, linewidth=0)
    for task, axes in panels.items():
        axes.set(
            title=TASKS[task],
            xlabel="loader workers of each rank",
            xticks=found["workers"],
            ylabel="images/s of all ranks",
        )
        axes.grid(alpha=0.3)
    panels["load"].set_yscale("log")
    panels["train"].set_ylim(0)
    panels["train"].legend(fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
