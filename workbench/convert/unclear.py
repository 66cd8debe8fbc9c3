"""What stops a conversion."""

from workbench.convert.source import Reason


class UnclearError(Exception):
    """Something that is needed to go on is not understood.

    Args:
        line: where.
        text: what, and what to do.
    """

    def __init__(self, line: int, text: str) -> None:
        self.reason = Reason(line, text)
        super().__init__(text)


__all__ = ["UnclearError"]
