"""Data-parallel training by hand: a classifier of documents by their words.

Every rank has documents of its own. In each step it computes the gradient of its part, all ranks
add their gradients up, compressed on the way, and each makes the same update: replicas stay equal
to the bit. Started once per rank, with RANK and WORLD_SIZE in the environment:

    python train.py STORE [TRANSPORT [STEPS]]     for example: python train.py file:/shared/job42
"""

import os
import sys

import gradwire
import numpy as np

VOCABULARY = 8192  # words there are, and parameters of the model
WORDS = 64  # per document
DOCUMENTS = 512  # per rank
LEARNING_RATE = 8


def scores(words, weights):
    """What the model says about each document, before the sigmoid."""
    return weights[words].sum(axis=1) / np.sqrt(WORDS)


def documents_of(rank):
    """Words and labels. As in any language, a few words are frequent; a hidden model labels."""
    hidden = np.random.default_rng(1).standard_normal(VOCABULARY)
    uniform = np.random.default_rng(1000 + rank).random((DOCUMENTS, WORDS))
    words = (VOCABULARY**uniform).astype(int) - 1
    return words, scores(words, hidden) > 0


def gradient_of(words, labels, weights):
    """The mean loss of the documents, and its gradient."""
    probabilities = 1 / (1 + np.exp(-scores(words, weights)))
    loss = -np.log(np.where(labels, probabilities, 1 - probabilities)).mean()
    slopes = (probabilities - labels) / np.sqrt(WORDS) / DOCUMENTS
    gradient = np.bincount(words.ravel(), np.repeat(slopes, WORDS), VOCABULARY)
    return loss.astype(np.float32), gradient.astype(np.float32)


def train(ranks, words, labels, codec, steps):
    """The weights, the loss over all ranks in every step, and the bytes that this rank sent."""
    weights = np.zeros(VOCABULARY, np.float32)
    losses, sent_bytes = [], 0
    for step in range(steps):
        loss, gradient = gradient_of(words, labels, weights)
        loss = loss.reshape(1)

        # Two arrays in one message: the gradient compressed, the loss exact.
        names = ["gradient", "loss"]
        work = ranks.all_reduce([gradient, loss], [codec, "none"], name=names, seed=1, step=step)
        work.wait()

        weights -= LEARNING_RATE / ranks.size * gradient
        losses.append(loss[0] / ranks.size)
        sent_bytes += work.statistics().sent_bytes
    return weights, losses, sent_bytes


def equal_on_all_ranks(ranks, weights):
    """Whether all ranks have the very same weights."""
    everybodys = np.zeros((ranks.size, VOCABULARY), np.float32)
    everybodys[ranks.rank] = weights
    ranks.all_gather(everybodys).wait()
    return all(theirs.tobytes() == weights.tobytes() for theirs in everybodys)


def main(store, transport="auto", steps=200):
    ranks = gradwire.connect(store=store, transport=transport)  # rank and size: the environment's
    words, labels = documents_of(ranks.rank)

    def show(text):
        if ranks.rank == 0:
            print(text, flush=True)

    show(f"{ranks.size} ranks, {DOCUMENTS} documents each, {VOCABULARY} parameters, {steps} steps")
    show(f"{'codec':26} {'first loss':>10} {'last loss':>10} {'bytes/step':>12} {'of fp32':>8}")
    exact_bytes = 0
    for codec in ["none", "uniform:bits=4,bucket=128", "grid:step=0.5"]:
        weights, losses, sent_bytes = train(ranks, words, labels, codec, steps)
        exact_bytes = exact_bytes or max(sent_bytes, 1)
        row = f"{codec:26} {losses[0]:10.4f} {losses[-1]:10.4f} {sent_bytes / steps:12.0f}"
        show(f"{row} {sent_bytes / exact_bytes:8.1%}")
        if not equal_on_all_ranks(ranks, weights):
            sys.exit(f"rank {ranks.rank}: {codec}: weights differ between ranks")
    show("weights are equal to the bit on all ranks")


if __name__ == "__main__":
    arguments = [*sys.argv[1:3], *map(int, sys.argv[3:])]
    if not 1 <= len(arguments) <= 3 or arguments[2:] == [0]:
        sys.exit("usage: train.py STORE [TRANSPORT [STEPS]]")
    try:
        main(*arguments)
    except gradwire.Error as error:  # its text names the rank that is to blame, if one is
        sys.exit(f"rank {os.environ.get('RANK', 0)}: {error}")
