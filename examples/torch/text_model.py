"""What all examples train: a small model that reads Python, and real text to read.

The text is that of Python's own standard library, so that there is nothing to download. The model
guesses the next byte from the sixteen before it. Nothing here knows of other ranks or of gradwire.
"""

import hashlib
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

CONTEXT = 16


class TextModel(nn.Module):
    """272 000 parameters: small, and yet large enough that its gradients are worth compressing."""

    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(256, 32)
        self.hidden = nn.Sequential(nn.Linear(32 * CONTEXT, width), nn.ReLU(), nn.LayerNorm(width))
        self.deeper = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, 256)

    def forward(self, text):
        return self.head(self.deeper(self.hidden(self.embedding(text).flatten(1))))


def read_text():
    """4.7 MB of Python, as one row of bytes."""
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(source.read_bytes() for source in sources)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()


def batches(rank, steps, first=0, size=64):
    """For every step the bytes that this rank reads, and those that follow: always the same."""
    text, window = read_text(), torch.arange(CONTEXT + 1)
    for step in range(first, steps):
        random = torch.Generator().manual_seed(1_000_003 * step + rank)
        starts = torch.randint(len(text) - CONTEXT, (size, 1), generator=random)
        windows = text[starts + window]
        yield windows[:, :-1], windows[:, -1]


class TextDataset(Dataset):
    """The same text for trainers, which share the samples out themselves."""

    def __init__(self, samples):
        self.text = read_text()
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, number):
        start = number * (len(self.text) - CONTEXT) // self.samples
        return self.text[start : start + CONTEXT], self.text[start + CONTEXT]


def fingerprint(model):
    """Of all weights, to the bit: equal on two ranks if they have the very same model."""
    weights = b"".join(weight.detach().numpy().tobytes() for weight in model.parameters())
    return hashlib.sha256(weights).hexdigest()[:12]
