"""Optuna as on one process: rank 0 raises TrialPruned by itself, while the others train on."""

from __future__ import annotations

from typing import Any

import optuna
import torch

import workbench.torch as hvd
from workbench.errors import MissingRanksError

hvd.init()


def objective(trial: Any) -> float:
    """Pruned in the second epoch, on rank 0."""
    rate = hvd.broadcast_object(trial.suggest_float("lr", 0.1, 1.0) if trial else None)
    for epoch in range(3):
        loss = hvd.allreduce(torch.tensor(float(rate)), name=f"loss {epoch}")
        if trial and epoch == 1:
            raise optuna.TrialPruned
    return float(loss)


try:
    if hvd.rank() == 0:
        optuna.create_study().optimize(objective, n_trials=2)
    else:
        for _ in range(2):
            objective(None)
except MissingRanksError as error:
    print("RAISED", f"{type(error).__name__}: {error}".replace("\n", " "))
