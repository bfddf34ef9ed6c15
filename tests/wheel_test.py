#!/usr/bin/env python3
"""Installs gradwire with pip into a fresh environment, first without PyTorch, and uses it.

    wheel_test.py            as make wheel-test; takes minutes: everything is compiled

The environment is made by the Python that runs this, in a temporary folder, and is gone afterwards.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import unittest
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TRAIN = """
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    model(torch.ones(1, 64)).sum().backward()
    print("hook", model._get_ddp_logging_data().get("comm_hook"), flush=True)
    distributed.destroy_process_group()
"""


def requirement(name: str) -> str:
    """As it is pinned for development."""
    for file in sorted(ROOT.glob("python/requirements-*.txt")):
        for line in file.read_text().splitlines():
            if line.startswith(f"{name}=="):
                return line
    raise LookupError(name)


class Wheel(unittest.TestCase):
    """One environment, and its states one after another: each install takes minutes."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gradwire-wheel-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        venv.create(self.folder / "venv", with_pip=True)
        self.bin = self.folder / "venv" / "bin"

    def run_in_it(self, program: str, *arguments: str) -> subprocess.CompletedProcess:
        """As in a shell that knows nothing of this tree."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GRADWIRE") and name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        names_of_compilers = {"CC": "cc", "CXX": "c++"}  # by which ccache has what make build made
        return subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.folder,
            env=kept | names_of_compilers | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )

    def succeed(self, program: str, *arguments: str) -> str:
        done = self.run_in_it(program, *arguments)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return done.stdout

    def pip(self, *arguments: str):
        self.succeed("python", "-m", "pip", "install", "--quiet", *arguments)

    def install(self):
        self.pip("--no-build-isolation", "--force-reinstall", "--no-deps", str(ROOT))

    def assert_import_refused(self, pattern: str):
        done = self.run_in_it("python", "-c", "import gradwire.torch")
        self.assertRegex(done.stderr.splitlines()[-1], "ImportError: .*" + pattern)
        done = self.run_in_it("gradwire", "run", "train.py")
        self.assertNotEqual(0, done.returncode)
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)

    def test_environment_without_torch_then_with(self):
        self.pip(*map(requirement, ("numpy", "nanobind", "scikit-build-core")))
        self.install()
        self.without_torch()
        self.pip(requirement("torch"))
        self.assert_import_refused("was built where there was no PyTorch")
        self.install()
        self.with_torch()

    def without_torch(self):
        self.assertRegex(self.succeed("gradwire", "--version"), r"gradwire \d")
        self.succeed("python", "-c", "import gradwire; gradwire.codec('grid')")
        self.assert_import_refused("needs PyTorch; install it with")

    def with_torch(self):
        (self.folder / "train.py").write_text(textwrap.dedent(TRAIN))
        output = self.succeed("gradwire", "run", "--nproc-per-node", "2", "train.py")
        self.assertEqual(["hook gradwire"] * 2, output.splitlines())
        bench = "bench allreduce -b 64K -e 64K --repeat 1 --codec none --compare gloo --json"
        row = json.loads(self.succeed("gradwire", *bench.split()))["rows"][0]
        self.assertGreater(row["gloo_seconds"], 0)
        fake = "import torch; torch.__version__ = '2.99.0'; import gradwire.torch"
        done = self.run_in_it("python", "-c", fake)
        self.assertRegex(done.stderr.splitlines()[-1], "ImportError: .*and this is torch 2.99.0")


if __name__ == "__main__":
    sys.exit(unittest.main())
