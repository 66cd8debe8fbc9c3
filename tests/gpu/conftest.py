"""Where there is no GPU only ``test_machine.py`` is collected, which skips and says why."""

from __future__ import annotations

from pathlib import Path

from gpu_running import collected

HERE = Path(__file__).parent
collect_ignore = [] if collected() else [p.name for p in HERE.glob("test_*.py") if p.name != "test_machine.py"]
