#!/usr/bin/env python3
"""Installs gradwire, builds the examples as a stranger would, and runs them as processes.

    examples_test.py [--build build/release] [--python PYTHON]

PYTHON is one that has NumPy and for which the package was built; without it the example in Python
is left out. Run directly, by ctest or by pytest. Compilers and flags come from the environment.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
PYTHON = sys.executable if __name__ != "__main__" else ""
DEADLINE_SECONDS = 120

CODECS = ["none", "uniform:bits=4,bucket=128", "grid:step=0.5"]
ROW = re.compile(r"(\S+) +([\d.]+) +([\d.]+) +(\d+) +([\d.]+)%")


def run(*command, **options):
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        **options,
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


def build_with_cmake(folder: Path, prefix: Path, language: str) -> Path:
    source = ROOT / "examples" / language
    run("cmake", "-S", source, "-B", folder, f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", folder)
    return folder / "train"


def build_with_pkg_config(program: Path, prefix: Path) -> Path:
    found = {**os.environ, "PKG_CONFIG_PATH": str(next(prefix.glob("lib*/**/pkgconfig")))}
    command = '${CC:-cc} $CFLAGS -std=c99 "$1" -o "$2" $(pkg-config --cflags --libs gradwire) -lm'
    run("sh", "-c", command, "sh", ROOT / "examples/c/train.c", program, env=found)
    return program


class Job:
    """The ranks of one run, each a process, in a folder of their own."""

    def __init__(self, command: list, size: int, transport: str, steps: int, libraries: Path):
        self.folder = tempfile.TemporaryDirectory()
        place = {
            **os.environ,
            "WORLD_SIZE": str(size),
            "PYTHONPATH": str(ROOT / "python"),
            "LD_LIBRARY_PATH": str(libraries),
        }
        arguments = [f"file:{self.folder.name}", transport, str(steps)]
        self.ranks = [
            subprocess.Popen(
                [*map(str, command), *arguments],
                env={**place, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.kill()
            rank.communicate()
        self.folder.cleanup()

    def results(self) -> list[tuple[int, str, str]]:
        """Exit code, output and errors of every rank, once all have ended."""
        printed = [rank.communicate(timeout=DEADLINE_SECONDS) for rank in self.ranks]
        return [(rank.returncode, *texts) for rank, texts in zip(self.ranks, printed, strict=True)]


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not BUILD.exists():
            raise unittest.SkipTest(f"{BUILD} does not exist; run: make build")
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        top = Path(folder.name)
        prefix = top / "prefix"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        cls.libraries = next(prefix.rglob("libgradwire.so")).parent
        cls.commands = {
            "C++": [build_with_cmake(top / "cpp", prefix, "cpp")],
            "C": [build_with_cmake(top / "c", prefix, "c")],
            "C by pkg-config": [build_with_pkg_config(top / "train", prefix)],
        }
        if PYTHON:
            cls.commands["Python"] = [PYTHON, ROOT / "examples/python/train.py"]

    def in_every_language(self, size: int, transport: str, steps: int, check):
        for language, command in self.commands.items():
            with self.subTest(language):
                with Job(command, size, transport, steps, self.libraries) as job:
                    check(job)

    def check_training(self, job: Job):
        results = job.results()
        for code, _, errors in results:
            self.assertEqual((0, ""), (code, errors))
        for _, output, _ in results[1:]:
            self.assertEqual("", output)
        output = results[0][1]
        self.assertTrue(output.endswith("weights are equal to the bit on all ranks\n"), output)
        rows = ROW.findall(output)
        self.assertEqual(CODECS, [row[0] for row in rows], output)
        first, last, sent = ([float(row[i]) for row in rows] for i in (1, 2, 3))
        for i in range(len(CODECS)):
            self.assertAlmostEqual(0.6931, first[i], places=3)  # ln 2: it knows nothing yet
            self.assertLess(last[i], 0.6)
            self.assertAlmostEqual(last[0], last[i], delta=0.01)
        self.assertLess(sent[1], sent[0] / 6)
        self.assertLess(sent[2], sent[1])

    def check_survivors(self, job: Job):
        while not job.ranks[0].stdout.readline().startswith("none "):
            self.assertIsNone(job.ranks[0].poll(), "rank 0 ended before the first codec had")
        job.ranks[1].kill()  # while all train with the next codec
        results = job.results()
        self.assertEqual([1, -signal.SIGKILL, 1], [code for code, _, _ in results])
        for rank in (0, 2):
            self.assertRegex(results[rank][2], f"^rank {rank}: rank 1 failed: .*\n$")

    def check_usage(self, job: Job):
        ((code, output, errors),) = job.results()
        self.assertIn(code, (1, 2))
        self.assertEqual("", output)
        self.assertRegex(errors, r"^usage: \S+ STORE \[TRANSPORT \[STEPS\]\]\n$")

    def test_four_ranks_learn_in_shared_memory(self):
        self.in_every_language(4, "shm", 100, self.check_training)

    def test_two_ranks_learn_over_tcp(self):
        self.in_every_language(2, "tcp", 100, self.check_training)

    def test_survivors_of_a_killed_rank_name_it(self):
        self.in_every_language(3, "auto", 2000, self.check_survivors)

    def test_wrong_arguments_are_explained(self):
        self.in_every_language(1, "auto", 0, self.check_usage)


if __name__ == "__main__":
    for name in ("BUILD", "PYTHON"):
        if f"--{name.lower()}" in sys.argv:
            at = sys.argv.index(f"--{name.lower()}")
            globals()[name] = Path(sys.argv[at + 1])
            del sys.argv[at : at + 2]
    unittest.main()
