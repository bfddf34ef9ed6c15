"""How each named model is trained.

  vgg          convolutions, then wide connected layers, on Fashion-MNIST: more to send than to
               compute
  resnet       a residual network with batch normalization, on Fashion-MNIST: the opposite
  transformer  a word-level language model, on the sources of Python's standard library
  words        the same with one layer, a large vocabulary and a short list of words to predict:
               nearly all of it is the embedding, and the network decides how long a step takes

Batch sizes are those of one rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from . import data, models

VGG_BATCH = 8
RESNET_BATCH = 16
VOCABULARY = 8192
CONTEXT = 64
TEXT_BATCH = 2
WORDS = 32768
PREDICTED_WORDS = 2048  # the most frequent; all others are unknown
WARMUP_STEPS = 10


@dataclass(frozen=True)
class Recipe:
    """`batches` takes a seed, how many ranks share a batch, and a folder for what takes long to
    make; its batches are those of all ranks together."""

    model: Callable[[], nn.Module]
    batches: Callable[[int, int, Path], Iterator[data.Batch]]
    learning_rates: dict[str, float]  # by the optimizer's name
    description: str


def _vgg() -> nn.Module:
    return models.Vgg(stages=((16,), (32,)), hidden=2048)


def _resnet() -> nn.Module:
    return models.ResNet(widths=(16, 32, 64), blocks=2)


def _transformer() -> nn.Module:
    return models.Transformer(VOCABULARY, CONTEXT, width=256, heads=4, layers=2)


def _words() -> nn.Module:
    return models.Transformer(WORDS, CONTEXT, width=256, heads=4, layers=1, outputs=PREDICTED_WORDS)


def _images(size: int) -> Callable[[int, int, Path], Iterator[data.Batch]]:
    return lambda seed, ranks, _: data.image_batches(seed, size * ranks)


def _text(
    vocabulary: int, size: int, outputs: int
) -> Callable[[int, int, Path], Iterator[data.Batch]]:
    def batches(seed: int, ranks: int, folder: Path) -> Iterator[data.Batch]:
        tokens = data.library_tokens(vocabulary, folder)
        for inputs, targets in data.text_batches(tokens, seed, size * ranks, CONTEXT):
            yield inputs, targets.where(targets < outputs, data.UNKNOWN)

    return batches


RECIPES = {
    "vgg": Recipe(
        model=_vgg,
        batches=_images(VGG_BATCH),
        learning_rates={"adamw": 1e-3, "sgd": 0.02},
        description=f"VGG-like CNN, Fashion-MNIST, {VGG_BATCH} images per rank",
    ),
    "resnet": Recipe(
        model=_resnet,
        batches=_images(RESNET_BATCH),
        learning_rates={"adamw": 3e-3, "sgd": 0.05},
        description=f"residual network, Fashion-MNIST, {RESNET_BATCH} images per rank",
    ),
    "transformer": Recipe(
        model=_transformer,
        batches=_text(VOCABULARY, TEXT_BATCH, outputs=VOCABULARY),
        learning_rates={"adamw": 1e-3, "sgd": 0.05},
        description=f"language model, Python's sources, {TEXT_BATCH}x{CONTEXT} tokens per rank",
    ),
    "words": Recipe(
        model=_words,
        batches=_text(WORDS, size=1, outputs=PREDICTED_WORDS),
        learning_rates={"adamw": 1e-3, "sgd": 0.1},
        description=f"language model, {WORDS} words of Python's sources, {CONTEXT} per rank",
    ),
}


def _adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )


def _momentum_sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=True)


OPTIMIZERS = {"adamw": _adamw, "sgd": _momentum_sgd}


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A linear rise of the learning rate over the first steps."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / WARMUP_STEPS)
    )
