"""The next character of a play, from the characters before it and from who speaks. Every speaker is a client."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fedapp import Problem, RunConfig

SPEECHES = Path(__file__).with_name("speeches.json")  # from Shakespeare's plays
ALPHABET = "\n !'(),-.:;?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz"
LENGTH = 20  # characters before the one that is predicted


class Reader(nn.Module):
    """A GRU over the characters; its first state says who speaks."""

    def __init__(self, speakers: int, width: int = 64) -> None:
        super().__init__()
        self.speaker = nn.Embedding(speakers, width)
        self.letters = nn.Embedding(len(ALPHABET) + 1, 16)
        self.gru = nn.GRU(16, width, batch_first=True)
        self.next = nn.Linear(width, len(ALPHABET) + 1)

    def forward(self, text: Tensor, speaker: Tensor) -> Tensor:
        """Return a score for every character that may come next."""
        states, _ = self.gru(self.letters(text), self.speaker(speaker)[None])
        scores: Tensor = self.next(states[:, -1])
        return scores


class NextCharacter(Problem):
    """Loss and accuracy are those of a classification, which is fedapp's default."""

    def __init__(self, config: RunConfig) -> None:
        self.speeches = list(json.loads(SPEECHES.read_text()).values())
        if config.num_clients > len(self.speeches):
            raise ValueError(f"there are {len(self.speeches)} speakers: set num-clients to that")

    def model(self) -> nn.Module:
        """Return a network with two inputs."""
        return Reader(len(self.speeches))

    def client_data(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return the two inputs and the targets: the first nine tenths of what a speaker says."""
        return self._windows(client, 0.0, 0.9)

    def test_data(self) -> tuple[Tensor, ...]:
        """Return the last tenth of what each speaker says."""
        parts = [self._windows(client, 0.9, 1.0) for client in range(len(self.speeches))]
        return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))

    def _windows(self, client: int, start: float, end: float) -> tuple[Tensor, Tensor, Tensor]:
        text = "\n".join(self.speeches[client])
        text = text[round(start * len(text)) : round(end * len(text))]
        codes = np.array([ALPHABET.find(letter) + 1 for letter in text])  # 0: any other
        windows = np.lib.stride_tricks.sliding_window_view(codes, LENGTH + 1)
        inputs, targets = torch.tensor(windows[:, :-1]), torch.tensor(windows[:, -1])
        return inputs, torch.full_like(targets, client), targets
