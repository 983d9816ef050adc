"""The next word by a recurrent network, in torch: one LSTM layer, 4,050,748 parameters for a vocabulary of 10,000."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import nn

from learning.datasets import Dataset
from learning.tasks.inputs import WordOptions, check_words
from learning.tasks.torch_task import TorchTask
from learning.vocabulary import PADDING


@dataclass(frozen=True, kw_only=True)
class LstmOptions(WordOptions):
    """Options of the network: the embedding is before the LSTM and after it, ``hidden`` are the LSTM's units."""

    client_rate: float = 0.3
    batch_size: int = 16
    local_epochs: int = 1
    hidden: int = 670
    _ranges: ClassVar = {"vocabulary": (1, 1_000_000), "embedding": (1, 65_536), "hidden": (1, 65_536)}


class Lstm(TorchTask):
    """Embedding, LSTM, a linear layer back to the size of the embedding, and one to scores of all words.

    Examples are int32 (n, L) words, labels int64 (n, L) the word after each: 0 is padding, 1 to V are words, V + 1
    stands for what is out of vocabulary, V + 2 for the beginning and V + 3 for the end of a sentence.

    Padding counts neither in the loss nor in the accuracy. The accuracy is that of StackOverflow's next word as it is
    usually reported: positions whose label is out of vocabulary, a beginning or an end don't count either, and a guess
    of such a word is wrong. Source: the network and the accuracy of [RCZ+21] for StackOverflow next word prediction,
    with the sizes that TensorFlow Federated publishes.
    """

    Options = LstmOptions
    options: LstmOptions
    example_dtype: ClassVar[DTypeLike] = np.int32
    rows_a_block: ClassVar[int] = 32  # 26 MB of scores
    vectorized: ClassVar[bool] = True

    name = "lstm"

    def __init__(self, options: LstmOptions) -> None:
        self.example_shape, self.classes = options.example_shape, options.words
        super().__init__(options)

    def module(self) -> nn.Module:
        return _Network(self.options)

    def counted(self, labels: torch.Tensor) -> torch.Tensor:
        """All but padding."""
        return labels > PADDING

    def credited(self, labels: torch.Tensor) -> torch.Tensor:
        """Words of the vocabulary."""
        return (labels > PADDING) & (labels <= self.options.vocabulary)

    def check(self, data: Dataset) -> None:
        check_words(data, self.options.length, self.classes)


class _Network(nn.Module):
    def __init__(self, options: LstmOptions) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.words, options.embedding)
        nn.init.uniform_(self.embedding.weight, -0.05, 0.05)
        self.lstm = _Layer(options.embedding, options.hidden)
        self.dense = nn.Linear(options.hidden, options.embedding)
        self.output = nn.Linear(options.embedding, options.words)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores (n, L, classes) of the word after each."""
        scores: torch.Tensor = self.output(self.dense(self.lstm(self.embedding(words.long()))))
        return scores


class _Layer(nn.Module):
    """An LSTM with one bias for each gate; torch's own has two, and can't be trained side by side."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Parameter(torch.empty(inputs, 4 * hidden))
        self.from_state = nn.Parameter(torch.empty(hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.zeros(4 * hidden))
        with torch.no_grad():
            self.bias[hidden : 2 * hidden] = 1  # what has been seen is kept at first
            for weights in (self.from_input, self.from_state):
                weights.uniform_(-1, 1).mul_(math.sqrt(6 / (weights.shape[0] + hidden)))

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        """States (n, L, hidden) for inputs (n, L, inputs)."""
        driven = sequence @ self.from_input + self.bias
        state = driven.new_zeros(driven.shape[0], self.from_state.shape[0])
        cell, states = state, []
        for step in driven.unbind(dim=1):
            admit, keep, value, show = (step + state @ self.from_state).chunk(4, dim=-1)
            cell = torch.sigmoid(keep) * cell + torch.sigmoid(admit) * torch.tanh(value)
            state = torch.sigmoid(show) * torch.tanh(cell)
            states.append(state)
        return torch.stack(states, dim=1)
