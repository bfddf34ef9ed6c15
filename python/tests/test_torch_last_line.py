"""What rank 0 says when its process ends, whatever started it and whatever it was told."""

from __future__ import annotations

import pytest
from test_torch_install import python

SCRIPT = """
import os, sys
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel as Ddp
from torch.utils.data import DataLoader


def train(rank, folder, line):
    torch.set_num_threads(1)
    # A child of every rank, made before gloo has threads: one that calls Python during a fork
    # leaves the child with a lock that nobody opens.
    batches = iter(DataLoader(torch.ones(4, 64), num_workers=1))
    store = distributed.FileStore(folder + "/store", 2)
    backend = os.environ.get("BACKEND", "gloo")
    distributed.init_process_group(backend, store=store, rank=rank, world_size=2)
    torch.manual_seed(0)
    model = Ddp(nn.Linear(64, 64))
    exec(line)
    for x in batches:
        model(x).sum().backward()
    distributed.destroy_process_group()


if __name__ == "__main__":
    method, *arguments = sys.argv[1:]
    multiprocessing.start_processes(train, arguments, 2, start_method=method)
"""

FIRST = (
    "gradwire: Linear: 1 of 2 layers (98 % of the gradients) travel as grid:step=0.5, the others"
)
COMPRESS = "import gradwire.torch; gradwire.torch.compress(model, 'grid:step=0.5')"
ALL_REDUCE = "import gradwire.torch; gradwire.torch.all_reduce(torch.ones(9))"
LIGHT_IMPORT = "assert 'gradwire.torch' not in sys.modules"


@pytest.fixture
def said(tmp_path):
    def run(line: str, method: str = "fork", **environment: str) -> list[str]:
        """What stderr has of us when two ranks have trained, with this line in their script."""
        script = tmp_path / "script.py"
        script.write_text(SCRIPT)
        code = (
            f"import runpy, sys; sys.argv = [{str(script)!r}, {method!r}, {str(tmp_path)!r}, "
            f"{line!r}]; runpy.run_path({str(script)!r}, run_name='__main__')"
        )
        if method != "fork":  # which import the script again, by its name
            code = (
                f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import script; "
                f"script.multiprocessing.start_processes(script.train, ({str(tmp_path)!r}, "
                f"{line!r}), 2, start_method={method!r})"
            )
        done = python(code, tmp_path, **environment)
        assert done.returncode == 0, done.stderr
        return [each for each in done.stderr.splitlines() if each.startswith("gradwire: ")]

    return run


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_the_last_line_comes_once_however_ranks_are_started(said, method):
    first, last = said(
        "", method, GRADWIRE="1", GRADWIRE_CODEC="grid:step=0.5", GRADWIRE_SUMMARY="1"
    )
    assert first.startswith(FIRST)
    assert last.startswith("gradwire: Linear: 4 steps; rank 0 sent ")


def test_a_script_that_compresses_hears_the_last_line_too(said):
    first, last = said(COMPRESS, GRADWIRE_SUMMARY="1")
    assert first.startswith(FIRST)
    assert last.startswith("gradwire: Linear: 4 steps; rank 0 sent ")


OFF = ["gradwire: nothing was compressed, because GRADWIRE=1 is not set"]


@pytest.mark.parametrize(
    "environment",
    [
        {"GRADWIRE_SUMMARY": "1"},
        {"GRADWIRE_SUMMARY": "1", "GRADWIRE": "0"},
        {"GRADWIRE_CODEC": "sign"},
        {"GRADWIRE_RESIDUAL": "0.01", "GRADWIRE": ""},
    ],
)
def test_settings_without_the_switch_are_no_use_and_that_is_said(said, environment):
    assert said(LIGHT_IMPORT, **environment) == OFF


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_it_is_said_however_ranks_are_started(said, method):
    assert said("", method, GRADWIRE_SUMMARY="1") == OFF


def test_an_import_alone_compresses_nothing(said):
    assert said("import gradwire.torch", GRADWIRE_CODEC="sign") == OFF


@pytest.mark.parametrize(
    "line, environment",
    [
        ("", {}),
        ("", {"GRADWIRE_CODEC": "sign", "GRADWIRE_SUMMARY": "0"}),
        ("", {"GRADWIRE_CODEC": "sign", "GRADWIRE": "0"}),
        ("", {"GRADWIRE_CODEC": "sign", "BACKEND": "gradwire"}),
        (COMPRESS, {"GRADWIRE_CONNECT_TIMEOUT": "60"}),
        (ALL_REDUCE, {"GRADWIRE_CODEC": "sign"}),
    ],
)
def test_nothing_is_said_where_nobody_would_miss_it(said, line, environment):
    assert said(line, **environment) == []


def test_one_reason_is_enough(said):
    (line,) = said("", GRADWIRE_SUMMARY="1", BACKEND="cpu:gloo,cuda:gradwire")
    assert 'write "cpu:gradwire", too' in line


def test_a_rank_without_a_process_group_hears_of_that():
    done = python("import torch", GRADWIRE_SUMMARY="1", RANK="0", WORLD_SIZE="2")
    line = "gradwire: nothing was compressed, because the script made no process group\n"
    assert (done.returncode, done.stderr) == (0, line)


def test_a_process_that_is_no_rank_says_nothing():
    done = python("import torch", GRADWIRE_SUMMARY="1", GRADWIRE_CODEC="sign")
    assert (done.returncode, done.stderr) == (0, "")
