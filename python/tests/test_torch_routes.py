"""Routes that the hosts of a job cannot take: on two hosts of different sizes, so as root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "gradwire"

ON_HOSTS = """
import os
import gradwire.torch
import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
group = distributed.new_group([0, 1, 2])  # two ranks on a host, and one on the other
if distributed.get_rank() < 3:
    model = DistributedDataParallel(nn.Linear(64, 64), process_group=group)
    gradwire.torch.compress(model, "grid:step=0.5")
    stages = [{"way": "none"}, {"from_step": 1000, "way": "sign+route:hierarchical"}]
    plan = {"gradwire_plan": 1, "layers": [{"layers": "weight", "stages": stages}]}
    for arguments in ({"plan": plan}, {"codec": "sign+route:hierarchical-exact"}):
        with pytest.raises(ValueError) as refused:
            gradwire.torch.compress(model, **arguments)
        print(refused.value, flush=True)
    os.environ["GRADWIRE"] = "1"
    os.environ["GRADWIRE_CODEC"] = "sign+route:hierarchical"
    model = DistributedDataParallel(nn.Linear(64, 64), process_group=group)
    with pytest.raises(ValueError) as refused:
        model(torch.ones(4, 64)).sum().backward()
    print(refused.value, flush=True)
distributed.barrier()
distributed.destroy_process_group()
"""


def test_a_route_that_hosts_cannot_take_is_refused_on_all_ranks_before_a_step(tmp_path):
    (tmp_path / "script.py").write_text(ON_HOSTS)
    done = subprocess.run(
        [PROGRAM, "hosts", "--count", "2", "--ranks-per-host", "2", "--timeout", "240", "--"]
        + [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for rank in range(3):
        lines = [
            line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] the route")
        ]
        found = [line.split(" cannot be taken: it needs the same number")[0] for line in lines]
        assert found == [
            f"[{rank}] the route of weight: hierarchical{more}" for more in ("", "-exact", "")
        ]
