"""Steps 2 and 4 in PyTorch: the local batch, a share of the data for each rank, and a new order in each epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import assignments, bound, called, origins, parameters
from workbench.convert.pytorch.training import Batches, Training
from workbench.convert.script import Script, argument, inside, last, stars
from workbench.convert.source import UnclearError
from workbench.convert.steps import comment
from workbench.convert.ways import bare, shown_at, way_out

_SAMPLER = "DistributedSampler"
SAMPLER_IMPORT = f"from torch.utils.data import {_SAMPLER}"


def shard(edits: Edits, found: Training, keep_batch: bool = False) -> list[str]:
    """Each rank reads its own share of the data, and its part of a batch.

    Args:
        edits: where to.
        found: the training.
        keep_batch: do not divide the batch.

    Returns:
        Functions that the new script needs, as text.
    """
    script = edits.script
    made, name = "", "share_of"
    for batches in found.batches:
        with edits.attempt():
            _check_loader(script, batches)
            _say_batch_size(edits, batches)
            if not _shard_loader(edits, batches, keep_batch):
                name = name if made else script.unused(name)
                divided, said = ("", "") if keep_batch else (" // hvd.size()", f"    {comment(2)}\n")
                made = _SHARE.format(name=name, divided=divided, said=said)
                text = "each rank reads its own share of the data, in a new order each time"
                _counted(edits, batches, "len({}.dataset) // hvd.size()")
                test = f" if {script.text(batches.only_if)} else {{0}}" if batches.only_if else ""
                edits.wrap(batches.iterated, f"({name}({{0}}){test})" if test else f"{name}({{0}})", 4, text)
    return [made] if made else []


_SHARE = '''\
def {name}(loader):
    """This rank's share of a loader's samples, and of each batch; in another order each time that it is called."""
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler, SequentialSampler

    shuffled = isinstance(loader.sampler, RandomSampler)
    if loader.batch_size is None or not (shuffled or isinstance(loader.sampler, SequentialSampler)):
        raise ValueError(f"How ranks share the samples of {{loader.sampler}} is not known: use a DistributedSampler.")
    if loader.batch_size < hvd.size():
        raise ValueError(f"{{hvd.size()}} ranks cannot share a batch of {{loader.batch_size}}: make it larger.")
    loader.turn = getattr(loader, "turn", -1) + 1
    # Step 4: each rank reads its own share of the data
    sampler = DistributedSampler(loader.dataset, num_replicas=hvd.size(), rank=hvd.rank(), shuffle=shuffled)
    sampler.set_epoch(loader.turn)
    names = ("num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn")
    options = {{name: getattr(loader, name) for name in names}}
{said}    return DataLoader(loader.dataset, batch_size=loader.batch_size{divided}, sampler=sampler, **options)
'''


def _check_loader(script: Script, batches: Batches) -> None:
    """How the ranks can share the samples of a loader that is seen is known, or not."""
    loader = batches.loader
    if loader is None:
        return
    line = script.line(loader)
    for name in ("sampler", "batch_sampler", "generator"):
        if (arg := argument(loader, None, name)) is not None and script.text(arg.value) != "None":
            raise UnclearError(
                line,
                f"the loader has a {name} of its own; how the ranks share its samples is not known. As it is, each "
                "rank reads all.",
            )
    batch = argument(loader, 1, "batch_size")
    if not stars(loader) and (batch is None or script.text(batch.value) in ("1", "None")):
        raise UnclearError(
            line,
            "a batch is one sample, which the ranks cannot share, so each rank reads all. With a DistributedSampler "
            "all ranks together take larger batches.",
        )


def _shard_loader(edits: Edits, batches: Batches, keep_batch: bool) -> bool:
    """Give the loader itself a sampler, if nothing but the training reads it; False if that is not so."""
    script, loader = edits.script, batches.loader
    data = argument(loader, 0, "dataset") if loader else None
    epochs = _epochs(script, batches)
    if loader is None or data is None or epochs is None or batches.only_if or stars(loader):
        return False
    maker = script.function(loader)
    if maker is not None and len(script.callers(maker)) > 1:
        return False
    if any(arg.keyword is None for arg in loader.args[3:]) or _has_other_readers(script, batches):
        return False
    batch, shuffle = argument(loader, 1, "batch_size"), argument(loader, 2, "shuffle")
    sampler = script.unused(_sampler_name(batches, script))
    source = _named_data(edits, loader, data)
    order = script.text(shuffle.value) if shuffle else "False"
    made = f"{sampler} = {_SAMPLER}({source}, num_replicas=hvd.size(), rank=hvd.rank(), shuffle={order})"
    edits.before(loader, 4, made)
    if not keep_batch and batch is not None:
        edits.replace(batch.value, f"{script.factor(batch.value)} // hvd.size()", 2)
        edits.replace(batch, lambda arg: _keyword(arg, "batch_size", arg.value))
    if shuffle is not None:
        edits.replace(shuffle, lambda arg: _keyword(arg, "sampler", cst.Name(sampler)))
    else:
        edits.replace(loader, lambda call: call.with_changes(args=_with(call.args, "sampler", sampler)))
    _counted(edits, batches, "len({}.sampler)")
    if order != "False":
        epochs(edits, sampler)
    return True


def _has_other_readers(script: Script, batches: Batches) -> bool:
    """Is something else read from the loader than its length and its data set?"""
    names = _names(script, batches)
    nodes: list[cst.BaseExpression] = [*script.all(cst.Name), *script.all(cst.Attribute)]
    for node in nodes:
        if script.text(node) not in names or node is batches.iterated:
            continue
        above = next(script.above(node))
        if (isinstance(above, cst.Attribute) and above.attr is node) or bare(script, node) is batches.iterated:
            continue
        call = next(script.above(above)) if isinstance(above, cst.Arg) else None
        plain = (cst.Assign, cst.AnnAssign, cst.AssignTarget, cst.Param, cst.Return, cst.Element, cst.NameItem)
        if isinstance(above, plain) or (isinstance(above, cst.Attribute) and last(above) in _LOOKS):
            continue
        if isinstance(above, cst.Arg) and (
            above.keyword is node or (isinstance(call, cst.Call) and (last(call.func) == "len" or called(script, call)))
        ):
            continue
        if batches.loader in origins(script, node):
            return True
    return False


_LOOKS = ("dataset", "sampler", "batch_size", "num_workers", "drop_last")


def _names(script: Script, batches: Batches) -> set[str]:
    """The names that the loader may have in one function or another."""
    found = {script.text(batches.iterated)}
    found |= {script.text(target) for target, value in assignments(script) if batches.loader in origins(script, value)}
    while True:
        more = set(found)
        for call in script.all(cst.Call):
            if any(script.text(arg.value) in found for arg in call.args):
                for function in called(script, call):
                    bounds = {name: bound(script, function, call, name) for name in parameters(function)}
                    more |= {name for name, value in bounds.items() if value and script.text(value) in found}
        if more == found:
            return found
        found = more


def _sampler_name(batches: Batches, script: Script) -> str:
    name = last(batches.iterated)
    return name.replace("dataloader", "loader").replace("loader", "sampler") if "loader" in name else "train_sampler"


def _named_data(edits: Edits, loader: cst.Call, data: cst.Arg) -> str:
    """The data set by a name, since loader and sampler need it."""
    text = edits.script.text(data.value)
    if isinstance(data.value, (cst.Name, cst.Attribute)):
        return text
    name = edits.script.unused("train_data")
    edits.before(loader, 4, f"{name} = {text}", said=False)
    edits.replace(data.value, name)
    return name


def _keyword(arg: cst.Arg, name: str, value: cst.BaseExpression) -> cst.Arg:
    plain = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(name), value=value, equal=plain)


def _with(args: Sequence[cst.Arg], name: str, value: str) -> list[cst.Arg]:
    """A call's arguments and one more."""
    new = _keyword(cst.Arg(cst.Name(value)), name, cst.Name(value))
    *before, final = args
    comma = before[-1].comma if before else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*before, final.with_changes(comma=comma), new.with_changes(comma=final.comma)]


def _counted(edits: Edits, batches: Batches, number: str) -> None:
    """What is counted within the loop are this rank's samples, of so many as it has."""
    script = edits.script
    for call in inside(batches.loop.body, cst.Call):
        value = call.args[0].value if last(call.func) == "len" and call.args else None
        above = next(script.above(call))
        divided = isinstance(above, cst.BinaryOperation) and above.left is call  # a number of steps: as before
        if not isinstance(value, cst.Attribute) or last(value) != "dataset" or divided or batches.only_if:
            continue
        if script.text(value.value) == script.text(batches.iterated):
            edits.replace(call, number.format(script.text(value.value)), 4, "this rank's samples")


def _say_batch_size(edits: Edits, batches: Batches) -> None:
    """A rank's batch is smaller: who computes with the size of all would be wrong."""
    script = edits.script
    size = argument(batches.loader, 1, "batch_size") if batches.loader else None
    if size is None or not isinstance(size.value, (cst.Name, cst.Attribute)):
        return
    for node in (*inside(batches.loop.body, cst.Name), *inside(batches.loop.body, cst.Attribute)):
        if script.text(node) == script.text(size.value):
            statement = script.statement(node)
            if not any(script.meaning(call.func) == "builtins.print" for call in inside(statement, cst.Call)):
                text = f"{script.text(node)} is that of all ranks, and this batch is smaller: write len(…) of it."
                edits.say(node, text)
                return


# --- 4: a new order each epoch ------------------------------------------------------------------------


def _epochs(script: Script, batches: Batches) -> Callable[[Edits, str], None] | None:
    """What gives the epoch to the sampler, which shuffles by it; None if the epochs have no counter.

    It gets the edits, and the sampler's name where that is made.
    """
    try:
        around = way_out(script, batches.backward)
    except UnclearError:
        return None
    inner = next((index for index, (each, _) in enumerate(around) if each is batches.loop), None)
    if inner is None or inner + 1 == len(around):
        return None if inner is None else lambda *_: None
    epochs, through = around[inner + 1]
    if not isinstance(epochs, cst.For) or not isinstance(epochs.target, cst.Name):
        return None
    counter = epochs.target.value
    calls = through[len(around[inner][1]) :]
    parameter = _parameter_of(script, calls, counter) if calls and counter != "_" else ""
    shown = shown_at(script, batches.iterated, calls) if calls and not parameter else ""
    if calls and not parameter and not shown:
        return None

    def tell(edits: Edits, sampler: str) -> None:
        name = counter
        if counter == "_":
            name = script.unused("epoch")
            edits.replace(epochs.target, name)
        here = sampler if isinstance(batches.iterated, cst.Call) else f"{script.text(batches.iterated)}.sampler"
        if shown:
            edits.before(calls[-1], 4, f"{shown}.sampler.set_epoch({name})", "shuffle anew in each epoch")
        else:
            edits.before(batches.loop, 4, f"{here}.set_epoch({parameter or name})", "shuffle anew in each epoch")

    return tell


def _parameter_of(script: Script, calls: list[cst.Call], counter: str) -> str:
    """The parameter by which the innermost function gets the counter of epochs."""
    name = counter
    for call in reversed(calls):
        functions = [each for each in script.all(cst.FunctionDef) if call in script.callers(each)]
        if len(functions) != 1:
            return ""
        (function,) = functions
        values = {each: bound(script, function, call, each) for each in parameters(function)}
        given = [each for each, value in values.items() if isinstance(value, cst.Name) and value.value == name]
        if not given:
            return ""
        name = given[0]
    return name


# --- downloads ----------------------------------------------------------------------------------------


def download_once(edits: Edits) -> None:
    """One rank of a machine downloads, while the others wait."""
    script = edits.script
    for call in script.all(cst.Call):
        arg = argument(call, None, "download")
        if arg is None or script.text(arg.value) != "True":
            continue
        if isinstance(script.statement(call), cst.SimpleStatementLine) and not inside(
            script.statement(call), cst.Return
        ):
            edits.before(
                call, 4, "if hvd.local_rank() != 0:\n    hvd.barrier()", "one rank of a machine downloads first"
            )
            edits.after(call, 4, "if hvd.local_rank() == 0:\n    hvd.barrier()", said=False)
        else:
            edits.note(call, "all ranks download at the same time: start once on one rank before.")
