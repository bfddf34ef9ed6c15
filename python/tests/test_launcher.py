"""`gradwire run`: what reaches the workers, what is refused before they start, how it ends."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import uuid
from pathlib import Path

import gradwire
import pytest
from gradwire.torch import run, settings
from jobs import MARK, processes_marked, wait_for_end, wait_until

DEADLINE_SECONDS = 600  # importing torch alone takes half a minute on a busy machine

# An ordinary script that knows nothing of gradwire.
TRAIN = """
    import os, sys
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    for step in range(2):
        model(torch.full((1, 64), float(rank))).sum().backward()
    names = sorted(name for name in os.environ if name.startswith("GRADWIRE"))
    told = {name: os.environ[name] for name in names}
    hook = model._get_ddp_logging_data().get("comm_hook")
    with open(f"{sys.argv[1]}/{rank}", "w") as file:
        print(sys.argv[2:], told, f"hook={hook}", file=file)
    distributed.destroy_process_group()
    sys.exit(int(sys.argv[2]) * rank)
"""

TRAIN_IN_A_FUNCTION = """
    import gc
    import gradwire.torch
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard

    def train():
        model = WRAPPED
        for step in range(2):
            model(torch.ones(1, 64)).sum().backward()

    distributed.init_process_group("gloo")
    train()
    gc.collect()
    distributed.destroy_process_group()
"""

TRAIN_BY_SGD = """
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        model(torch.randn(1, 256)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"own momentum: {optimizer.param_groups[0]['momentum']};")
    distributed.destroy_process_group()
"""

TRAIN_WITHOUT_END = """
    import sys
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    while True:
        model(torch.ones(1, 64)).sum().backward()
        open(f"{sys.argv[1]}/{distributed.get_rank()}", "w").close()
"""


def environment(**more: str) -> dict[str, str]:
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE")}
    package = str(Path(gradwire.__file__).parents[1])
    return kept | {"PYTHONPATH": package, "OMP_NUM_THREADS": "1"} | more


def launcher(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gradwire.torch.run", *arguments]


def written(folder: Path, source: str) -> str:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(source))
    return str(script)


def refused(capsys, *arguments: str) -> str:
    """The sentence, if it exits as argparse does."""
    with pytest.raises(SystemExit) as ended:
        run.main([*arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# Before any worker starts


@pytest.fixture(autouse=True)
def no_worker(monkeypatch, request):
    """Tests in this process never get as far as torchrun."""
    monkeypatch.setattr(run.torchrun, "run", lambda options: pytest.fail("workers were started"))
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE")}
    monkeypatch.setattr(os, "environ", kept)  # a copy, for the launcher writes to it


def test_a_wrong_codec_is_refused_in_its_own_words(capsys):
    line = refused(capsys, "--codec", "zip", "train.py")
    assert "unknown codec 'zip' in 'zip'; there are: none, fp16" in line
    assert line.startswith("gradwire run: error: argument --codec: ")


def test_a_wrong_codec_in_the_environment_is_refused_as_well(capsys, monkeypatch):
    monkeypatch.setenv("GRADWIRE_CODEC", "uniform:bits=99")
    assert "bits takes a whole number from 1 to 8" in refused(capsys, "train.py")


def test_a_warmup_without_residuals_or_below_zero_is_refused(capsys):
    assert "--warmup is for --residual" in refused(capsys, "--warmup", "3", "train.py")
    line = refused(capsys, "--residual", "0.01", "--warmup", "-3", "train.py")
    assert "GRADWIRE_WARMUP is -3; take 0 or more" in line


def test_a_clip_without_residuals_or_below_zero_is_refused(capsys):
    assert "--clip is for --residual" in refused(capsys, "--clip", "1.0", "train.py")
    line = refused(capsys, "--residual", "0.01", "--clip", "-3", "train.py")
    assert "GRADWIRE_CLIP is -3; take 0 or more" in line


def test_residuals_and_feedback_together_are_refused(capsys):
    line = refused(capsys, "--residual", "0.01", "--codec", "sign+feedback", "train.py")
    assert "leave out +feedback of sign+feedback" in line


@pytest.mark.parametrize("told", ["--trace", "GRADWIRE_TRACE"])
def test_a_trace_that_cannot_be_written_is_refused(capsys, monkeypatch, tmp_path, told):
    file = tmp_path / "file"
    file.touch()
    for wrong, why in ((file, "Not a dir"), (file / "in", "Not a dir"), ("/proc/x", "")):
        if told == "--trace":
            line = refused(capsys, told, str(wrong), "train.py")
        else:
            monkeypatch.setenv(told, str(wrong))
            line = refused(capsys, "train.py")
        assert f"no trace can be written to {wrong}: {why}" in line
        assert "name a folder that can be made and written to" in line


def test_a_module_of_the_name_of_the_package_beside_the_script_is_refused(capsys, tmp_path):
    (tmp_path / "gradwire.py").touch()
    line = refused(capsys, str(tmp_path / "train.py"))
    assert f"{tmp_path}/gradwire.py hides the package gradwire from the script" in line


def test_a_script_is_required(capsys):
    assert "training_script" in refused(capsys, "--codec", "fp16")


def test_torch_that_was_told_to_load_nothing_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    line = refused(capsys, "train.py")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading gradwire" in line
    assert "unset it" in line


def test_a_package_that_torch_cannot_find_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # where metadata is looked for
    assert "is not installed, so torch does not load it" in refused(capsys, "train.py")


def test_help_has_examples_and_both_kinds_of_flags(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as ended:
        run.main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for part in ("Examples:\n  gradwire run ", "Every flag of torchrun", "--codec", "--nnodes"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 110


@pytest.mark.parametrize(
    "arguments, told",
    [
        ([], {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "1"}),
        (["--no-summary"], {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "0"}),
        (
            ["--codec", "fp16+feedback", "--exact", "*bias", "--exact", "head.*"],
            {
                "GRADWIRE": "1",
                "GRADWIRE_SUMMARY": "1",
                "GRADWIRE_CODEC": "fp16+feedback",
                "GRADWIRE_EXACT": "*bias,head.*",
            },
        ),
        (
            ["--residual", "0.001", "--warmup", "500", "--clip", "0.1234567"],
            {
                "GRADWIRE": "1",
                "GRADWIRE_SUMMARY": "1",
                "GRADWIRE_CLIP": "0.1234567",
                "GRADWIRE_RESIDUAL": "0.001",
                "GRADWIRE_WARMUP": "500",
            },
        ),
        (
            ["--trace", f"{tempfile.gettempdir()}/runs/.."],
            {"GRADWIRE": "1", "GRADWIRE_SUMMARY": "1", "GRADWIRE_TRACE": tempfile.gettempdir()},
        ),
    ],
)
def test_options_become_the_workers_environment(monkeypatch, arguments, told):
    seen = {}

    def note(options):
        seen.update({n: v for n, v in os.environ.items() if n.startswith("GRADWIRE")})
        seen["workers"] = options.nproc_per_node, options.training_script_args

    monkeypatch.setattr(run.torchrun, "run", note)
    run.main([*arguments, "--nproc_per_node", "3", "train.py", "--codec", "zip"])
    assert seen.pop("workers") == ("3", ["--codec", "zip"])  # what stands behind is the script's
    assert seen == told


def test_the_library_knows_every_variable_that_python_reads():
    names = re.findall(r'"(GRADWIRE_[A-Z_]+)"', Path(settings.__file__).read_text())
    assert {"GRADWIRE_RESIDUAL", "GRADWIRE_CONNECT_TIMEOUT"} <= set(names)
    told = environment(**dict.fromkeys(names, "whatever"))
    subprocess.run([sys.executable, "-c", "import gradwire"], env=told, check=True)


# With workers


def test_residual_compression_takes_the_momentum_of_an_unchanged_script(tmp_path):
    script = written(tmp_path, TRAIN_BY_SGD)
    done = subprocess.run(
        launcher("--residual", "0.01", "--warmup", "1", "--standalone", "--nproc-per-node", "2",
                 script),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("own momentum: 0;") == 2, done.stdout
    assert done.stderr.count("gradwire: Linear: 3 steps; rank 0 sent ") == 1, done.stderr


@pytest.mark.parametrize(
    "wrapped",
    [
        "nn.parallel.DistributedDataParallel(nn.Linear(64, 64))",
        "gradwire.torch.compress(fully_shard(nn.Linear(64, 64)))",
        "fully_shard(nn.Linear(64, 64))",
    ],
    ids=["ddp", "fsdp", "fsdp unasked"],
)
def test_the_summary_has_models_that_ended_before_the_script(tmp_path, wrapped):
    script = written(tmp_path, TRAIN_IN_A_FUNCTION.replace("WRAPPED", wrapped))
    done = subprocess.run(
        launcher("--standalone", "--nproc-per-node", "2", script),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("gradwire: Linear: 2 steps; rank 0 sent ") == 1, done.stderr


TRAIN_ALONE = """
    import torch

    torch.nn.Linear(64, 64)(torch.ones(1, 64)).sum().backward()
"""


@pytest.mark.parametrize(
    "source, ranks, why",
    [
        (TRAIN_ALONE, "1", "there is one rank"),
        (TRAIN_ALONE, "2", "the script made no process group"),
    ],
    ids=["one rank", "no group"],
)
def test_a_script_that_is_not_compressed_hears_why(tmp_path, source, ranks, why):
    done = subprocess.run(
        launcher("--standalone", "--nproc-per-node", ranks, written(tmp_path, source)),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("gradwire: ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith(f"gradwire: nothing was compressed, because {why}")


TRAIN_SHARDED = """
    import torch
    from torch import distributed, nn
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo")
    fully_shard(nn.Linear(64, 64))(torch.ones(1, 64)).sum().backward()
    distributed.destroy_process_group()
"""

TRAIN_ON_A_MESH = """
    import torch
    from torch import distributed, nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2,))  # which makes the process group
    fully_shard(nn.Linear(64, 64), mesh=mesh)(torch.ones(1, 64)).sum().backward()
    del mesh
    distributed.destroy_process_group()
"""


@pytest.mark.parametrize("source", [TRAIN_SHARDED, TRAIN_ON_A_MESH], ids=["group", "mesh"])
def test_an_unchanged_script_with_sharded_weights_is_compressed(tmp_path, source):
    done = subprocess.run(
        launcher(
            "--codec=grid:step=0.5",
            "--standalone",
            "--nproc-per-node=2",
            written(tmp_path, source),
        ),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    first, last = (line for line in done.stderr.splitlines() if line.startswith("gradwire: "))
    assert first.startswith(
        "gradwire: Linear: 1 of 2 layers (98 % of the gradients) travel as grid"
    )
    assert last.startswith("gradwire: Linear: 1 steps; rank 0 sent ")


def test_a_module_of_the_name_of_the_package_is_named_by_workers_too(tmp_path):
    (tmp_path / "gradwire.py").write_text("raise SystemExit('it was imported')")
    script = written(tmp_path, TRAIN)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", script]
    done = subprocess.run(
        [*launch, str(tmp_path), "0"],
        env=environment(GRADWIRE="1"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode != 0
    assert f"ImportError: {tmp_path}/gradwire.py hides the package gradwire" in done.stderr


@pytest.mark.parametrize("code", [0, 7])
def test_an_unchanged_script_is_compressed_and_its_exit_code_is_told(tmp_path, code):
    script = written(tmp_path, TRAIN)
    arguments = ["--codec", "uniform:bits=4", "--nproc-per-node", "2", script]
    done = subprocess.run(
        launcher(*arguments, str(tmp_path), str(code), "--codec", "x"),
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == (1 if code else 0), done.stderr  # torchrun's own
    for rank in "01":
        seen = (tmp_path / rank).read_text()
        assert seen.startswith(f"['{code}', '--codec', 'x'] {{'GRADWIRE': '1', ")
        assert "'GRADWIRE_CODEC': 'uniform:bits=4'" in seen
        assert "hook=gradwire" in seen
    if code:
        assert f"exitcode  : {code}" in done.stderr


def test_an_interrupt_ends_all_workers(tmp_path):
    mark = uuid.uuid4().hex
    script = written(tmp_path, TRAIN_WITHOUT_END)
    with subprocess.Popen(
        launcher("--nproc-per-node", "2", script, str(tmp_path)),
        env=environment(**{MARK: mark}),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A test that runs in the background has inherited that interrupts are ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as job:
        try:
            wait_until(
                lambda: job.poll() or len(list(tmp_path.glob("[01]"))) == 2,
                "a step of each",
                DEADLINE_SECONDS,
            )
            assert len(processes_marked(mark)) == 3
            os.killpg(job.pid, signal.SIGINT)  # as the terminal does
            assert job.wait(DEADLINE_SECONDS) != 0
            wait_for_end(mark, DEADLINE_SECONDS)
        finally:
            for process in processes_marked(mark):
                os.kill(process, signal.SIGKILL)
