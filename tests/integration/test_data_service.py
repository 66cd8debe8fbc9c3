"""A data service of two workers for two training ranks: two jobs, as Horovod's example starts them."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from installed import needs
from thorough import once_more

if TYPE_CHECKING:
    from running import Runner

DEADLINE_S = 240.0
pytestmark = [
    pytest.mark.usefixtures("warm_tensorflow"),
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.timeout(DEADLINE_S + 30, method="thread"),
]
SCRIPT = Path(__file__).with_name("scripts") / "data_service.py"
WANTED = [x * x for x in range(40)]


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="looks at Linux' sockets")
@pytest.mark.parametrize(
    ("dispatchers", "side"),
    [(1, "compute"), once_more(2, "training"), once_more(1, "training"), once_more(2, "compute")],
)
def test_workers_prepare_the_data(jobs: Runner, tmp_path: Path, dispatchers: int, side: str) -> None:
    """Ranks that share a dispatcher share its elements, each comes once; else each rank has them all.

    Sockets are bound to the loopback device, the config file ends with the service, and one line says what is open.
    """
    needs("tensorflow")
    file = tmp_path / "compute.json"
    options = ("--dispatchers", str(dispatchers), "--dispatcher-side", side, "--timeout", "60")
    job = jobs.python(str(SCRIPT), str(file), *options, deadline_s=DEADLINE_S, TF_CPP_MIN_LOG_LEVEL="3")
    assert (job.code, job.left) == (0, ()), job.report()
    told = [ast.literal_eval(each) for each in re.findall(r"<stdout>:told (.*)", job.out(0))]
    assert len(told) == 2, job.report()
    if dispatchers == 1:
        assert sorted(told[0][0] + told[1][0]) == WANTED
    else:
        assert told[0][0] == told[1][0] == WANTED
    for _, whole, here in told:
        assert whole == (WANTED if side == "compute" else [])
        assert "%lo:" in here
    assert not file.exists()
    assert "has no password: every user of this machine" in job.err(0)
