"""Steps 2 and 4 in PyTorch: the local batch, a share of the data for each rank, and a new order in each epoch."""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import bound, origins, parameters
from workbench.convert.pytorch.training import Training
from workbench.convert.script import Script, argument, inside, last, stars
from workbench.convert.unclear import UnclearError
from workbench.convert.ways import shown_at, way_out

_SAMPLER = "DistributedSampler"
SAMPLER_IMPORT = f"from torch.utils.data import {_SAMPLER}"


def shard(edits: Edits, found: Training, keep_batch: bool = False) -> str:
    """Each rank reads its own share of the data, and its part of a batch.

    Args:
        edits: where to.
        found: the training.
        keep_batch: do not divide the batch.

    Returns:
        The sampler's name.

    Raises:
        UnclearError: how the ranks can share the samples is not known.
    """
    script, loader = edits.script, found.loader
    line = script.line(loader)
    for name in ("sampler", "batch_sampler", "worker_init_fn", "generator"):
        if (arg := argument(loader, None, name)) is not None and script.text(arg.value) != "None":
            raise UnclearError(
                line, f"the loader has a {name} of its own; how the ranks share its samples is not known."
            )
    data = argument(loader, 0, "dataset")
    if data is None:
        raise UnclearError(line, "the loader's data set is not written in this call.")
    if options := stars(loader):
        return _shard_by_options(edits, found, data, options, keep_batch)
    batch, shuffle = argument(loader, 1, "batch_size"), argument(loader, 2, "shuffle")
    if batch is None and not keep_batch:
        raise UnclearError(line, "without batch_size a batch is one sample, which the ranks cannot share.")
    if any(arg.keyword is None for arg in loader.args[3:]):
        raise UnclearError(line, "write the loader's arguments after the batch size with their names: shuffle=True.")
    sampler = script.unused(_sampler_name(found, script))
    source = _named_data(edits, found, data)
    order = script.text(shuffle.value) if shuffle else "False"
    made = f"{sampler} = {_SAMPLER}({source}, num_replicas=hvd.size(), rank=hvd.rank(), shuffle={order})"
    edits.before(loader, 4, made)
    if not keep_batch and batch is not None:
        _check_batch_size(script, found, batch.value)
        edits.replace(batch.value, _divided(script, batch.value), 2)
        edits.replace(batch, lambda arg: _keyword(arg, "batch_size", arg.value))
    if shuffle is not None:
        edits.replace(shuffle, lambda arg: _keyword(arg, "sampler", cst.Name(sampler)))
    else:
        edits.replace(loader, lambda call: call.with_changes(args=_with(call.args, "sampler", sampler)))
    _counted(edits, found, data)
    return sampler


def _shard_by_options(edits: Edits, found: Training, data: cst.Arg, options: list[cst.Arg], keep_batch: bool) -> str:
    """``DataLoader(data, **options)``: only a run knows the options, so the script changes them."""
    script, loader = edits.script, found.loader
    name = script.text(options[0].value)
    shared = [arg for arg in script.all(cst.Arg) if arg.star == "**" and script.text(arg.value) == name]
    if len(options) > 1 or not isinstance(options[0].value, cst.Name) or len(loader.args) != 2 or len(shared) > 1:
        raise UnclearError(
            script.line(loader), f"write batch_size and shuffle of this loader out, instead of **{name}."
        )
    sampler = script.unused(_sampler_name(found, script))
    source = _named_data(edits, found, data)
    if not keep_batch:
        edits.before(loader, 2, f'{name}["batch_size"] = {name}["batch_size"] // hvd.size()')
    order = f'{name}.pop("shuffle", False)'
    made = f"{sampler} = {_SAMPLER}({source}, num_replicas=hvd.size(), rank=hvd.rank(), shuffle={order})"
    edits.before(loader, 4, made)
    edits.replace(loader, lambda call: call.with_changes(args=_with(call.args, "sampler", sampler, at=1)))
    _counted(edits, found, data)
    return sampler


def _sampler_name(found: Training, script: Script) -> str:
    name = last(found.iterated)
    return name.replace("dataloader", "loader").replace("loader", "sampler") if "loader" in name else "train_sampler"


def _named_data(edits: Edits, found: Training, data: cst.Arg) -> str:
    """The data set by a name, since loader and sampler need it."""
    text = edits.script.text(data.value)
    if isinstance(data.value, (cst.Name, cst.Attribute)):
        return text
    name = edits.script.unused("train_data")
    edits.before(found.loader, 4, f"{name} = {text}", said=False)
    edits.replace(data.value, name)
    return name


def _divided(script: Script, node: cst.BaseExpression) -> str:
    text = script.text(node)
    simple = isinstance(node, (cst.Name, cst.Attribute, cst.Integer, cst.Call, cst.Subscript))
    return f"{text if simple else f'({text})'} // hvd.size()"


def _keyword(arg: cst.Arg, name: str, value: cst.BaseExpression) -> cst.Arg:
    plain = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return arg.with_changes(keyword=cst.Name(name), value=value, equal=plain)


def _with(args: tuple[cst.Arg, ...], name: str, value: str, at: int | None = None) -> list[cst.Arg]:
    """A call's arguments and one more."""
    new = _keyword(cst.Arg(cst.Name(value)), name, cst.Name(value))
    found = list(args)
    if at is not None:
        space = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
        return [*found[:at], new.with_changes(comma=space), *found[at:]]
    *before, final = found
    comma = before[-1].comma if before else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [*before, final.with_changes(comma=comma), new.with_changes(comma=final.comma)]


def _counted(edits: Edits, found: Training, data: cst.Arg) -> None:
    """Where a sum over this rank's samples is divided by the number of all, divide by the number of its own."""
    script = edits.script
    name = script.text(data.value)
    for call in script.calls("builtins.len"):
        value = call.args[0].value if call.args else None
        is_loaders = isinstance(value, cst.Attribute) and last(value) == "dataset"
        if is_loaders and found.loader in origins(script, cst.ensure_type(value, cst.Attribute).value):
            loader = script.text(cst.ensure_type(value, cst.Attribute).value)
        elif value is not None and script.text(value) == name:
            loader = ""
        else:
            continue
        divides, is_divided = _roles(script, call)
        if divides and (is_divided or not loader):
            raise UnclearError(
                script.line(call),
                "this divides by the number of all samples, but a rank sums over its share: write "
                f"len({script.text(found.iterated)}.dataset) there, which is converted.",
            )
        if loader and not is_divided:  # steps are counted by the number of all, as before
            edits.replace(call, f"len({loader}.sampler)", 4, "this rank's samples")


def _roles(script: Script, call: cst.Call) -> tuple[bool, bool]:
    """Does something get divided by this number, and is it divided itself? Also under the name that it is given."""
    places: list[cst.CSTNode] = [call]
    above = next(iter(script.above(call)))
    if isinstance(above, cst.Assign) and isinstance(target := above.targets[0].target, cst.Name):
        places += [each for each in script.all(cst.Name) if each.value == target.value]
    divisions = [(each, next(iter(script.above(each)), None)) for each in places]
    found = [(each, above) for each, above in divisions if isinstance(above, cst.BinaryOperation)]
    kinds = (cst.Divide, cst.FloorDivide)
    divides = any(above.right is each and isinstance(above.operator, cst.Divide) for each, above in found)
    return divides, any(above.left is each and isinstance(above.operator, kinds) for each, above in found)


def _check_batch_size(script: Script, found: Training, size: cst.BaseExpression) -> None:
    """A rank's batch is smaller: who computes with the size of all would be wrong."""
    if not isinstance(size, (cst.Name, cst.Attribute)):
        return
    for node in (*inside(found.loop.body, cst.Name), *inside(found.loop.body, cst.Attribute)):
        if script.text(node) == script.text(size):
            statement = script.statement(node)
            if not any(script.meaning(call.func) == "builtins.print" for call in inside(statement, cst.Call)):
                raise UnclearError(
                    script.line(node),
                    f"{script.text(size)} is that of all ranks, and this batch is smaller: write len(…) of it.",
                )


# --- 4: a new order each epoch ------------------------------------------------------------------------


def new_order_each_epoch(edits: Edits, found: Training, sampler: str) -> None:
    """Give the epoch to the sampler, which shuffles by it.

    Args:
        edits: where to.
        found: the training.
        sampler: its name, where it was made.

    Raises:
        UnclearError: the loop over epochs has no counter, or the loader no name there.
    """
    script = edits.script
    shuffle = argument(found.loader, 2, "shuffle")
    is_shuffled = (shuffle is not None and script.text(shuffle.value) != "False") or bool(stars(found.loader))
    if not is_shuffled:
        return
    around = way_out(script, found.backward)
    inner = [each for each, _ in around].index(found.loop)
    depth = len(around[inner][1])
    outer = around[inner + 1] if inner + 1 < len(around) else None
    if outer is None:
        return
    epochs, through = outer
    line = script.line(epochs)
    if not isinstance(epochs, cst.For) or not isinstance(epochs.target, cst.Name):
        raise UnclearError(
            line, "the loop over epochs has no counter, by which the samples are shuffled: for epoch in range(…)."
        )
    counter = epochs.target.value
    if counter == "_":
        counter = script.unused("epoch")
        edits.replace(epochs.target, counter)
    calls = through[depth:]
    said = "shuffle anew in each epoch"
    here = sampler if isinstance(found.iterated, cst.Call) else f"{script.text(found.iterated)}.sampler"
    if not calls:
        edits.before(found.loop, 4, f"{here}.set_epoch({counter})", said)
        return
    if name := _parameter_of(script, calls, counter):
        edits.before(found.loop, 4, f"{here}.set_epoch({name})", said)
        return
    if text := shown_at(script, found.iterated, calls):
        edits.before(calls[-1], 4, f"{text}.sampler.set_epoch({counter})", said)
        return
    raise UnclearError(
        line, "the loader has no name in the loop over epochs: pass it, or the epoch, to the function that trains."
    )


def _parameter_of(script: Script, calls: list[cst.Call], counter: str) -> str:
    """The parameter by which the innermost function gets the counter of epochs."""
    name = counter
    for call in reversed(calls):
        functions = [each for each in script.all(cst.FunctionDef) if call in script.callers(each)]
        if len(functions) != 1:
            return ""
        (function,) = functions
        given = [each for each in parameters(function) if _is_name(bound(script, function, call, each), name)]
        if not given:
            return ""
        name = given[0]
    return name


def _is_name(node: cst.BaseExpression | None, name: str) -> bool:
    return isinstance(node, cst.Name) and node.value == name


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


__all__ = ["SAMPLER_IMPORT", "download_once", "new_order_each_epoch", "shard"]
