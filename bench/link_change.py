#!/usr/bin/env python3
"""A training whose links become slower in its middle: does it find another plan, and a faster one?

    gradwire hosts --count 2 --link 10gbit --no-prefix -- python bench/link_change.py

Each rank trains with gradwire's automatic plan. Once there is a choice it slows its own link down,
by tc, and trains on until another choice is made. Rank 0 prints one JSON object:

    first_choice, second_choice    in words
    before_seconds                 a step by the first choice, on the first link
    old_plan_seconds               by the first choice, on the second link
    new_plan_seconds               by the second choice, on the second link

Medians over steps. Needs root, in test hosts: the link of the machine itself is never touched.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import gradwire.torch
import torch
import torch.distributed as dist
from gradwire.training import recipes
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

MOST_STEPS = 2000


class Training:
    def __init__(self, folder: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        recipe = recipes.RECIPES["transformer"]
        self.model = DistributedDataParallel(recipe.model(), gradient_as_bucket_view=True)
        gradwire.torch.compress(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.batches = recipe.source.batches(dist.get_rank(), recipe.batch, Path(folder))

    def step(self) -> float:
        start = time.perf_counter()
        inputs, targets = next(self.batches)
        F.cross_entropy(self.model(inputs), targets).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.perf_counter() - start

    def steps(self, count: int) -> float:
        return statistics.median(self.step() for _ in range(count))

    def choice(self) -> str:
        return gradwire.torch.stats(self.model).choice

    def until_choice(self, other_than: str) -> list[float]:
        """Seconds of the steps by the choice that was there; returns at another one."""
        seconds = []
        for _ in range(MOST_STEPS):
            now = self.choice()
            if now and now != other_than:
                return seconds
            taken = self.step()
            if now == other_than:
                seconds.append(taken)
        raise SystemExit(f"no other choice than {other_than!r} in {MOST_STEPS} steps")


def slow_down(rate: str) -> None:
    """This rank's link, outwards; the others see to theirs."""
    device = os.environ["GLOO_SOCKET_IFNAME"]
    shaper = ["tbf", "rate", rate, "burst", "64kb", "limit", "512kb"]
    command = ["tc", "qdisc", "replace", "dev", device, "root", *shaper]
    subprocess.run(command, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rate", default="100mbit", help="of the second link (default: 100mbit)")
    parser.add_argument("--steps", type=int, default=20, help="that are timed (default: 20)")
    options = parser.parse_args()
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        parser.error("run this by gradwire hosts, in whose test hosts links can be changed")
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        return run(Training(folder), options)


def run(training: Training, options: argparse.Namespace) -> int:
    training.until_choice("")
    first = training.choice()
    before = training.steps(options.steps)
    dist.barrier()
    slow_down(options.rate)
    dist.barrier()
    old = training.until_choice(first)
    second = training.choice()
    new = training.steps(options.steps)
    if dist.get_rank() == 0:
        outcome = {
            "first_choice": first,
            "second_choice": second,
            "before_seconds": before,
            "old_plan_seconds": statistics.median(old),
            "new_plan_seconds": new,
        }
        print(json.dumps(outcome, indent=2))
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
