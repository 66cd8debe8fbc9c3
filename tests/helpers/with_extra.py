"""A module of torch with a state that is no tensor."""

from __future__ import annotations

from typing import Any

import torch


class WithExtra(torch.nn.Linear):
    """A module with a state that is no tensor."""

    said = "nothing"

    def get_extra_state(self) -> Any:
        return {"said": self.said}

    def set_extra_state(self, state: Any) -> None:
        self.said = state["said"]
