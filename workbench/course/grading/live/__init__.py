"""For exercises whose function needs the judge's own objects, such as models and optimizers.

Judge and function share a process then, but one that has nothing else of the notebook in it, and in which what decides
is compared with what it was before. See :mod:`workbench.course.grading` for what that is worth.
"""
