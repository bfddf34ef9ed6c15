#!/usr/bin/env python3
"""Installs gradwire into a fresh environment by the very lines that a user is told, and uses it.

    wheel_test.py            as make wheel-test; takes minutes: everything is compiled

The lines are README's and the ImportError's. Each begins with what a user has: nothing, or PyTorch
alone. The environment is made by the Python that runs this, in a temporary folder, and is gone
afterwards.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
import unittest
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
INSTALL = re.search("^pip install .*", (ROOT / "README.md").read_text(), re.MULTILINE).group()
BUILD_TOOLS = ("scikit-build-core", "nanobind")

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

    def shell(self, line: str, folder: Path | None = None) -> subprocess.CompletedProcess:
        """As a user types it where the environment is active."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GRADWIRE") and name not in ("PYTHONPATH", "VIRTUAL_ENV")
        }
        kept["PATH"] = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        names_of_compilers = {"CC": "cc", "CXX": "c++"}  # by which ccache has what make build made
        return subprocess.run(
            line,
            shell=True,
            cwd=folder or self.folder,
            env=kept | names_of_compilers | {"OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )

    def succeed(self, line: str, folder: Path | None = None) -> str:
        done = self.shell(line, folder)
        self.assertEqual(0, done.returncode, line + "\n" + done.stdout + done.stderr)
        return done.stdout

    def python(self, code: str) -> subprocess.CompletedProcess:
        return self.shell(f"python -c {shlex.quote(code)}")

    def packages(self) -> set[str]:
        lines = self.succeed("pip list --format=freeze").splitlines()
        return {line.split("==")[0].replace("_", "-") for line in lines}

    def forget(self, *names: str):
        """Leaves what somebody has who installed PyTorch and did nothing else for us."""
        self.succeed(f"pip uninstall --yes {' '.join(names)}")
        self.assertEqual(set(), self.packages() & set(names))

    def assert_import_refused(self, pattern: str) -> str:
        sentence = self.python("import gradwire.torch").stderr.splitlines()[-1]
        self.assertRegex(sentence, "ImportError: .*" + pattern)
        done = self.shell("gradwire run train.py")
        self.assertNotEqual(0, done.returncode)
        self.assertRegex(done.stderr, pattern)
        self.assertEqual(1, len(done.stderr.splitlines()), done.stderr)
        return sentence

    def test_the_lines_that_a_user_is_told_install_it(self):
        self.succeed(INSTALL, ROOT)
        self.without_torch()
        self.forget(*BUILD_TOOLS)
        self.succeed(f"pip install {requirement('torch')}")
        sentence = self.assert_import_refused("was built where there was no PyTorch")
        self.succeed(sentence.split("with: ")[1], ROOT)
        self.with_torch()
        self.forget("gradwire", "numpy", *BUILD_TOOLS)
        self.succeed(INSTALL, ROOT)
        self.with_torch()

    def without_torch(self):
        self.assertRegex(self.succeed("gradwire --version"), r"gradwire \d")
        self.succeed("python -c \"import gradwire; gradwire.codec('grid')\"")
        self.assert_import_refused("needs PyTorch; install it with")
        done = self.shell("gradwire bench codec")
        self.assertEqual(2, done.returncode)
        self.assertRegex(done.stderr, "make build, then build/gradwire bench")

    def with_torch(self):
        (self.folder / "train.py").write_text(textwrap.dedent(TRAIN))
        output = self.succeed("gradwire run --nproc-per-node 2 train.py")
        self.assertEqual(["hook gradwire"] * 2, output.splitlines())
        done = self.python("import torch; torch.__version__ = '2.99.0'; import gradwire.torch")
        self.assertRegex(done.stderr.splitlines()[-1], "ImportError: .*and this is torch 2.99.0")


if __name__ == "__main__":
    sys.exit(unittest.main())
