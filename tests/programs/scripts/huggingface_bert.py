"""docs/how-to/convert.md's block on HuggingFace's Trainer, with a small BERT of random weights; all rows in a step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification

import workbench.torch as hvd

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "convert.md"
(BLOCK,) = re.findall(r"^```python\n(import os\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
ROWS, BATCH, ACCUMULATION = 64, 16, 4


class Rows(list[Any]):
    """As a data set of HuggingFace's."""

    def shard(self, count: int, index: int) -> Rows:
        """Every so many rows."""
        return Rows(self[index::count])


hvd.init()
torch.manual_seed(hvd.rank())  # other weights on each rank: rank 0's have to win
config = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
chance = torch.Generator().manual_seed(1)
words = torch.randint(0, 50, (ROWS, 12), generator=chance)
data = Rows({"input_ids": row, "labels": int(row[0] > 25)} for row in words)
model = BertForSequenceClassification(config)
code = BLOCK.replace('    "out",\n', f'    "out",\n    per_device_train_batch_size={BATCH // hvd.size()},\n')
assert code != BLOCK
exec(code, {"data": data, "model": model, "accumulation": ACCUMULATION, "__name__": "page"})
# The biases of keys change nothing: their gradients are rounding, whose signs Adam follows.
kept = [each for name, each in model.named_parameters() if "key.bias" not in name]
print("RESULT", hvd.size(), sum(float(each.detach().double().abs().sum()) for each in kept))
