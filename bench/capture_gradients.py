#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record real gradients for the codec benchmarks.

Trains small models for a few hundred steps and stores the raw mini-batch gradients of some of them
(after backward, before the optimizer) in one safetensors file:

  cnn            as VGG: convolutions, then fully connected layers, on Fashion-MNIST, AdamW
  cnn-batchnorm  convolutions with batch normalization and next to no connected layer, momentum SGD
  resnet         residual network with batch normalization, on Fashion-MNIST, AdamW
  transformer    word-level language model on the Python standard library's sources, AdamW
  lstm           recurrent language model on the same sources, AdamW

A tensor is named MODEL/STEP/LAYER, for example `transformer/60/blocks.0.attention.qkv.weight`.
Steps count from 1, and step N holds the gradient that the N-th update is made of. Layers whose
first component is `embed`, `position` or `head` are a language model's embeddings (in `embed`, only
the rows of tokens that the batch contains are not zero); all the others are its body. The file's
metadata repeats this, with sizes and losses.

To use gradients of your own, write a file with the same names after a `loss.backward()`:

    from safetensors.torch import save_file
    grads = {f"mymodel/{step}/{n}": p.grad.float() for n, p in model.named_parameters()}
    save_file(grads, "my_gradients.safetensors")
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

INTERRUPTED = "capture_gradients: interrupted; nothing was written."
INTERRUPTED_STATUS = 128 + signal.SIGINT

try:
    import torch
    from gradwire.training import data, models, recipes
    from safetensors import SafetensorError
    from safetensors.torch import save_file
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as missing:
    sys.exit(f"capture_gradients: {missing}; run: make build, pip install torch safetensors")
except KeyboardInterrupt:
    print(INTERRUPTED, file=sys.stderr)
    sys.exit(INTERRUPTED_STATUS)

CNN_BATCH = 32  # What one of several workers would see of a batch.
BATCHNORM_BATCH = 128
RESNET_BATCH = 32
CNN_HIDDEN = 512
VOCABULARY = 8192
CONTEXT = 128
TEXT_BATCH = 16
WIDTH = 256
HEADS = 4
LAYERS = 3
LSTM_BATCH = 8
WARMUP_STEPS = 10


class CaptureError(Exception):
    """What went wrong and what to do about it, in one sentence for the user."""


# --- Models ---------------------------------------------------------------------------------------


def vgg() -> nn.Module:
    return models.Vgg(stages=((32, 32), (64, 64)), hidden=CNN_HIDDEN)


def transformer() -> nn.Module:
    return models.Transformer(VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS)


class BatchNormCnn(nn.Module):
    """Three stages with batch normalization, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for stage in ((32, 32), (64, 64), (128, 128, 128)):
            for width in stage:
                conv = nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)
                layers += [conv, nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels * 3 * 3, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


# --- Recipes --------------------------------------------------------------------------------------


def text_batches(seed: int, vocabulary: int, size: int, context: int) -> Iterator[data.Batch]:
    tokens = data.tokenise(data.library_sources(), vocabulary)
    return data.text_batches(tokens, seed, size, context)


@dataclass(frozen=True)
class Recipe:
    """How one model is trained, and the steps whose gradients are kept unless told otherwise."""

    model: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[data.Batch]]
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    steps: tuple[int, ...]
    description: str


def momentum_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.01)


def fast_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)


RECIPES = {
    "cnn": Recipe(
        model=vgg,
        batches=lambda seed: data.image_batches(seed, CNN_BATCH),
        optimizer=fast_adamw,
        steps=(1, 60, 120, 180),
        description=f"VGG-like CNN, Fashion-MNIST, batch {CNN_BATCH}, AdamW lr 3e-3",
    ),
    "cnn-batchnorm": Recipe(
        model=BatchNormCnn,
        batches=lambda seed: data.image_batches(seed, BATCHNORM_BATCH),
        optimizer=momentum_sgd,
        steps=(1, 20, 40, 60),
        description=(
            f"CNN with batch normalization, Fashion-MNIST, batch {BATCHNORM_BATCH}, "
            "SGD lr 0.05 momentum 0.9"
        ),
    ),
    "resnet": Recipe(
        model=recipes.RECIPES["resnet"].model,
        batches=lambda seed: data.image_batches(seed, RESNET_BATCH),
        optimizer=fast_adamw,
        steps=(1, 20, 100, 300),
        description=f"residual network, Fashion-MNIST, batch {RESNET_BATCH}, AdamW lr 3e-3",
    ),
    "transformer": Recipe(
        model=transformer,
        batches=lambda seed: text_batches(seed, VOCABULARY, TEXT_BATCH, CONTEXT),
        optimizer=adamw,
        steps=(1, 20, 60, 100),
        description=(
            f"{LAYERS}-layer transformer of width {WIDTH}, vocabulary {VOCABULARY}, Python "
            f"standard library sources, batch {TEXT_BATCH}x{CONTEXT}, AdamW lr 1e-3"
        ),
    ),
    "lstm": Recipe(
        model=recipes.RECIPES["lstm"].model,
        batches=lambda seed: text_batches(
            seed, recipes.LSTM_VOCABULARY, LSTM_BATCH, recipes.CONTEXT
        ),
        optimizer=fast_adamw,
        steps=(1, 20, 100, 300),
        description=(
            f"LSTM, vocabulary {recipes.LSTM_VOCABULARY}, Python standard library sources, "
            f"batch {LSTM_BATCH}x{recipes.CONTEXT}, AdamW lr 3e-3"
        ),
    ),
}


# --- Progress -------------------------------------------------------------------------------------


class Progress:
    """A bar on a terminal; elsewhere a line every `LINE_SECONDS` and at the last step."""

    BAR_WIDTH = 24
    LINE_SECONDS = 15.0

    def __init__(self, model: str, total: int) -> None:
        self._model = model
        self._total = total
        self._started = time.monotonic()
        self._last_line = self._started
        self._on_terminal = sys.stderr.isatty()

    def show(self, step: int, loss: float) -> None:
        now = time.monotonic()
        seconds_left = (now - self._started) / step * (self._total - step)
        text = f"step {step}/{self._total}  loss {loss:.3f}  ETA {seconds_left:.0f} s"
        if self._on_terminal:
            filled = self.BAR_WIDTH * step // self._total
            bar = "#" * filled + "-" * (self.BAR_WIDTH - filled)
            sys.stderr.write(f"\r{self._model:<13} [{bar}] {text}\x1b[K")
            sys.stderr.flush()
        elif step == self._total or now - self._last_line >= self.LINE_SECONDS:
            self._last_line = now
            print(f"{self._model}: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self._on_terminal:
            sys.stderr.write("\n")


# --- Capture --------------------------------------------------------------------------------------


@dataclass
class Capture:
    """What one model's training left behind."""

    gradients: dict[str, Tensor]
    losses: dict[int, float]
    parameters: int


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """A linear rise of the learning rate over the first steps."""
    return torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda done: min(1.0, (done + 1) / WARMUP_STEPS)
    )


def gradients_of(model: nn.Module, prefix: str) -> dict[str, Tensor]:
    """Copies, in the plain row-major layout that safetensors asks for."""
    row_major = torch.contiguous_format
    return {
        f"{prefix}/{layer}": parameter.grad.detach().float().clone(memory_format=row_major)
        for layer, parameter in model.named_parameters()
    }


def capture(name: str, recipe: Recipe, steps: tuple[int, ...], seed: int) -> Capture:
    """Trains up to the last of `steps` and keeps the gradients of each of them."""
    torch.manual_seed(seed)
    model = recipe.model().train()
    optimizer = recipe.optimizer(model)
    schedule = warm_up(optimizer)
    batches = recipe.batches(seed)
    result = Capture({}, {}, sum(p.numel() for p in model.parameters()))
    first = next(batches)  # Loads the data, so that the ETA covers training alone.
    progress = Progress(name, max(steps))
    try:
        for step in range(1, max(steps) + 1):
            inputs, targets = first if step == 1 else next(batches)
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            if step in steps:
                result.gradients |= gradients_of(model, f"{name}/{step}")
                result.losses[step] = round(loss.item(), 4)
            optimizer.step()
            schedule.step()
            progress.show(step, loss.item())
    finally:
        progress.close()
    return result


def describe(captures: dict[str, Capture], options: argparse.Namespace) -> dict[str, str]:
    """The file's metadata: safetensors takes strings only."""
    metadata = {
        "content": "raw mini-batch gradients, float32, after backward and before the optimizer",
        "names": "MODEL/STEP/LAYER; steps count from 1; LAYER is the PyTorch parameter name",
        "embeddings": "text layers that start with embed, position or head; others: body",
        "generator": "bench/capture_gradients.py",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "seed": str(options.seed),
        "threads": str(options.threads),
    }
    for name, result in captures.items():
        metadata[f"{name}.description"] = RECIPES[name].description
        metadata[f"{name}.parameters"] = str(result.parameters)
        metadata[f"{name}.loss_by_step"] = json.dumps(result.losses)
    return metadata


def current_umask() -> int:
    umask = os.umask(0o077)  # Only setting it tells what it was.
    os.umask(umask)
    return umask


def save(gradients: dict[str, Tensor], metadata: dict[str, str], output: Path) -> None:
    """Writes beside the output and renames, so that no reader ever sees half a file."""
    unfinished = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        save_file(gradients, unfinished, metadata)
        unfinished.chmod(0o666 & ~current_umask())  # safetensors makes it private to the user.
        os.replace(unfinished, output)
    except (OSError, SafetensorError) as error:
        raise CaptureError(f"cannot write {output}: {error}") from None
    finally:
        unfinished.unlink(missing_ok=True)


def check_writable(output: Path) -> None:
    """Fails before the training, not after it."""
    if output.is_dir():
        raise CaptureError(f"--output {output} is a directory; name a file")
    folder = output.absolute().parent
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise CaptureError(f"cannot write {output}: {folder} is not a writable folder")


# --- Command line ---------------------------------------------------------------------------------


def model_list(text: str) -> list[str]:
    names = list(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in RECIPES:
            raise argparse.ArgumentTypeError(f"no model {name!r}; choose from {','.join(RECIPES)}")
    return names


def positive(text: str) -> int:
    if not re.fullmatch(r"0*[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def step_list(text: str) -> tuple[int, ...]:
    return tuple(sorted({positive(part) for part in text.split(",")}))


def parse_options() -> argparse.Namespace:
    defaults = "; ".join(f"{n}: {','.join(map(str, r.steps))}" for n, r in RECIPES.items())
    parser = argparse.ArgumentParser(
        description="Record real gradients of small models in one safetensors file.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  capture_gradients.py                                    all models, the default steps
  capture_gradients.py --models cnn --steps 1,10          ten steps of the CNN, two of them kept
  capture_gradients.py --seed 7 --output data/seed7.safetensors

Tensors are named MODEL/STEP/LAYER. The top of this script shows how to fill such a file with
gradients of your own. The same seed, threads, versions and CPU give the same gradients.""",
    )
    add = parser.add_argument
    add("--output", type=Path, default=Path("data/gradients.safetensors"), metavar="FILE",
        help="file to write (default: %(default)s)")  # fmt: skip
    add("--models", type=model_list, default=list(RECIPES), metavar="LIST",
        help=f"which models to train (default: {','.join(RECIPES)})")  # fmt: skip
    add("--steps", type=step_list, metavar="LIST",
        help=f"steps to keep, for every chosen model (default: {defaults})")  # fmt: skip
    add("--seed", type=int, default=0, metavar="N",
        help="seed of weights and batches (default: %(default)s)")  # fmt: skip
    add("--threads", type=positive, default=2, metavar="N",
        help="compute threads; the number changes rounding (default: %(default)s)")  # fmt: skip
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    check_writable(options.output)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    captures: dict[str, Capture] = {}
    gradients: dict[str, Tensor] = {}
    for name in options.models:
        recipe = RECIPES[name]
        captures[name] = capture(name, recipe, options.steps or recipe.steps, options.seed)
        gradients |= captures[name].gradients
    save(gradients, describe(captures, options), options.output)
    megabytes = options.output.stat().st_size / 1e6
    print(f"{options.output}: {len(gradients)} gradients, {megabytes:.1f} MB")


def main() -> int:
    options = parse_options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # Leaves as tidily as Ctrl-C does.
    try:
        run(options)
    except (CaptureError, data.DataError) as error:
        print(f"capture_gradients: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return INTERRUPTED_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
