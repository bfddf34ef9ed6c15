"""Runs every example of examples/torch as its own text says, with two ranks, and checks its claims.

What a run prints is all that is looked at: losses by step, a fingerprint of every rank's weights,
tables of what was sent, and the line that GRADWIRE_SUMMARY=1 asks for.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "torch"
DEADLINE_SECONDS = 600  # importing torch alone takes half a minute on a busy machine

PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
GRADWIRE_RUN = [*PYTHON, "-m", "gradwire.torch.run", *TORCHRUN[3:]]
MPIRUN = ["mpirun", "--oversubscribe", "-n", "2"]

# Ranks share a pipe, and torchrun starts them with `python -u`, which writes a text and the end of
# its line one after the other. Another rank's text may come between: no pattern asks for the end.
STEP = re.compile(r"step +\d+  loss ([\d.]+)")
WEIGHTS = re.compile(r"rank \d.*? weights ([0-9a-f]{12})")
SUMMARY = re.compile(r"gradwire: \w+: (\d+) steps; rank 0 sent .* \(([\d.]+) times less\)")
LAYER = re.compile(r"^(\S+) +(\S+)? +\d+ +[\d.]+ \w+ +[\d.]+ \w+ +([\d.]+) +[\d.-]+", re.M)


def environment(**more: str) -> dict[str, str]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE")}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ours = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    # What "auto" chooses depends on the machine, and these trainings are short.
    usual = {"GRADWIRE_CODEC": "grid:step=0.5"}
    return kept | root | ours | usual | more


def started(command: list[str], script: str, *arguments: str, **variables: str):
    return subprocess.Popen(
        [*command, script, *arguments],
        cwd=EXAMPLES,
        env=environment(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(job: subprocess.Popen) -> tuple[str, str]:
    """What it printed, and its errors."""
    try:
        printed, errors = job.communicate(timeout=DEADLINE_SECONDS)
    finally:
        job.kill()
    assert job.returncode == 0, f"{job.args} failed:\n{printed}{errors}"
    return printed, errors


def run(command: list[str], script: str, *arguments: str, **variables: str) -> tuple[str, str]:
    return ended(started(command, script, *arguments, **variables))


def weights_of_all_ranks(printed: str, ranks: int = 2) -> str:
    """The fingerprint, if it is the same on all ranks."""
    found = WEIGHTS.findall(printed)
    assert len(found) == ranks, printed
    assert len(set(found)) == 1, printed
    return found[0]


def check_learned(printed: str) -> float:
    """The last loss; the first is that of a model which knows nothing, ln 256 and a little."""
    losses = [float(loss) for loss in STEP.findall(printed)]
    assert len(losses) == 6, printed
    assert 5.4 < losses[0] < 6.2, printed
    assert losses[-1] < 3.2, printed
    return losses[-1]


def layers(printed: str) -> dict[str, tuple[str, float]]:
    """Way and ratio of each, from the table of statistics."""
    rows = LAYER.findall(printed)
    assert rows, printed
    return {name: (codec.split(",")[0], float(ratio)) for name, codec, ratio in rows}


def check_compressed_by_grid(printed: str, prefix: str = "") -> None:
    found = layers(printed)
    for name in ("embedding.weight", "hidden.0.weight", "deeper.0.weight", "head.weight"):
        codec, ratio = found[prefix + name]
        assert codec == "grid"
        assert ratio > 6
    assert found[prefix + "head.bias"][0] == "none"
    assert found["all"][1] > 8


def check_summary(errors: str, steps: int) -> None:
    (said,) = SUMMARY.findall(errors)
    assert int(said[0]) == steps
    assert float(said[1]) > 6


# -------------------------------------------------------------------------------------------------
# DistributedDataParallel


def check_metric_is_exact(printed: str) -> None:
    """The mean of both ranks' losses is that of float32, to the bit."""
    losses = re.findall(r"own loss ([\d.]+), mean ([\d.]+)", printed)
    assert len(losses) == 2
    own = torch.tensor([float(loss) for loss, _ in losses]) / 2
    assert all(torch.tensor(float(mean)) == own.sum() for _, mean in losses), printed


def test_01_an_unchanged_script_and_02_the_backend_give_the_same_bits():
    plain, nothing_said = run(TORCHRUN, "01_unchanged.py", GRADWIRE_SUMMARY="1")
    assert not SUMMARY.findall(nothing_said)
    launched, summary = run(GRADWIRE_RUN, "01_unchanged.py")
    by_variable, same_summary = run(TORCHRUN, "01_unchanged.py", GRADWIRE="1", GRADWIRE_SUMMARY="1")
    for printed in (plain, launched, by_variable):
        check_metric_is_exact(printed)
    assert abs(check_learned(plain) - check_learned(launched)) < 0.1
    check_summary(summary, steps=100)
    check_summary(same_summary, steps=100)
    compressed = weights_of_all_ranks(launched)
    assert compressed != weights_of_all_ranks(plain)
    assert compressed == weights_of_all_ranks(by_variable)

    by_backend, _ = run(TORCHRUN, "02_backend.py")
    check_learned(by_backend)
    assert f"weights ['{compressed}', '{compressed}']: equal" in by_backend


def test_03_codecs_by_layer():
    printed, _ = run(TORCHRUN, "03_compress.py")
    check_learned(printed)
    weights_of_all_ranks(printed)
    found = layers(printed)
    assert found["embedding.weight"] == ("none", 1.0)
    assert found["hidden.0.weight"][0] == "grid"
    assert found["head.weight"][0] == "uniform"
    assert found["deeper.0.weight"][0] == "sign+feedback"
    # Five of a hundred steps are exact, so no layer gets beyond twenty.
    assert 5 < found["head.weight"][1] < found["deeper.0.weight"][1] < 20
    assert found["all"][1] > 4


def test_04_fsdp2():
    printed, _ = run(TORCHRUN, "04_fsdp2.py")
    check_learned(printed)
    check_compressed_by_grid(printed)
    (ratio,) = re.findall(r"all ranks: .* \(([\d.]+) times less\)", printed)
    assert float(ratio) > 8


def test_05_a_resumed_run_equals_the_whole_one(tmp_path):
    whole, _ = run(TORCHRUN, "05_checkpoint.py", f"{tmp_path}/whole", "40")
    parts, _ = run(TORCHRUN, "05_checkpoint.py", f"{tmp_path}/parts", "15")
    assert weights_of_all_ranks(whole) != weights_of_all_ranks(parts)
    parts, _ = run(TORCHRUN, "05_checkpoint.py", f"{tmp_path}/parts", "40")
    assert "steps 15 to 40" in parts
    assert weights_of_all_ranks(whole) == weights_of_all_ranks(parts)


def test_10_residual_compression():
    printed, _ = run(TORCHRUN, "10_residual.py")
    check_learned(printed)
    weights_of_all_ranks(printed)
    found = layers(printed)
    for name in ("hidden.0.weight", "deeper.0.weight", "head.weight"):
        codec, ratio = found[name]
        assert codec.startswith("topk:density=0.01")
        assert ratio > 20  # a fifth of the steps sends all
    assert found["embedding.weight"][0] == "grid+feedback:momentum=0.9"
    assert found["all"][1] > 15


# -------------------------------------------------------------------------------------------------
# Other launchers


def free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def test_06_ranks_of_mpirun_and_of_srun():
    compressed = {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "1"}
    printed, errors = run(
        [*MPIRUN, *PYTHON], "06_slurm_mpirun.py", MASTER_PORT=free_port(), **compressed
    )
    check_summary(errors, steps=40)

    # What srun sets; Slurm itself is not asked for.
    place = {"SLURM_NTASKS": "2", "MASTER_PORT": free_port(), **compressed}
    tasks = [
        started(PYTHON, "06_slurm_mpirun.py", SLURM_PROCID=rank, SLURM_LOCALID=rank, **place)
        for rank in ("0", "1")
    ]
    printed_by_tasks = "".join(ended(task)[0] for task in tasks)
    assert weights_of_all_ranks(printed) == weights_of_all_ranks(printed_by_tasks)


def test_06_the_batch_script_is_a_shell_script():
    subprocess.run(["bash", "-n", EXAMPLES / "06_slurm.sbatch"], check=True)


# -------------------------------------------------------------------------------------------------
# Trainers


def test_07_accelerate():
    printed, _ = run(TORCHRUN, "07_accelerate.py")
    check_learned(printed)
    weights_of_all_ranks(printed)
    check_compressed_by_grid(printed)


def test_08_transformers(tmp_path):
    printed, errors = run(GRADWIRE_RUN, "08_transformers.py", str(tmp_path))
    losses = [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", printed)]
    assert len(losses) == 3, printed
    assert losses[2] < losses[0] - 0.5 < 4, printed
    weights = weights_of_all_ranks(printed)
    check_summary(errors, steps=60)
    shutil.rmtree(tmp_path / "checkpoint-60")  # as if it had been stopped after the one before
    printed, errors = run(GRADWIRE_RUN, "08_transformers.py", str(tmp_path))
    assert weights_of_all_ranks(printed) == weights
    assert "gradwire: GPT2LMHeadModel: 20 steps; rank 0 sent " in errors  # of this run


@pytest.mark.parametrize("launcher", [TORCHRUN, PYTHON], ids=["torchrun", "python"])
def test_09_lightning(launcher):
    printed, _ = run(launcher, "09_lightning.py")
    check_learned(printed)
    weights_of_all_ranks(printed)
    check_compressed_by_grid(printed, prefix="model.")


def test_every_example_is_tested():
    numbers = {path.name[:2] for path in EXAMPLES.glob("[0-9]*")}
    tested = {name[5:7] for name in globals() if re.match(r"test_\d\d_", name)} | {"02"}
    assert numbers == tested
