"""Step 7: what is printed, drawn and saved, only rank 0 does."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from workbench.convert.edits import Edits
from workbench.convert.script import Script, argument, inside, last

_FUNCTIONS = {
    *("builtins.print", "pprint.pprint", "torch.save", "pickle.dump", "json.dump", "joblib.dump"),
    *("numpy.save", "numpy.savez", "numpy.savetxt", "os.mkdir", "os.remove", "os.unlink", "os.rename", "os.replace"),
    *("os.rmdir", "os.removedirs", "os.symlink", "os.link", "os.renames", "os.truncate"),
    *(f"shutil.{name}" for name in ("copyfile", "copy", "copy2", "copytree", "move", "rmtree", "make_archive")),
    *(f"logging.{level}" for level in ("debug", "info", "warning", "error")),
    *(f"matplotlib.pyplot.{name}" for name in ("savefig", "show")),
    *("wandb.init", "wandb.log", "wandb.finish", "mlflow.log_metric", "mlflow.log_param"),
}
_METHODS = {
    *("add_scalar", "add_scalars", "add_image", "add_graph", "add_histogram", "savefig", "to_csv", "write_text"),
    *("writerow", "writerows", "save_weights", "save_pretrained", "log_metric", "summary", "set_postfix", "tofile"),
}
_LOGGERS = ("logger", "log", "logging", "LOG", "LOGGER")


def convert(edits: Edits, trains: Sequence[cst.CSTNode]) -> None:
    """Guard the statements that print and save.

    Args:
        edits: where to.
        trains: calls that all ranks make together; a statement that leads to one is run by all.
    """
    script = edits.script
    together = _functions_with(script, trains)
    for statement in script.all(cst.SimpleStatementLine) + script.all(cst.SimpleStatementSuite):
        if not all(_is_output(script, each) for each in statement.body) or inside(statement, cst.NamedExpr):
            continue
        names = {last(call.func) for call in inside(statement, cst.Call)}
        if not names & together:
            edits.guard(statement)
    for call in script.all(cst.Call):
        if last(call.func) in ("tqdm", "trange") and argument(call, None, "disable") is None:
            edits.replace(call, lambda call: also(call, "disable=hvd.rank() != 0"), 7)
        if script.meaning(call.func) == "os.makedirs" and argument(call, None, "exist_ok") is None:
            edits.replace(call, lambda call: also(call, "exist_ok=True"), 7, "another rank may have made it")


def _is_output(script: Script, small: cst.BaseSmallStatement) -> bool:
    if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
        return False
    call = small.value
    if script.meaning(call.func) in _FUNCTIONS:
        return True
    if not isinstance(call.func, cst.Attribute):
        return False
    on = last(call.func.value)
    return (
        last(call.func) in _METHODS
        or (last(call.func) in ("debug", "info", "warning", "error") and on in _LOGGERS)
        or (
            last(call.func) == "save" and any(word in on.lower() for word in ("model", "manager", "checkpoint", "ckpt"))
        )
        or (last(call.func) == "write" and script.text(call.func.value) in ("sys.stdout", "sys.stderr", "tqdm"))
    )


def _functions_with(script: Script, nodes: Sequence[cst.CSTNode]) -> set[str]:
    """The names of the functions by which one comes to these places."""
    names: set[str] = set()
    todo = [script.function(node) for node in nodes]
    while todo:
        function = todo.pop()
        if function is not None and function.name.value not in names:
            names.add(function.name.value)
            todo += [script.function(call) for call in script.callers(function)]
    return names


def also(call: cst.Call, text: str) -> cst.Call:
    """The call with one more argument."""
    new = cst.ensure_type(cst.parse_expression(f"f({text})"), cst.Call).args[0]
    args = list(call.args)
    if args and not isinstance(args[-1].comma, cst.Comma):
        args[-1] = args[-1].with_changes(comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(" ")))
    return call.with_changes(args=[*args, new])
