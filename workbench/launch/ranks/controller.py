"""The controller of a notebook's engines: ``python -m workbench.launch.ranks.controller`` and ipcontroller's words.

ipyparallel's own is ready 0.25 s later, which it sleeps, and takes in an engine at the second beat that this answers.
Here the heart beats quickly while engines start, and an engine is taken in when it has answered for the first time.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

from ipyparallel.controller import app, heartmonitor
from traitlets import default

_QUICK_MS = 25
_QUICK_FOR_S = 5.0


class HeartMonitor(heartmonitor.HeartMonitor):  # type: ignore[misc]  # ipyparallel has no types
    """Beats quickly for the first seconds, and after an engine has come. Meanwhile none counts as lost."""

    _quick_until = 0.0

    def start(self) -> None:
        super().start()
        self._usual_ms = self.caller.callback_time
        self._hurry()

    def beat(self) -> None:
        if self._quick_until and time.monotonic() > self._quick_until:
            self._quick_until, self.caller.callback_time = 0.0, self._usual_ms
        super().beat()

    def handle_pong(self, message: Any) -> None:
        """A heart has answered: whichever beat it was."""
        heart = message[0]
        if not self._quick_until:
            super().handle_pong(message)
        else:
            self.responses.add(heart)
        if heart not in self.hearts:
            self.handle_new_hearts({heart})
            self._hurry()

    def _hurry(self) -> None:
        self._quick_until = time.monotonic() + _QUICK_FOR_S
        self.caller.callback_time = min(_QUICK_MS, self._usual_ms)

    def _check_missed(self, missed: Any, on_probation: Any, hearts: Any) -> Any:
        return ([], on_probation) if self._quick_until else super()._check_missed(missed, on_probation, hearts)


class Controller(app.IPController):  # type: ignore[misc]  # ipyparallel has no types
    """A controller that stays in the folder where it starts; ipyparallel's goes to the one where it was imported."""

    name = "ipcontroller"

    @default("work_dir")
    def _folder(self) -> str:
        return os.getcwd()


def main() -> None:
    """Run the controller until it ends."""
    heartmonitor.HeartMonitor = HeartMonitor
    app.time = SimpleNamespace(sleep=lambda _: None)
    Controller.launch_instance()


if __name__ == "__main__":
    main()
