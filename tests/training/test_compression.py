"""What ``compression=`` may be, where it needs no ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from workbench.training.compression import Compression


def test_powersgd_is_refused_where_it_is_not() -> None:
    """All frameworks but torch say so by their own Compression, and what there is instead."""

    def cast(array: Any, dtype: Any) -> Any:
        return array.astype(dtype)

    of_another_framework = Compression.casting(lambda array, dtype: True, cast, np.float16)
    with pytest.raises(NotImplementedError, match=r"only for torch .*Compression\.fp16, which halves"):
        of_another_framework.powersgd(rank=2)
