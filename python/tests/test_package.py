"""The package itself: refused specs, instruction sets, the environment, silence, examples."""

import doctest
import os
import re
import subprocess
import sys
from importlib import metadata

import gradwire
import pytest


@pytest.mark.parametrize(
    "spec, sentence",
    [
        ("zip", "unknown codec 'zip' in 'zip'; there are: none, fp16, bf16, uniform"),
        ("", "unknown codec ''"),
        (
            "uniform:bit=4",
            "unknown key 'bit' in codec spec 'uniform:bit=4'; uniform takes",
        ),
        ("uniform:bits=9", "bits takes a whole number from 1 to 8"),
        ("uniform:bits=four", "bits takes a whole number from 1 to 8"),
        ("uniform:rounding=up", "rounding takes one of: stochastic, nearest"),
        ("uniform:bits", "'bits' in codec spec 'uniform:bits' is not of the form key=value"),
        ("uniform:bits=4,bits=4", "'bits' is given twice"),
    ],
)
def test_wrong_specs_are_refused_with_what_exists(spec, sentence):
    with pytest.raises(gradwire.Error, match=re.escape(sentence)) as raised:
        gradwire.codec(spec)
    assert raised.value.code == "invalid_spec"


@pytest.mark.parametrize("spec", [None, 4, b"none"])
def test_specs_are_texts(spec):
    with pytest.raises(TypeError):
        gradwire.codec(spec)


# Instruction sets and the environment


def test_isas_can_be_listed_and_chosen():
    before = gradwire.isa()
    assert gradwire.isas()[0] == "scalar" and before in gradwire.isas()
    try:
        for isa in gradwire.isas():
            gradwire.use_isa(isa)
            assert gradwire.isa() == isa
        with pytest.raises(gradwire.Error, match="'mmx' is not available here; choose") as raised:
            gradwire.use_isa("mmx")
        assert raised.value.code == "unavailable"
    finally:
        gradwire.use_isa(before)


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: v for name, v in os.environ.items() if not name.startswith("GRADWIRE_")}
    return subprocess.run(
        [sys.executable, "-c", code], env=kept | environment, capture_output=True, text=True
    )


def test_the_environment_chooses_the_isa():
    done = python("import gradwire; print(gradwire.isa())", GRADWIRE_ISA="scalar")
    assert (done.stdout, done.stderr) == ("scalar\n", "")


def test_a_wrong_isa_stops_the_import_with_a_sentence():
    done = python("import gradwire", GRADWIRE_ISA="mmx")
    assert done.returncode != 0
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: gradwire cannot be imported: GRADWIRE_ISA:")
    assert "choose one of: auto, scalar" in last


def test_an_unknown_variable_stops_the_import():
    done = python("import gradwire", GRADWIRE_ISO="scalar")
    assert "unknown environment variable GRADWIRE_ISO" in done.stderr.splitlines()[-1]


def test_nothing_is_printed_even_when_codecs_outlive_the_module():
    code = "import sys, gradwire; sys.kept = gradwire.codec('none'); sys.frames = [sys.kept] * 3"
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# Documentation


def test_examples_in_the_documentation_are_true():
    result = doctest.testmod(gradwire)
    assert result.attempted > 10 and result.failed == 0


def test_everything_public_is_documented():
    for name in gradwire.__all__:
        assert name == "__version__" or getattr(gradwire, name).__doc__, name
    for name in dir(gradwire.Codec):
        assert name.startswith("_") or getattr(gradwire.Codec, name).__doc__, name


def test_version_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+", gradwire.__version__)
    assert metadata.version("gradwire") == gradwire.__version__
