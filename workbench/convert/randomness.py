"""Random numbers that no seed makes equal: then the ranks would make, or split, different data."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from workbench.convert.script import Script, argument

_STATES = {
    "torch": "torch.set_rng_state(hvd.broadcast_object(torch.get_rng_state(), root_rank=0))",
    "numpy": "{numpy}.random.set_state(hvd.broadcast_object({numpy}.random.get_state(), root_rank=0))",
    "random": "random.setstate(hvd.broadcast_object(random.getstate(), root_rank=0))",
}
_SEEDS = ("seed_everything", "set_random_seed", "set_seed", "seed_all", "fix_seed")
_TORCH = ("rand", "randn", "randint", "randperm", "normal", "rand_like", "randn_like", "bernoulli", "multinomial")


def unseeded(script: Script) -> dict[str, list[cst.Call]]:
    """Library → calls that draw from its global generator, if nothing seeds that."""
    names = {script.meaning(call.func) for call in script.all(cst.Call)}
    if any(name.rpartition(".")[2] in _SEEDS for name in names):
        return {}
    found: dict[str, list[cst.Call]] = {}
    for library, call in _draws(script):
        seeds = {"torch": "torch.manual_seed", "numpy": "numpy.random.seed", "random": "random.seed"}[library]
        if seeds not in names:
            found.setdefault(library, []).append(call)
    return found


def _draws(script: Script) -> Iterator[tuple[str, cst.Call]]:
    for call in script.all(cst.Call):
        name = script.meaning(call.func)
        has_own = any(argument(call, None, each) for each in ("generator", "random_state", "seed"))
        if has_own or name in ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random"):
            continue
        short = name.rpartition(".")[2]
        if name.startswith("numpy.random.") or short == "train_test_split":
            yield "numpy", call
        elif name.startswith("random."):
            yield "random", call
        elif name.startswith("torch.") and short in (*_TORCH, "random_split"):
            yield "torch", call


def own_generators(script: Script) -> list[cst.Call]:
    """Generators without a seed: each rank would draw other numbers from its own."""
    names = ("numpy.random.default_rng", "numpy.random.RandomState", "random.Random")
    return [call for call in script.calls(*names) if not call.args]


def lines(script: Script, found: dict[str, list[cst.Call]]) -> str:
    """Lines that give all ranks the random numbers of rank 0."""
    return "\n".join(_STATES[library].format(numpy=_numpy(script)) for library in found)


def _numpy(script: Script) -> str:
    for node in script.all(cst.ImportAlias):
        if script.text(node.name) == "numpy":
            return script.text(node.asname.name) if node.asname else "numpy"
    return "np"


__all__ = ["lines", "own_generators", "unseeded"]
