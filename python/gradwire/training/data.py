"""What the models learn from: Fashion-MNIST, and the sources of Python's standard library.

Batches never end, and the same seed gives the same batches. What is held out is never among them.
"""

from __future__ import annotations

import gzip
import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

DATASET_PACKAGE = "dataset-fashion-mnist"
DATASET_DIR = Path("/usr/share/datasets/fashion-mnist")

TOKEN = re.compile(r"\w+|\s+|[^\w\s]")
UNKNOWN = 0  # The id of <unk>: every token beyond the most frequent of a vocabulary.
# Third-party packages differ from host to host; tests are mostly data and not always installed.
SKIPPED_DIRS = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}

Batch = tuple[Tensor, Tensor]
"""Inputs, and the class of each."""


class DataError(Exception):
    """What is missing and what to do about it, in one sentence for the user."""


def read_idx(path: Path, header_bytes: int) -> np.ndarray:
    """The payload of a gzipped idx-ubyte file, flat."""
    try:
        with gzip.open(path) as file:
            return np.frombuffer(file.read(), dtype=np.uint8, offset=header_bytes)
    except FileNotFoundError:
        raise DataError(
            f"Fashion-MNIST is not installed ({path} is missing); "
            f"run: apt install {DATASET_PACKAGE}"
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(
            f"cannot read {path} ({error}); run: apt install --reinstall {DATASET_PACKAGE}"
        ) from None


def fashion_mnist(part: str) -> Batch:
    """All images of a part, "train" or "t10k", as bytes, and their classes."""
    pixels = read_idx(DATASET_DIR / f"{part}-images-idx3-ubyte.gz", header_bytes=16)
    classes = read_idx(DATASET_DIR / f"{part}-labels-idx1-ubyte.gz", header_bytes=8)
    images = torch.from_numpy(pixels.copy()).view(-1, 1, 28, 28)
    return images, torch.from_numpy(classes.copy()).long()


def image_batches(seed: int, size: int) -> Iterator[Batch]:
    """Shuffled epochs of Fashion-MNIST, pixels scaled to 0..1."""
    images, labels = fashion_mnist("train")
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for chosen in order.split(size):
            if len(chosen) == size:
                yield images[chosen].float() / 255, labels[chosen]


def held_out_images(size: int) -> Iterator[Batch]:
    """Those that Fashion-MNIST keeps for tests, once."""
    images, labels = fashion_mnist("t10k")
    for some, classes in zip(images.split(size), labels.split(size), strict=True):
        yield some.float() / 255, classes


def library_sources() -> list[Path]:
    """The standard library's .py files, in an order that does not depend on the file system."""
    root = Path(sysconfig.get_path("stdlib"))
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED_DIRS]
        sources += [Path(folder, name) for name in files if name.endswith(".py")]
    sources = [path for path in sources if path.is_file()]  # Drops dangling links.
    if not sources:
        raise DataError(f"no Python sources in {root}; install the full standard library")
    return sorted(sources, key=lambda path: path.relative_to(root).as_posix())


def tokenise(sources: list[Path], vocabulary: int) -> Tensor:
    """All sources as one row of token ids: words, whitespace runs and punctuation marks."""
    words: list[str] = []
    for path in sources:
        words += TOKEN.findall(path.read_text(encoding="utf-8", errors="replace"))
    frequent = Counter(words).most_common(vocabulary - 1)
    ids = {word: number for number, (word, _) in enumerate(frequent, start=UNKNOWN + 1)}
    return torch.tensor([ids.get(word, UNKNOWN) for word in words])


def text_batches(tokens: Tensor, seed: int, size: int, context: int) -> Iterator[Batch]:
    """Windows at random places of the text; the target is the next token."""
    generator = torch.Generator().manual_seed(seed)
    window = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(tokens) - context, (size, 1), generator=generator)
        windows = tokens[starts + window]
        yield windows[:, :-1], windows[:, 1:].flatten()


def held_out_text(tokens: Tensor, size: int, context: int) -> Iterator[Batch]:
    """Windows one after the other, once."""
    windows = tokens.unfold(0, context + 1, context + 1)
    for some in windows.split(size):
        yield some[:, :-1], some[:, 1:].flatten()


def library_tokens(vocabulary: int, folder: Path) -> Tensor:
    """`tokenise` of the library's sources, kept in a folder, because it takes seconds."""
    kept = folder / f"tokens-{vocabulary}.npy"
    if not kept.exists():
        tokens = tokenise(library_sources(), vocabulary).numpy()
        unfinished = folder / f".{kept.name}.{os.getpid()}.npy"
        np.save(unfinished, tokens.astype(np.int32))
        unfinished.replace(kept)  # so that no reader ever sees half a file
    return torch.from_numpy(np.load(kept)).long()
