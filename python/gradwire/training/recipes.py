"""How each named model is trained.

  vgg          convolutions, then wide connected layers, on Fashion-MNIST: more to send than to
               compute
  cnn          the same with narrow connected layers, for trainings of many steps
  resnet       a residual network with batch normalization, on Fashion-MNIST: the opposite
  transformer  a word-level language model, on the sources of Python's standard library
  words        the same with one layer, a large vocabulary and a short list of words to predict:
               nearly all of it is the embedding, and the network decides how long a step takes
  lstm         a small recurrent language model on the same sources, for trainings of many steps,
               and for SGD, by which transformers learn slowly

Batch sizes are those of one rank, unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from . import data, models

VGG_BATCH = 8
CNN_BATCH = 16
RESNET_BATCH = 16
VOCABULARY = 8192
CONTEXT = 64
TEXT_BATCH = 2
WORDS = 32768
PREDICTED_WORDS = 2048  # the most frequent; all others are unknown
LSTM_VOCABULARY = 2048
LSTM_BATCH = 4
WARMUP_STEPS = 10
HELD_OUT_BATCH = 100
HELD_OUT_TOKENS = 1000 * (CONTEXT + 1)


@dataclass(frozen=True)
class Recipe:
    """`source.batches` takes a seed, a size, and a folder for what takes long to make;
    `source.held_out` takes the folder and gives what `batches` never does, to find out what was
    learnt."""

    model: Callable[[], nn.Module]
    batch: int  # images, or rows of text, per rank
    source: Images | Text
    learning_rates: dict[str, float]  # by the optimizer's name
    description: str


def _vgg() -> nn.Module:
    return models.Vgg(stages=((16,), (32,)), hidden=2048)


def _cnn() -> nn.Module:
    return models.Vgg(stages=((16,), (32,)), hidden=512)


def _resnet() -> nn.Module:
    return models.ResNet(widths=(16, 32, 64), blocks=2)


def _transformer() -> nn.Module:
    return models.Transformer(VOCABULARY, CONTEXT, width=256, heads=4, layers=2)


def _words() -> nn.Module:
    return models.Transformer(WORDS, CONTEXT, width=256, heads=4, layers=1, outputs=PREDICTED_WORDS)


def _lstm() -> nn.Module:
    return models.Lstm(LSTM_VOCABULARY, width=128, hidden=256)


class Images:
    """Fashion-MNIST, which comes with images to hold out."""

    def batches(self, seed: int, size: int, _: Path) -> Iterator[data.Batch]:
        return data.image_batches(seed, size)

    def held_out(self, _: Path) -> Iterator[data.Batch]:
        return data.held_out_images(HELD_OUT_BATCH)


@dataclass(frozen=True)
class Text:
    """Of the sources, the end is held out. Rare words are not worth predicting."""

    vocabulary: int
    outputs: int

    def batches(self, seed: int, size: int, folder: Path) -> Iterator[data.Batch]:
        tokens = data.library_tokens(self.vocabulary, folder)[:-HELD_OUT_TOKENS]
        return map(self._known, data.text_batches(tokens, seed, size, CONTEXT))

    def held_out(self, folder: Path) -> Iterator[data.Batch]:
        tokens = data.library_tokens(self.vocabulary, folder)[-HELD_OUT_TOKENS:]
        return map(self._known, data.held_out_text(tokens, HELD_OUT_BATCH, CONTEXT))

    def _known(self, batch: data.Batch) -> data.Batch:
        inputs, targets = batch
        return inputs, targets.where(targets < self.outputs, data.UNKNOWN)


_IMAGES = Images()
_ALL_WORDS = Text(VOCABULARY, outputs=VOCABULARY)
_FEW_WORDS = Text(WORDS, outputs=PREDICTED_WORDS)
_FREQUENT_WORDS = Text(LSTM_VOCABULARY, outputs=LSTM_VOCABULARY)

RECIPES = {
    "vgg": Recipe(
        model=_vgg,
        batch=VGG_BATCH,
        source=_IMAGES,
        learning_rates={"adamw": 1e-3, "sgd": 0.02},
        description=f"VGG-like CNN, Fashion-MNIST, {VGG_BATCH} images per rank",
    ),
    "cnn": Recipe(
        model=_cnn,
        batch=CNN_BATCH,
        source=_IMAGES,
        learning_rates={"adamw": 1e-3, "sgd": 0.02},
        description=f"small CNN, Fashion-MNIST, {CNN_BATCH} images per rank",
    ),
    "resnet": Recipe(
        model=_resnet,
        batch=RESNET_BATCH,
        source=_IMAGES,
        learning_rates={"adamw": 3e-3, "sgd": 0.05},
        description=f"residual network, Fashion-MNIST, {RESNET_BATCH} images per rank",
    ),
    "transformer": Recipe(
        model=_transformer,
        batch=TEXT_BATCH,
        source=_ALL_WORDS,
        learning_rates={"adamw": 1e-3, "sgd": 0.05},
        description=f"language model, Python's sources, {TEXT_BATCH}x{CONTEXT} tokens per rank",
    ),
    "words": Recipe(
        model=_words,
        batch=1,
        source=_FEW_WORDS,
        learning_rates={"adamw": 1e-3, "sgd": 0.1},
        description=f"language model, {WORDS} words of Python's sources, {CONTEXT} per rank",
    ),
    "lstm": Recipe(
        model=_lstm,
        batch=LSTM_BATCH,
        source=_FREQUENT_WORDS,
        learning_rates={"adamw": 3e-3, "sgd": 0.5},
        description=f"LSTM, Python's sources, {LSTM_BATCH}x{CONTEXT} tokens per rank",
    ),
}


def _adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )


def _momentum_sgd(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, fused=True)


OPTIMIZERS = {"adamw": _adamw, "sgd": _momentum_sgd}


def schedule(optimizer: torch.optim.Optimizer, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    """The learning rate rises over the first steps, then falls to zero at the end, linearly."""
    rise = min(WARMUP_STEPS, steps)

    def factor(done: int) -> float:
        return min((done + 1) / rise, (steps - done) / max(1, steps - rise + 1))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
