#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Record real gradients for the codec benchmarks.

Trains three small models for about a hundred steps and stores the raw mini-batch gradients of a few
of them (after backward, before the optimizer) in one safetensors file:

  cnn            as VGG: convolutions, then fully connected layers, on Fashion-MNIST, AdamW
  cnn-batchnorm  convolutions with batch normalization and next to no connected layer, momentum SGD
  transformer    word-level language model on the Python standard library's sources, AdamW

A tensor is named MODEL/STEP/LAYER, for example `transformer/60/blocks.0.attention.qkv.weight`.
Steps count from 1, and step N holds the gradient that the N-th update is made of. Layers whose
first component is `embed`, `position` or `head` are the transformer's embeddings (in `embed`, only
the rows of tokens that the batch contains are not zero); all the others are its body. The file's
metadata repeats this, with sizes and losses.

To use gradients of your own, write a file with the same names after a `loss.backward()`:

    from safetensors.torch import save_file
    grads = {f"mymodel/{step}/{n}": p.grad.float() for n, p in model.named_parameters()}
    save_file(grads, "my_gradients.safetensors")
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

INTERRUPTED = "capture_gradients: interrupted; nothing was written."
INTERRUPTED_STATUS = 128 + signal.SIGINT

try:
    import numpy as np
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file
    from torch import Tensor, nn
    from torch.nn import functional as F
except ImportError as missing:
    sys.exit(f"capture_gradients: {missing}; run: pip install torch numpy safetensors")
except KeyboardInterrupt:
    print(INTERRUPTED, file=sys.stderr)
    sys.exit(INTERRUPTED_STATUS)

DATASET_PACKAGE = "dataset-fashion-mnist"
DATASET_DIR = Path("/usr/share/datasets/fashion-mnist")

CNN_BATCH = 32  # What one of several workers would see of a batch.
BATCHNORM_BATCH = 128
CNN_HIDDEN = 512
VOCABULARY = 8192
CONTEXT = 128
TEXT_BATCH = 16
WIDTH = 256
HEADS = 4
LAYERS = 3
WARMUP_STEPS = 10

TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
UNKNOWN = 0  # The id of <unk>: every token beyond the most frequent VOCABULARY - 1.
# Third-party packages differ from host to host; tests are mostly data and not always installed.
SKIPPED_DIRS = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}

Batch = tuple[Tensor, Tensor]


class CaptureError(Exception):
    """What went wrong and what to do about it, in one sentence for the user."""


# --- Models ---------------------------------------------------------------------------------------


class Cnn(nn.Module):
    """Two VGG stages over 28x28 grey images and, as in VGG, three fully connected layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 1
        for width in (32, 64):
            for _ in range(2):
                layers += [nn.Conv2d(channels, width, kernel_size=3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 7 * 7, CNN_HIDDEN),
            nn.ReLU(),
            nn.Linear(CNN_HIDDEN, CNN_HIDDEN),
            nn.ReLU(),
            nn.Linear(CNN_HIDDEN, 10),
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images).flatten(1))


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


class Attention(nn.Module):
    """Causal multi-head self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Mlp(nn.Module):
    """The position-wise half of a block."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp_norm = nn.LayerNorm(WIDTH)
        self.mlp = Mlp()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """A decoder-only language model with an output head of its own (not tied to the input)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


# --- Data -----------------------------------------------------------------------------------------


def read_idx(path: Path, header_bytes: int) -> np.ndarray:
    """The payload of a gzipped idx-ubyte file, flat."""
    try:
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header_bytes)
    except FileNotFoundError:
        raise CaptureError(
            f"Fashion-MNIST is not installed ({path} is missing); "
            f"run: apt install {DATASET_PACKAGE}"
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise CaptureError(
            f"cannot read {path} ({error}); run: apt install --reinstall {DATASET_PACKAGE}"
        ) from None


def image_batches(seed: int, size: int) -> Iterator[Batch]:
    """Shuffled epochs of Fashion-MNIST without end, pixels scaled to 0..1."""
    pixels = read_idx(DATASET_DIR / "train-images-idx3-ubyte.gz", header_bytes=16)
    images = torch.from_numpy(pixels.copy()).view(-1, 1, 28, 28)
    classes = read_idx(DATASET_DIR / "train-labels-idx1-ubyte.gz", header_bytes=8)
    labels = torch.from_numpy(classes.copy()).long()
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(size):
            if len(chosen) == size:
                yield images[chosen].float() / 255, labels[chosen]


def library_sources() -> list[Path]:
    """The standard library's .py files, in an order that does not depend on the file system."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_DIRS]
        sources += [Path(folder, name) for name in files if name.endswith(".py")]
    sources = [path for path in sources if path.is_file()]  # Drops dangling links.
    if not sources:
        raise CaptureError(f"no Python sources in {root}; install the full standard library")
    return sorted(sources, key=lambda path: path.relative_to(root).as_posix())


def tokenise(sources: list[Path]) -> Tensor:
    """All sources as one row of token ids: words, whitespace runs and punctuation marks."""
    words: list[str] = []
    for path in sources:
        words += TOKEN.findall(path.read_text(encoding="utf-8", errors="replace"))
    frequent = Counter(words).most_common(VOCABULARY - 1)
    ids = {word: number for number, (word, _) in enumerate(frequent, start=UNKNOWN + 1)}
    return torch.tensor([ids.get(word, UNKNOWN) for word in words])


def text_batches(seed: int) -> Iterator[Batch]:
    """Windows at random places of the text, without end; the target is the next token."""
    tokens = tokenise(library_sources())
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(CONTEXT + 1)
    while True:
        starts = torch.randint(len(tokens) - CONTEXT, (TEXT_BATCH, 1), generator=generator)
        windows = tokens[starts + window]
        yield windows[:, :-1], windows[:, 1:].flatten()


# --- Recipes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """How one model is trained, and the steps whose gradients are kept unless told otherwise."""

    model: Callable[[], nn.Module]
    batches: Callable[[int], Iterator[Batch]]
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
        model=Cnn,
        batches=lambda seed: image_batches(seed, CNN_BATCH),
        optimizer=fast_adamw,
        steps=(1, 60, 120, 180),
        description=f"VGG-like CNN, Fashion-MNIST, batch {CNN_BATCH}, AdamW lr 3e-3",
    ),
    "cnn-batchnorm": Recipe(
        model=BatchNormCnn,
        batches=lambda seed: image_batches(seed, BATCHNORM_BATCH),
        optimizer=momentum_sgd,
        steps=(1, 20, 40, 60),
        description=(
            f"CNN with batch normalization, Fashion-MNIST, batch {BATCHNORM_BATCH}, "
            "SGD lr 0.05 momentum 0.9"
        ),
    ),
    "transformer": Recipe(
        model=Transformer,
        batches=text_batches,
        optimizer=adamw,
        steps=(1, 20, 60, 100),
        description=(
            f"{LAYERS}-layer transformer of width {WIDTH}, vocabulary {VOCABULARY}, Python "
            f"standard library sources, batch {TEXT_BATCH}x{CONTEXT}, AdamW lr 1e-3"
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
            sys.stderr.write(f"\r{self._model:<11} [{bar}] {text}\x1b[K")
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
        "embeddings": "transformer layers that start with embed, position or head; others: body",
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
        description="Record real gradients of two small models in one safetensors file.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="""examples:
  capture_gradients.py                                    both models, the default steps
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
    except CaptureError as error:
        print(f"capture_gradients: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(INTERRUPTED, file=sys.stderr)
        return INTERRUPTED_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
