"""The blocks in C are the formulas; where the library cannot be built, the cells say why and run without."""

import copy
import ctypes
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from social_xlstm.config import XLSTMConfig
from social_xlstm.model.cells import build_stack
from social_xlstm.model.cpu import library, operators
from social_xlstm.model.mlstm import MLSTMBlock

available = pytest.mark.skipif(library.library() is None, reason="no C library on this machine")


def stack_of(config: XLSTMConfig, seed: int) -> nn.Module:
    """A stack with random weights everywhere; most biases start at zero, where a wrong one would not show."""
    torch.manual_seed(seed)
    stack = build_stack(config, "fast")
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return stack


def run(stack: nn.Module, x: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """The output and all gradients."""
    x = x.detach().requires_grad_()
    stack.zero_grad(set_to_none=True)
    output = stack(x)
    output.backward(upstream)
    of_weights = {
        name: torch.zeros_like(p) if p.grad is None else p.grad for name, p in stack.named_parameters()
    }
    return {"output": output.detach(), "input": x.grad} | of_weights


def without_library(stack: nn.Module, x: Tensor, upstream: Tensor) -> dict[str, Tensor]:
    """The same by torch's operations."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operators, "applies", lambda *given: False)
        return run(stack, x, upstream)


def far(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> dict[str, float]:
    """What is further off than 1e-5 (the output) or 1e-4 (gradients), relative to what is larger than one."""
    found = {}
    for name, tensor in expected.items():
        off = ((tensor - actual[name]).abs().max() / tensor.abs().max().clamp(min=1.0)).item()
        if not off <= (1e-5 if name == "output" else 1e-4):
            found[name] = off
    return found


@available
@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    heads=st.sampled_from([1, 2, 3, 4, 8]),
    head_width=st.sampled_from([2, 4, 7, 12, 16, 24, 33]),
    block=st.sampled_from([1, 2, 4, 8, 16]),
    sequences=st.integers(1, 31),
    steps=st.sampled_from([1, 2, 3, 5, 12, 13, 40]),
    kernel=st.integers(2, 5),
    slstm_at=st.sampled_from([(), (0,)]),
    threads=st.sampled_from([1, 2, 3]),
    seed=st.integers(0, 10_000),
)
def test_the_library_computes_the_formulas(
    heads, head_width, block, sequences, steps, kernel, slstm_at, threads, seed
):
    """Any heads, widths, blocks and lengths, whole vectors or not, by any number of threads."""
    width = heads * head_width
    inner = -(-2 * width // 64) * 64
    if inner % heads or inner // heads % block:
        return
    config = XLSTMConfig(
        width, 1, slstm_at, num_heads=heads, conv_kernel=kernel, qkv_block_size=block, dropout=0.0
    )
    stack = stack_of(config, seed)
    x, upstream = torch.randn(2, sequences, steps, width)
    # In float64: torch's float32 is as far from the truth as the library's.
    expected = without_library(copy.deepcopy(stack).double(), x.double(), upstream.double())
    torch.set_num_threads(threads)
    try:
        assert {} == far(expected, run(stack, x, upstream))
    finally:
        torch.set_num_threads(1)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The C functions called from here on."""
    called, call = [], operators._call
    monkeypatch.setattr(operators, "_call", lambda name, *rest: (called.append(name), call(name, *rest)))
    return called


@available
def test_it_is_the_library_that_runs(monkeypatch):
    """Float32 on the CPU goes through C, both ways; float64, long windows and odd widths do not."""
    called = counted(monkeypatch)
    stack = stack_of(XLSTMConfig(16, 2, (1,), dropout=0.0), 0)
    run(stack, *torch.randn(2, 3, 12, 16))
    forward = ["mlstm_forward", "slstm_forward", "ffn_forward"]
    assert [*forward, "ffn_backward", "slstm_backward", "mlstm_backward"] == called
    called.clear()
    stack(torch.randn(1, operators._MOST_STEPS + 1, 16))
    MLSTMBlock(16, 4, inner=24, kernel=4, block=2, dropout=0.0, num_blocks=1)(torch.randn(3, 12, 16))
    with pytest.raises(RuntimeError, match=r"(?i)dtype|type"):  # read as float32 it would be nonsense
        stack(torch.randn(3, 12, 16, dtype=torch.float64))
    stack.double()(torch.randn(3, 12, 16, dtype=torch.float64))
    assert [] == called


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
@pytest.mark.parametrize("shape", [(3, 12, 8), (3, 12, 17), (12, 16), (2, 3, 12, 16), (16, 3, 12, 16)])
def test_inputs_that_do_not_fit_are_not_given_to_c(monkeypatch, slstm_at, shape):
    """It would read and write beyond them; torch refuses them with the reason."""
    called = counted(monkeypatch)
    block = stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.0), 0).blocks[0]
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        block(torch.randn(shape))
    assert [] == called


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_the_same_threads_give_the_same_bits(slstm_at):
    """Runs can be repeated; other thread counts differ by rounding only."""
    stack = stack_of(XLSTMConfig(32, 1, slstm_at, dropout=0.0), 0)
    x, upstream = torch.randn(2, 61, 12, 32)
    first = run(stack, x, upstream)
    torch.set_num_threads(2)
    try:
        two, again = run(stack, x, upstream), run(stack, x, upstream)
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(two[name], again[name]) for name in two)
    assert torch.equal(first["output"], two["output"])
    assert {} == far(first, two)


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_strided_inputs_and_gradients_are_taken(slstm_at):
    """Transposed memory is read as what it means; an expanded upstream gradient too."""
    block = stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.0), 0).blocks[0]  # no norm behind it to tidy up
    x, upstream = torch.randn(12, 5, 16).transpose(0, 1), torch.randn(1, 1, 16).expand(5, 12, 16)
    assert {} == far(without_library(block, x, upstream), run(block, x, upstream))


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_a_nan_comes_out_as_one(slstm_at):
    """It poisons its own sequence from its step on and every weight's gradient, and no other sequence."""
    stack = stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.0), 0)
    x, upstream = torch.randn(2, 5, 12, 16)
    x[2, 4, 7] = torch.nan
    found = run(stack, x, upstream)
    poisoned = torch.zeros(5, 12, dtype=torch.bool)
    poisoned[2, 4:] = True
    assert torch.equal(poisoned, found["output"].isnan().all(-1))
    assert torch.equal(poisoned, found["output"].isnan().any(-1))
    assert found["input"][2].isnan().any()
    assert not found["input"][[0, 1, 3, 4]].isnan().any()
    assert all(found[name].isnan().any() for name, _ in stack.named_parameters())


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
def test_a_nan_in_any_weight_shows_where_torch_shows_it(slstm_at):
    """No function of the gates and no comparison passes one over."""
    x, upstream = torch.randn(2, 5, 12, 16)
    for name, _ in stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.0), 0).blocks[0].named_parameters():
        block = stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.0), 0).blocks[0]
        with torch.no_grad():
            block.get_parameter(name).view(-1)[0] = torch.nan
        # In the last step, which sees all: in torch's products a NaN reaches earlier steps too, times zero.
        expected = without_library(block, x, upstream)["output"][:, -1].isnan()
        assert expected.any(), name
        assert torch.equal(expected, run(block, x, upstream)["output"][:, -1].isnan()), name


@available
@pytest.mark.parametrize("slstm_at", [(), (0,)])
@pytest.mark.parametrize("strided", [False, True])
def test_dropout_draws_what_it_drew(slstm_at, strided):
    """The same seed drops the same channels with and without the library."""
    stack = stack_of(XLSTMConfig(16, 1, slstm_at, dropout=0.3), 0)
    x, upstream = torch.randn(2, 5, 12, 16)
    x = x.transpose(0, 1).contiguous().transpose(0, 1) if strided else x
    torch.manual_seed(7)
    expected = without_library(stack, x, upstream)
    torch.manual_seed(7)
    assert {} == far(expected, run(stack, x, upstream))


def child(code: str, cache: Path, **environment: str) -> subprocess.Popen:
    """A process of its own, with its own cache folder."""
    told = os.environ | {"XDG_CACHE_HOME": str(cache)} | environment
    imports = "import logging, torch; logging.basicConfig(level=logging.INFO)\n"
    imports += (
        "from social_xlstm.config import XLSTMConfig\nfrom social_xlstm.model.cells import build_stack\n"
    )
    imports += "from social_xlstm.model.cpu import library\n"
    return subprocess.Popen(
        [sys.executable, "-c", imports + code],
        env=told,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


TRAIN = """
stack = build_stack(XLSTMConfig(16, 2, (1,)), "fast")
for _ in range(2):
    stack(torch.randn(3, 12, 16)).sum().backward()
print("ran", library.library() is not None)
"""


def fake_compiler(folder: Path, script: str) -> str:
    """An executable that stands for the compiler."""
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


@pytest.mark.parametrize(
    ("environment", "reason"),
    [({"CC": "/nowhere/cc"}, "no C compiler"), ({"SOCIAL_XLSTM_NATIVE": "0"}, "SOCIAL_XLSTM_NATIVE=0")],
    ids=["no compiler", "switched off"],
)
def test_without_the_library_the_cells_run_and_say_why_once(tmp_path, environment, reason):
    """The reason is logged at INFO, one time; nothing is raised and nothing is written."""
    output, errors = (running := child(TRAIN, tmp_path, **environment)).communicate()
    assert (0, "ran False\n") == (running.returncode, output), errors
    assert 1 == errors.count(reason)
    assert "INFO" in errors
    assert not list(tmp_path.rglob("*.so"))


def test_a_broken_compiler_is_quoted(tmp_path):
    """Its first line with an error is in the log."""
    script = "echo 'x.c:1: note: hm' >&2; echo 'x.c:1: error: no such thing' >&2; exit 1"
    output, errors = child(TRAIN, tmp_path, CC=fake_compiler(tmp_path, script)).communicate()
    assert "ran False\n" == output
    assert 1 == errors.count("x.c:1: error: no such thing")
    assert "note" not in errors


def test_a_compiler_that_writes_nonsense_is_no_accident(tmp_path):
    """What cannot be loaded is refused with the loader's words."""
    # Asked for its version it must not write a file of that name into the folder at hand.
    script = 'for last; do :; done; case "$last" in -*) ;; *) echo nonsense > "$last";; esac'
    output, errors = child(TRAIN, tmp_path, CC=fake_compiler(tmp_path, script)).communicate()
    assert "ran False\n" == output, errors
    assert 1 == errors.count("the cells run without their C library")


@available
def test_two_processes_may_build_at_once(tmp_path):
    """Both run, one library is left, nothing half-written beside it, and the folder is the user's alone."""
    both = [child(TRAIN, tmp_path) for _ in range(2)]
    told = [running.communicate() for running in both]
    assert ["ran True\n"] * 2 == [output for output, _ in told], told
    folder = tmp_path / "social_xlstm"
    (built,) = folder.iterdir()
    assert ctypes.CDLL(str(built)).mlstm_forward
    assert 0o700 == stat.S_IMODE(folder.stat().st_mode)


@available
def test_one_openmp_runtime_is_loaded(tmp_path):
    """The library uses torch's threads, not others beside them."""
    code = TRAIN + "import re; maps = open('/proc/self/maps').read()\n"
    code += "print(len(set(re.findall(r'/\\S*lib[gi]?omp\\S*', maps))))"
    output, errors = child(code, tmp_path).communicate()
    assert "ran True\n1\n" == output, errors


@available
@pytest.mark.parametrize("kind", ["world-writable", "a file"])
def test_a_cache_that_others_could_write_to_is_not_trusted(tmp_path, kind):
    """Nothing is loaded from there; the library is built in a temporary folder instead."""
    folder = tmp_path / "social_xlstm"
    if kind == "a file":
        folder.write_text("")
    else:
        folder.mkdir()
        folder.chmod(0o777)
    output, errors = child(TRAIN, tmp_path).communicate()
    assert "ran True\n" == output, errors
    assert not list(tmp_path.rglob("*.so"))


def test_the_reason_is_told_once(monkeypatch, caplog):
    """Asking again does not log again."""
    monkeypatch.setenv(library.SWITCH, "0")
    library.library.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            assert [None, None] == [library.library(), library.library()]
        assert 1 == len(caplog.records)
    finally:
        library.library.cache_clear()
