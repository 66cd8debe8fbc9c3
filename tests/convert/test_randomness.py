"""All ranks draw the same numbers, whichever library draws them."""

from __future__ import annotations

import pytest
from converting import TRAINING

pytest.importorskip("libcst")

from workbench.convert import randomness
from workbench.convert.script import Script

ROWS = "import pandas as pd\nrows = pd.DataFrame(x).sample(frac=1)\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch.manual_seed(0)\ntorch.rand(1)\n", set()),
        ("import torch\ntorch.rand(1)\n", {"torch"}),
        ("import torch\nif seed:\n    torch.manual_seed(seed)\ntorch.rand(1)\n", {"torch"}),
        (
            "import random, torch\nseed = random.randint(1, 9)\ntorch.manual_seed(seed)\ntorch.rand(1)\n",
            {"random", "torch"},
        ),
        (f"import numpy as np\n{ROWS}", {"numpy"}),
        (f"import numpy as np\nnp.random.seed(0)\n{ROWS}", set()),
        (ROWS.replace("frac=1", "frac=1, random_state=0"), set()),
        (ROWS.replace("frac=1", "frac=1, random_state=None"), {"numpy"}),
        ("from sklearn.model_selection import KFold\nKFold(3, shuffle=True)\n", {"numpy"}),
        ("from sklearn.utils import shuffle\nshuffle(rows)\n", {"numpy"}),
        ("import torch\nfrom data import load\nload()\n", {"torch", "numpy", "random"}),
        ("import torch\nfrom utils import set_seed, load\nset_seed(3)\nload()\n", set()),
        ("import torch, torchvision, numpy as np, matplotlib\nnp.mean(1)\n", set()),
    ],
)
def test_what_no_seed_makes_equal(text: str, found: set[str]) -> None:
    """Libraries of which rank 0's state is sent: what may draw, and is not seeded for certain."""
    assert set(randomness.unseeded(Script("train.py", text))) == found


def test_the_lines_have_what_they_need() -> None:
    """A script that draws by pandas need not import NumPy."""
    from workbench.convert.conversion import convert

    text = TRAINING.replace("import numpy as np\n", "") + ROWS
    after = convert("train.py", text).after
    assert "import numpy as np\n" in after
    assert "np.random.set_state(hvd.broadcast_object(np.random.get_state(), root_rank=0))" in after
