"""Files that a script writes: one rank writes, and who reads what it has written waits for it."""

from __future__ import annotations

from workbench.convert.edits import Edits
from workbench.convert.script import argument

_SAVES = ("torch.save", "numpy.save", "pickle.dump")
_LOADS = ("torch.load", "numpy.load", "pickle.load")


def convert(edits: Edits) -> list[str]:
    """Let other ranks than 0 write into nothing, and wait before they load what was saved.

    Returns:
        Imports that this needs.
    """
    script = edits.script
    for call in script.calls(*_LOADS):
        if script.calls(*_SAVES):
            edits.before(call, 7, "hvd.barrier()", "what rank 0 saves is whole before others load it")
    opened = [call for call in script.calls("builtins.open") if call.args]
    written = [call for call in opened if script.word(argument(call, 1, "mode"), "r")[:1] in ("w", "a", "x")]
    for call in written:
        name = script.text(call.args[0].value)
        if any(script.text(each.args[0].value) == name for each in opened if each not in written):
            text = f"all ranks write {name}, and read it. Let rank 0 write it, and the others wait by hvd.barrier()."
            edits.say(call, text)
            continue
        edits.replace(call.args[0].value, f"{name} if hvd.rank() == 0 else os.devnull", 7)
    return ["import os"] if written else []
