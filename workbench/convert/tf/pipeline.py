"""``tf.data``: the calls that make a data set, and the two that are changed: its source and its batches."""

from __future__ import annotations

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.origins import assignments, bound, called, parameters, returned
from workbench.convert.script import Script, argument, inside, last
from workbench.convert.source import UnclearError
from workbench.convert.ways import bare

_SOURCES = ("tensorflow.data.Dataset.", "tensorflow.data.TFRecordDataset", "tensorflow.data.TextLineDataset")


def is_pipeline(script: Script, node: cst.BaseExpression) -> bool:
    """Is this a data set of ``tf.data`` that the script makes?"""
    return any(_is_source(script, call) for call in links(script, node))


def _is_source(script: Script, call: cst.Call) -> bool:
    return not inside(call.func, cst.Call) and script.meaning(call.func).startswith(_SOURCES)


def links(script: Script, node: cst.BaseExpression) -> list[cst.Call]:
    """The calls by which a data set is made, also over several assignments to one name."""
    found: list[cst.Call] = []
    seen: set[cst.CSTNode] = set()
    todo: list[cst.BaseExpression] = [node]
    while todo:
        each = todo.pop()
        if each in seen:
            continue
        seen.add(each)
        if isinstance(each, cst.Call):
            found.append(each)
            if isinstance(each.func, cst.Attribute):
                todo.append(each.func.value)
            todo += returned(script, each)
        elif isinstance(each, cst.Name):
            todo += _values(script, each)
        elif isinstance(each, cst.Attribute):
            todo += [value for _, value in assignments(script, to=script.text(each))]
    return found


def _values(script: Script, name: cst.Name) -> list[cst.BaseExpression]:
    function = script.function(name)
    values = [value for _, value in assignments(script, function, name.value)]
    if function is not None and name.value in parameters(function):
        given = [bound(script, function, call, name.value) for call in script.callers(function)]
        values += [each for each in given if each is not None]
    if not values and function is not None:
        values = [value for _, value in assignments(script, None, name.value)]
    return values


_SHARE = '''\
def share_of(data):
    """This rank's share of the samples; all ranks have equally many: where some are missing, the first ones again."""
    missing = -len(data) % hvd.size()
    return data.concatenate(data.take(missing)).shard(hvd.size(), hvd.rank())
'''
_COUNTED = ("from_tensor_slices", "range")


def shard(edits: Edits, node: cst.BaseExpression) -> list[str]:
    """Each rank takes its share of the source, and its part of the batch.

    Args:
        edits: where to.
        node: what the training runs over.

    Returns:
        Functions that the new script needs.

    Raises:
        UnclearError: there is not one source and one ``batch()``.
    """
    script = edits.script
    calls = links(script, node)
    sources = [call for call in calls if _is_source(script, call)]
    batches = [call for call in calls if last(call.func) in ("batch", "padded_batch")]
    line = script.line(node)
    if any(last(call.func) in ("zip", "concatenate", "interleave", "sample_from_datasets") for call in calls):
        raise UnclearError(line, "this data set is made of several: which samples a rank takes is not known.")
    if len(sources) != 1 or len(batches) != 1:
        raise UnclearError(
            line,
            f"this data set has {len(sources)} sources and {len(batches)} calls of batch(), and should have one each.",
        )
    size = argument(batches[0], 0, "batch_size")
    if size is None:
        raise script.unclear(batches[0], "the batch size is not written in this call.")
    maker = script.function(sources[0])
    if maker is not None and len(script.callers(maker)) > 1:
        raise script.unclear(
            sources[0],
            f"{maker.name.value}() makes several data sets. For the one to train on, put "
            ".shard(hvd.size(), hvd.rank()) behind this call.",
        )
    edits.replace(size.value, f"{script.factor(size.value)} // hvd.size()", 2)
    _say_other_readers(edits, sources[0], node)
    if last(sources[0].func) in _COUNTED:
        edits.wrap(sources[0], "share_of({})", 4)
        return [_SHARE]
    edits.wrap(sources[0], "{}.shard(hvd.size(), hvd.rank())", 4)
    edits.say(
        sources[0],
        "how many samples this reads is not known before. If it is no multiple of the number of ranks, one rank "
        "has a batch more, for which the others do not wait: .take(…) so many batches that all have them.",
    )
    return []


def _say_other_readers(edits: Edits, source: cst.Call, trained: cst.BaseExpression) -> None:
    """Who else reads the data set gets a rank's share of it."""
    script = edits.script
    same = script.text(trained)
    for name in script.all(cst.Name):
        above = next(script.above(name))
        if name is trained or name.value not in (same, same.split(".")[0]) or source not in links(script, name):
            continue
        reads = isinstance(above, cst.For) or (
            isinstance(above, cst.Arg) and not called(script, cst.ensure_type(next(script.above(above)), cst.Call))
        )
        if reads and bare(script, name) is not trained:
            text = f"{name.value} is this rank's share now: what is computed here is not of all samples."
            edits.say(name, text)
