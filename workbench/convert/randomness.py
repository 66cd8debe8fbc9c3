"""Random numbers that no seed makes equal: then the ranks would make, or split, different data."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import libcst as cst

from workbench.convert.script import Script, argument, last
from workbench.convert.source import Reason

_STATES = {
    "torch": "torch.set_rng_state(hvd.broadcast_object(torch.get_rng_state(), root_rank=0))",
    "numpy": "{numpy}.random.set_state(hvd.broadcast_object({numpy}.random.get_state(), root_rank=0))",
    "random": "random.setstate(hvd.broadcast_object(random.getstate(), root_rank=0))",
}
_SEEDS = {"torch": "torch.manual_seed", "numpy": "numpy.random.seed", "random": "random.seed"}
_GENERATORS = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
_SEED_ALL = ("seed_everything", "set_random_seed", "set_seed", "seed_all", "fix_seed")
_TORCH = ("rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "bernoulli", "multinomial")
_BY_NUMPY = ("sklearn", "pandas", "scipy", "imblearn", "skimage", "albumentations", "imgaug", "statsmodels", "networkx")
_QUIET = (  # packages that draw nothing that is not seen, or what each rank may draw by itself
    *("torch", "torchvision", "numpy", "matplotlib", "tqdm", "PIL", "tensorboard", "tensorboardX", "wandb", "yaml"),
    *(
        "tensorflow",
        "keras",
        "cv2",
        "accelerate",
        "horovod",
        "visdom",
        "apex",
        "psutil",
        "h5py",
        "seaborn",
        "torchinfo",
    ),
)


def unseeded(script: Script) -> dict[str, list[cst.Call]]:
    """Library → calls that draw from its global generator, or none that is seen, if nothing seeds that for certain."""
    found: dict[str, list[cst.Call]] = {}
    for library, call in _draws(script):
        found.setdefault(library, []).append(call)
    imported = {name.split(".")[0] for name in _imports(script)} - sys.stdlib_module_names
    if imported - {*_QUIET, *_BY_NUMPY}:  # such a file or package may draw by any of them
        found = {library: found.get(library, []) for library in _STATES if library != "torch" or "torch" in imported}
    return {library: calls for library, calls in found.items() if not _is_seeded(script, library)}


def _imports(script: Script) -> Iterator[str]:
    for whole in script.all(cst.Import):
        yield from (script.text(each.name) for each in whole.names)
    for part in script.all(cst.ImportFrom):
        yield script.text(part.module) if part.module is not None and not part.relative else "."


def _is_seeded(script: Script, library: str) -> bool:
    """By a call that always runs, with a number that is the same on all ranks."""
    own = {each.name.value for each in script.all(cst.FunctionDef)}
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        if name != _SEEDS[library] and (name.rpartition(".")[2] not in _SEED_ALL or name in own):
            continue
        tests = [each for each in script.above(call) if isinstance(each, (cst.If, cst.IfExp))]
        if all("__name__" in script.text(each.test) for each in tests) and call.args:
            value = script.text(call.args[0].value)
            texts = [
                value,
                *(
                    script.text(each.value)
                    for each in script.all(cst.Assign)
                    if value in (script.text(target.target) for target in each.targets)
                ),
            ]
            if not any(word in text for text in texts for word in ("random", "time", "None")):
                return True
    return False


def _draws(script: Script) -> Iterator[tuple[str, cst.Call]]:
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        given = [arg for each in ("generator", "random_state", "seed", "rng") if (arg := argument(call, None, each))]
        has_own = any(script.text(arg.value) != "None" for arg in given)
        if has_own or name in _GENERATORS:
            continue
        short = last(call.func)
        by_numpy = name.startswith(("numpy.random.", *(f"{each}." for each in _BY_NUMPY if each != "pandas")))
        if by_numpy or (short == "sample" and script.imports("pandas")):
            yield "numpy", call
        elif name.startswith("random."):
            yield "random", call
        elif name.startswith("torch.") and short in (*_TORCH, "random_split"):
            yield "torch", call


def is_draw(script: Script, call: cst.Call) -> bool:
    """Does it draw from a global generator?"""
    return any(each is call for _, each in _draws(script))


def refused(script: Script) -> Iterator[Reason]:
    """What would be another on each rank, and what would be the same where each should have its own."""
    for text in script.all(cst.SimpleString):
        if text.evaluated_value == "CUDA_VISIBLE_DEVICES":
            yield script.reason(text, "CUDA_VISIBLE_DEVICES would be the same on all ranks: remove it.")
    for call in script.calls(*_GENERATORS):
        if not call.args:
            yield script.reason(call, "without a seed each rank draws other numbers: give one.")


def lines(script: Script, found: dict[str, list[cst.Call]]) -> str:
    """Lines that give all ranks the random numbers of rank 0."""
    return "\n".join(_STATES[library].format(numpy=_numpy(script)) for library in found)


def imports(script: Script, found: dict[str, list[cst.Call]]) -> list[str]:
    """What these lines need."""
    numpy = _numpy(script)
    needed = {"numpy": "import numpy" if numpy == "numpy" else f"import numpy as {numpy}", "random": "import random"}
    return [needed[library] for library in found if library in needed]


def _numpy(script: Script) -> str:
    for node in script.all(cst.ImportAlias):
        if script.text(node.name) == "numpy":
            return script.text(node.asname.name) if node.asname else "numpy"
    return "np"
