"""How torch finds gradwire, and what an import says where the two do not fit."""

import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import gradwire
import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEADLINE_SECONDS = 600


def python(code: str, *path: Path, **environment: str) -> subprocess.CompletedProcess:
    """In a process of its own that has the folders before the package's own on its path."""
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE")}
    folders = [*map(str, path), str(Path(gradwire.__file__).parents[1])]
    return subprocess.run(
        [sys.executable, "-c", code],
        env=kept | {"PYTHONPATH": os.pathsep.join(folders)} | environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


# Metadata


def test_the_tree_has_the_entry_points_of_pyproject():
    for group, points in PROJECT["entry-points"].items():
        found = metadata.entry_points(group=group, name="gradwire")
        assert {point.value for point in found} == {points["gradwire"]}


def test_every_entry_point_can_be_called():
    for group in PROJECT["entry-points"]:
        for point in metadata.entry_points(group=group, name="gradwire"):
            point.load()()


# What `import torch` does of itself

MODULES = "import sys, torch; print(sorted(m for m in sys.modules if m.startswith('gradwire')))"


def test_import_torch_loads_next_to_nothing_of_us():
    done = python(MODULES)
    assert (done.stdout, done.stderr) == ("['gradwire_autoload']\n", "")


def test_import_torch_survives_variables_that_gradwire_refuses():
    done = python(MODULES, GRADWIRE_ISA="mmx", GRADWIRE_NONSENSE="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_the_backend_has_its_name_without_an_import_of_ours():
    done = python("import torch; print(torch.distributed.Backend('gradwire'))")
    assert (done.stdout, done.stderr) == ("gradwire\n", "")


# What a rank says at its end

AT_ONCE = """
import io, os, sys, torch

class Unbuffered(io.StringIO):
    def write(self, text):
        os.write(1, repr(text).encode() + b"\\n")

sys.stderr = Unbuffered()
"""


def test_the_last_line_is_written_at_once_as_other_ranks_write_there_too():
    rank = {"RANK": "0", "WORLD_SIZE": "2"}
    done = python(AT_ONCE, GRADWIRE="1", GRADWIRE_SUMMARY="1", **rank)
    line = "gradwire: nothing was compressed, because the script made no process group\n"
    assert done.stdout == f"{line!r}\n"


# Versions


def fake_torch(folder: Path, version: str) -> Path:
    """A torch that has a version and nothing else: what must be refused is refused before more of
    it is needed."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(f"__version__ = {version!r}\n")
    return folder


def last_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", ["2.14.0", "2.12.1+cu130", "3.13.0", "2.1.3"])
def test_a_torch_of_another_minor_version_is_refused_with_a_sentence(tmp_path, version):
    line = last_line(python("import gradwire.torch", fake_torch(tmp_path, version)))
    assert line.startswith("ImportError: gradwire.torch cannot be imported: gradwire was built for")
    assert f"torch 2.13.0, and this is torch {version}; install torch==2.13.* or build" in line


@pytest.mark.parametrize("version", ["2.13.0", "2.13.1+cu130", "2.13.0a0+git1234"])
def test_a_torch_of_the_same_minor_version_is_taken(monkeypatch, version):
    import torch
    from gradwire.torch import version_check

    monkeypatch.setattr(torch, "__version__", version)
    version_check.check()


def test_without_torch_the_sentence_says_how_to_get_it(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('none here', name='torch')")
    line = last_line(python("import gradwire.torch", tmp_path))
    assert line.endswith("it needs PyTorch; install it with: pip install 'torch==2.13.*'")


def test_a_folder_named_torch_is_not_torch(tmp_path):
    """The source tree has one; where there is no other, Python takes it for an empty package."""
    (tmp_path / "torch").mkdir()
    code = (
        "import sys; sys.path = [p for p in sys.path if 'packages' not in p]; import gradwire.torch"
    )
    assert "it needs PyTorch; install it" in last_line(python(code, tmp_path))


def test_a_module_of_torch_that_is_missing_is_not_hidden(tmp_path):
    (tmp_path / "torch.py").write_text("import no_such_module")
    assert last_line(python("import gradwire.torch", tmp_path)).endswith("'no_such_module'")


def test_a_package_built_without_torch_says_how_to_build_it(monkeypatch):
    from gradwire.torch import version_check

    monkeypatch.setitem(sys.modules, "gradwire.torch._built_for", None)
    with pytest.raises(ImportError, match="was built where there was no PyTorch; build it again"):
        version_check.check()


def test_the_launcher_says_it_in_one_line(tmp_path):
    code = "import runpy, sys; runpy._run_module_as_main('gradwire.torch.run')"
    done = python(code, fake_torch(tmp_path, "2.14.0"))
    assert len(done.stderr.splitlines()) == 1 and "and this is torch 2.14.0" in done.stderr


# The command that pip installs


def command(*arguments: str) -> subprocess.CompletedProcess:
    module, function = PROJECT["scripts"]["gradwire"].split(":")
    code = f"import sys; from {module} import {function}; sys.argv[0] = 'gradwire'; {function}()"
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=kept, capture_output=True, text=True,
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip


def test_the_installed_command_knows_its_version_and_runs_scripts(tmp_path):
    assert command("--version").stdout == f"gradwire {gradwire.__version__}\n"
    script = tmp_path / "script.py"
    script.write_text("import sys; print(*sys.argv[1:]); sys.exit(3)")
    done = command("run", "--nproc-per-node", "1", "--no-summary", str(script), "--version", "-c")
    assert done.stdout == "--version -c\n"
    assert done.returncode != 0


@pytest.mark.parametrize("name", ["bench", "calibrate", "hosts", "inspect", "plan", "schedule"])
def test_what_is_not_installed_is_said_to_be_in_the_tree(name):
    done = command(name, "--json")
    assert done.returncode == 2
    assert f"make build, then build/gradwire {name}" in done.stderr.splitlines()[-1]


def test_every_command_that_an_error_names_brings_what_the_build_needs():
    from gradwire.torch import version_check

    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for line in (version_check.INSTALL, version_check._REBUILD):
        tools, install = line.split(" && ")
        assert {need.split(">=")[0] for need in needed} == set(tools.split()[2:])
        assert "--no-build-isolation" in install
    assert f"\n{version_check.INSTALL}\n" in (ROOT / "README.md").read_text()
