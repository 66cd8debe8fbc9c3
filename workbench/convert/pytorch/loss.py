"""Is the loss a mean over the batch, or a sum? The average of ranks' means is the mean of all; of sums it is not."""

from __future__ import annotations

import libcst as cst

from workbench.convert.origins import origin, origins, returned
from workbench.convert.script import Script, argument, inside, last

MEAN, SUM, UNKNOWN, FREE = "mean", "sum", "unknown", "free"
_COUNTS = ("size", "len", "shape", "numel")


def kind(script: Script, node: cst.BaseExpression) -> str:
    """``mean``, ``sum`` or ``unknown``.

    Args:
        script: the whole.
        node: the expression that ``backward()`` is called on.
    """
    return _Reader(script).kind(node)


class _Reader:
    """Finds the kind of expressions. ``free`` is a term that does not depend on the samples, or was looked at before.

    Args:
        script: the whole.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._seen: set[cst.CSTNode] = set()

    def kind(self, node: cst.BaseExpression) -> str:
        if node in self._seen:
            return FREE
        self._seen.add(node)
        if isinstance(node, cst.BinaryOperation):
            return self._of_operation(node)
        if isinstance(node, cst.UnaryOperation):
            return self.kind(node.expression)
        if isinstance(node, (cst.Integer, cst.Float)) or self._script.text(node) == "None":
            return FREE
        if any(last(call.func) in ("parameters", "named_parameters") for call in inside(node, cst.Call)):
            return FREE
        if isinstance(node, cst.Call) and (found := self._of_call(node)):
            return found
        return _together({self.kind(each) for each in origins(self._script, node) if each is not node})

    def _of_operation(self, node: cst.BinaryOperation) -> str:
        left, right = self.kind(node.left), self.kind(node.right)
        if isinstance(node.operator, cst.Divide):
            return left if left != SUM else MEAN if _counts(node.right) else UNKNOWN
        if isinstance(node.operator, cst.Multiply):
            known = {left, right} & {MEAN, SUM}
            return known.pop() if len(known) == 1 else FREE if left == right == FREE else UNKNOWN
        if SUM in (left, right) and FREE in (left, right):
            return UNKNOWN  # all ranks would add this term
        return _together({left, right})

    def _of_call(self, call: cst.Call) -> str:
        meaning, name = self._script.meaning(call.func), last(call.func)
        if meaning.startswith("torch.nn.functional.") and name.endswith(("loss", "entropy", "logits", "div")):
            return self._reduction(call)
        if name in ("mean", "sum"):
            whole = len(call.args) == (1 if meaning.startswith("torch.") else 0)
            return name if whole else UNKNOWN
        if name in ("to", "float", "scale", "item"):
            inner = call.args[0].value if name in ("scale", "float") and call.args else None
            inner = call.func.value if inner is None and isinstance(call.func, cst.Attribute) else inner
            return self.kind(inner) if inner is not None else UNKNOWN
        if values := returned(self._script, call):
            return _together({self.kind(each) for each in values})
        made = call.func if isinstance(call.func, cst.Call) else origin(self._script, call.func)
        if isinstance(made, cst.Call) and self._script.meaning(made.func).startswith("torch.nn."):
            return self._reduction(made) if last(made.func).endswith("Loss") else UNKNOWN
        return ""

    def _reduction(self, call: cst.Call) -> str:
        """``reduction=`` of one of torch's losses; ``mean`` if it says nothing."""
        if argument(call, None, "weight") is not None or argument(call, None, "ignore_index") is not None:
            return UNKNOWN  # such a mean divides by the weights of this rank's samples
        text = self._script.word(argument(call, None, "reduction"), MEAN)
        return text if text in (MEAN, SUM) else UNKNOWN


def _together(kinds: set[str]) -> str:
    kinds = kinds - {FREE} or kinds
    return kinds.pop() if len(kinds) == 1 else UNKNOWN


def _counts(node: cst.BaseExpression) -> bool:
    """Is it the number of this rank's samples, as ``len(x)`` or ``x.size(0)``?"""
    names = [*inside(node, cst.Name), *inside(node, cst.Attribute)]
    return any(last(each) in _COUNTS for each in names)


def compared(script: Script, loop: cst.For) -> cst.BaseExpression | None:
    """A product of samples with all samples of the batch, as ``z @ z.T``, in the loop or a loss; or None."""
    losses = [each for each in script.all(cst.FunctionDef) if _is_loss(script, each)]
    for place in (loop, *losses):
        for node in inside(place, cst.BinaryOperation):
            if isinstance(node.operator, cst.MatrixMultiply) and _is_transposed(script, node.right):
                return node
        for call in inside(place, cst.Call):
            name = last(call.func)
            if name in ("mm", "matmul") and call.args and _is_transposed(script, call.args[-1].value):
                return call
            if name in ("cdist", "pdist"):
                return call
    return None


def _is_loss(script: Script, function: cst.FunctionDef) -> bool:
    owner = script.owner(function)
    name = owner.name.value if owner is not None and function.name.value == "forward" else function.name.value
    return "loss" in name.lower()


def _is_transposed(script: Script, node: cst.BaseExpression) -> bool:
    inner = node.func if isinstance(node, cst.Call) else node
    return last(inner) in ("T", "t", "mT") and "weight" not in script.text(node)
