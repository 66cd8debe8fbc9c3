"""Do they learn? Twelve questions before and after, what learners agree to, the data of a class, and its analysis.

::

    from workbench.course.evidence import after, before
    before()                  # in a notebook, before the first lesson; after() after the last one
    python -m workbench.course.evidence FOLDER … --key KEY --out data.csv     # then instructors/analysis.ipynb

Answers are kept as predictions are. Nothing tells what is right. Only who has said yes, and no nowhere, is exported.
"""

from __future__ import annotations

from workbench.common.notebook import running_shell
from workbench.course.evidence.items import FORMS, all_items
from workbench.course.predictions import ask

CONSENT, YES = "consent", "yes"
_ASKED = (
    "May your answers to these questions, your predictions, and whether and how fast you pass exercises be analysed by "
    "your instructor, under a pseudonym? They are not graded, and “no” has no disadvantage. Without an answer it is "
    "no; you can change your answer at any time (see instructors/consent.md)."
)


def before(upto: int = 12) -> None:
    """Ask for consent, and the questions of the test before the first lesson.

    An answer is stored at once, and may be changed. Run the cell again to go on: it shows what was answered. The last
    question is ``upto``: 6 for the track *Use*, 9 for *Build*, 12 for the others.

    Example:
        >>> before(1)
        Question consent: May your answers ...
    """
    _ask(FORMS[0], upto)


def after(upto: int = 12) -> None:
    """The same after the last lesson: other numbers, other order of the choices; see :func:`before`."""
    _ask(FORMS[1], upto)


def _ask(form: str, upto: int) -> None:
    shown = [ask.predict(CONSENT, _ASKED, choices=["no", YES])]
    for item in all_items()[:upto]:
        text, name = item.questions[FORMS.index(form)], f"{form}.{item.number}"
        shown.append(ask.predict(name, text, choices=item.shown(form)))
    if running_shell() is None:
        print(*shown, sep="\n")
    else:
        from IPython import display

        display.display(*shown)  # type: ignore[no-untyped-call]
