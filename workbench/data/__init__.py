"""Two real data sets for lessons: small enough for a laptop, and not generated.

=====================  =======================  =========  ======================================
call                   images                   classes    where it comes from
=====================  =======================  =========  ======================================
``digits()``           1,440 + 357 of 8 x 8     10         comes with this package
``fashion_mnist()``    60,000 + 10,000 of       10         cache folder, Debian package, download
                       28 x 28
=====================  =======================  =========  ======================================

Both give a :class:`Data`: four arrays and the names of the classes.
"""

from workbench.data.dataset import Data
from workbench.data.sources import digits, fashion_mnist

__all__ = ["Data", "digits", "fashion_mnist"]


def __dir__() -> list[str]:
    return sorted(__all__)
