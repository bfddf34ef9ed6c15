"""Data, models and the worker behind `gradwire bench train`, on two ranks of this host."""

import itertools
import json
import os
import subprocess
import sys

import gradwire.torch
import pytest
import torch
from gradwire.training import data, methods, models, recipes, wire

DEADLINE_SECONDS = 300


# Data


def test_images_are_shuffled_epochs_that_a_seed_repeats():
    first = [next(data.image_batches(seed, 10)) for seed in (1, 1, 2)]
    images, labels = first[0]
    assert images.shape == (10, 1, 28, 28) and labels.shape == (10,)
    assert 0 <= images.min() and images.max() <= 1 and images.max() > 0.5
    assert torch.equal(images, first[1][0]) and torch.equal(labels, first[1][1])
    assert not torch.equal(images, first[2][0])


def test_an_epoch_of_images_has_every_class_equally_often():
    batches = itertools.islice(data.image_batches(0, 1000), 60)
    labels = torch.cat([labels for _, labels in batches])
    assert torch.bincount(labels).tolist() == [6000] * 10


def test_a_missing_dataset_is_named_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(data, "DATASET_DIR", tmp_path)
    with pytest.raises(data.DataError, match=f"not installed.*apt install {data.DATASET_PACKAGE}"):
        next(data.image_batches(0, 10))


def test_text_is_windows_whose_target_is_the_next_token():
    tokens = torch.arange(1000)
    inputs, targets = next(data.text_batches(tokens, seed=3, size=4, context=16))
    assert inputs.shape == (4, 16)
    assert torch.equal(targets, (inputs + 1).flatten())


def test_words_keep_their_order_and_rare_ones_are_unknown(tmp_path):
    source = tmp_path / "a.py"
    source.write_text("if x: x = x\n", encoding="utf-8")
    tokens = data.tokenise([source], vocabulary=3)  # unknown, and the two most frequent
    x, space = tokens[2].item(), tokens[1].item()
    assert {x, space} == {1, 2}
    assert tokens.tolist() == [0, space, x, 0, space, x, space, 0, space, x, 0]


def test_prepared_tokens_are_kept(monkeypatch, tmp_path):
    source = tmp_path / "a.py"
    source.write_text("a b a\n", encoding="utf-8")
    monkeypatch.setattr(data, "library_sources", lambda: [source])
    made = data.library_tokens(10, tmp_path)
    monkeypatch.setattr(data, "library_sources", lambda: pytest.fail("made again"))
    assert torch.equal(data.library_tokens(10, tmp_path), made)


def test_held_out_images_are_others_and_come_once():
    held_out = list(data.held_out_images(100))
    assert sum(len(labels) for _, labels in held_out) == 10000
    seen, _ = next(data.image_batches(0, 60000))
    seen_images = {image.numpy().tobytes() for image in seen}
    unseen = sum(
        image.numpy().tobytes() not in seen_images for images, _ in held_out for image in images
    )
    assert unseen > 9900  # some shirts are in both


def test_held_out_text_is_every_word_once():
    inputs, targets = zip(*data.held_out_text(torch.arange(34), size=2, context=16), strict=True)
    assert torch.cat(inputs).flatten().tolist() == [*range(16), *range(17, 33)]
    assert torch.cat(targets).tolist() == [*range(1, 17), *range(18, 34)]


def test_no_training_reads_the_held_out_text(monkeypatch, tmp_path):
    whole = torch.arange(2 * recipes.HELD_OUT_TOKENS)
    monkeypatch.setattr(data, "library_tokens", lambda *_: whole)
    text = recipes.Text(vocabulary=1, outputs=len(whole))
    held_out = torch.cat([inputs.flatten() for inputs, _ in text.held_out(tmp_path)])
    trained = torch.cat(
        [i.flatten() for i, _ in itertools.islice(text.batches(0, 64, tmp_path), 50)]
    )
    assert len(held_out) == 1000 * recipes.CONTEXT
    assert trained.max() < held_out.min()


# Models


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_model_learns_its_data(name, tmp_path):
    torch.manual_seed(0)
    recipe = recipes.RECIPES[name]
    model = recipe.model().train()
    inputs, targets = next(recipe.source.batches(0, recipe.batch, tmp_path))
    optimizer = recipes.OPTIMIZERS["adamw"](model, recipe.learning_rates["adamw"])
    losses = []
    for _ in range(8):  # of one batch, which any model can learn by heart
        loss = torch.nn.functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_the_model_with_much_to_send_has_it_in_its_connected_layers():
    vgg = recipes.RECIPES["vgg"].model()
    connected = models.parameters_of(vgg.classifier)
    assert connected > 0.99 * models.parameters_of(vgg) > 5e6


# Methods


@pytest.mark.parametrize(
    "method, ours",
    [
        ("gloo", False),
        ("fp16", False),
        ("bf16", False),
        ("powersgd", False),
        ("powersgd:rank=4", False),
        ("grid:step=0.5", True),
        ("sign+feedback", True),
        ("residual", True),
    ],
)
def test_methods_of_gradwire_are_told_from_those_of_torch(method, ours):
    assert methods.is_gradwire(method) is ours


@pytest.mark.parametrize("link", [None, "1gbit"])
def test_residual_compression_decides_for_the_link_that_there_is(monkeypatch, link):
    told = {}
    monkeypatch.setattr(gradwire.torch, "residual", lambda *_, **options: told.update(options))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    methods.add_residual(None, optimizer, "residual:density=0.01", 0, link)
    assert told.get("link") == link
    assert (told["density"], told["momentum"]) == (0.01, 0.9)


def test_the_kernel_counts_what_leaves_an_interface():
    assert wire.sent_bytes("lo") >= 0
    with pytest.raises(LookupError, match="no interface gradwire0"):
        wire.sent_bytes("gradwire0")


# The worker


def train(folder, method: str, *options: str, ranks: int = 2) -> tuple[list[dict], dict]:
    """The lines of its steps, and the last one."""
    command = [sys.executable, "-m", "gradwire.training.worker", "--store", str(folder / "store")]
    command += ["--data", str(folder), "--method", method, "--steps", "6", *options]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GRADWIRE")}
    processes = [
        subprocess.Popen(
            command,
            env=environment | {"RANK": str(rank), "WORLD_SIZE": str(ranks)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        printed = [process.communicate(timeout=DEADLINE_SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, errors) in zip(processes, printed, strict=True):
        assert process.returncode == 0, errors
    assert [output for output, _ in printed[1:]] == [""] * (ranks - 1)
    *steps, result = map(json.loads, printed[0][0].splitlines())
    return steps, result


@pytest.fixture(scope="module")
def exact(tmp_path_factory) -> dict:
    return train(tmp_path_factory.mktemp("exact"), "gloo", "--model", "vgg")[1]


def test_every_step_is_told_and_the_result_sums_them_up(tmp_path):
    steps, result = train(tmp_path, "gloo", "--model", "resnet", "--optimizer", "sgd")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    assert all(line["step_seconds"] > 0 and line["wire_bytes"] > 0 for line in steps)
    assert len(result["losses"]) == len(result["seconds"]) == 6
    assert result["final_loss"] == pytest.approx(result["losses"][-1])  # one fifth of six
    assert result["step_seconds"] == sorted(result["seconds"][3:])[1]  # the first half is untimed
    assert 0 < result["compute_seconds"]
    exposed = result["step_seconds"] - result["compute_seconds"]
    assert result["exposed_seconds"] == pytest.approx(exposed)


def test_exact_gradients_of_two_ranks_are_all_on_the_wire(exact):
    assert exact["wire_bytes_from"] == "lo"
    # Others may use the loopback, too.
    assert exact["wire_bytes_per_step"] > 0.99 * 4 * exact["parameters"]


@pytest.mark.parametrize("method, off", [("bf16", 0.01), ("grid:step=0.5", 0.1)])
def test_a_method_trains_as_exact_gradients_do(tmp_path, exact, method, off):
    result = train(tmp_path, method, "--model", "vgg")[1]
    assert result["losses"][0] == pytest.approx(exact["losses"][0])
    assert result["losses"] == pytest.approx(exact["losses"], rel=off)
    assert result["losses"][2:] != exact["losses"][2:]
    if method != "bf16":
        assert result["wire_bytes_from"] == "gradwire"
        assert 0 < result["wire_bytes_per_step"] < 0.2 * 4 * exact["parameters"]


@pytest.mark.parametrize("method", ["powersgd", "sign+feedback"])
def test_a_rough_method_trains(tmp_path, exact, method):
    result = train(tmp_path, method, "--model", "vgg")[1]
    assert result["losses"][0] == pytest.approx(exact["losses"][0])
    assert result["losses"] != exact["losses"]
    assert all(0 < loss < 10 for loss in result["losses"])


def test_residual_compression_takes_momentum_over_and_is_tested(tmp_path):
    options = ("--model", "vgg", "--optimizer", "sgd", "--batch", "4", "--evaluate")
    result = train(tmp_path, "residual:density=0.01,warmup=2,values=int8", *options)[1]
    assert result["replicas_equal"]
    assert 0.05 < result["held_out_accuracy"] < 0.9
    assert 0 < result["held_out_loss"] < 10
    assert 0 < result["wire_bytes_per_step"] < 0.02 * 4 * result["parameters"]
