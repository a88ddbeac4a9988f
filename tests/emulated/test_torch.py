"""torch's CUDA build on an emulated card: allocator, profiler, graphs, compiled kernels, extensions, two cards."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.emulated.runs import ROOT, emulate, on_torch

pytestmark = pytest.mark.cuda_torch

COUNTING = """
import ctypes, json, torch
from torch import nn
library = ctypes.CDLL(None)
NAMES = "kernel library memset h2d d2h d2d h2h graph sync alloc free host_alloc refused".split()
def totals():
    counts, sizes = (ctypes.c_uint64 * 13)(), (ctypes.c_uint64 * 13)()
    library.perfsuite_emulated_totals(counts, sizes)
    return dict(zip(NAMES, counts))
def counted(step):
    torch.cuda.synchronize(); before = totals(); step(); after = totals()
    return {name: after[name] - before[name] for name in NAMES if after[name] != before[name]}
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)).cuda()
batch = torch.randn(256, 64).pin_memory()
def training(**options):
    optimizer = torch.optim.AdamW(model.parameters(), **options)
    def step():
        optimizer.zero_grad(); model(batch.to("cuda", non_blocking=True)).pow(2).mean().backward(); optimizer.step()
    for _ in range(3): step()
    return step
"""


def test_torch_sees_the_card_and_says_that_it_is_emulated():
    """Name, capability, multiprocessors and memory of the table's card, as often as asked."""
    found = on_torch(
        "import json, torch; p = torch.cuda.get_device_properties(1); "
        "print(json.dumps([torch.cuda.device_count(), p.name, p.major, p.minor, p.multi_processor_count, p.total_memory]))",
        card="2xa10",
    )
    assert [2, "NVIDIA A10 (emulated)", 8, 6, 72, 24_000_000_000] == found


@pytest.mark.parametrize(("options", "kernels"), [("", 24), ("fused=True", 18), ("foreach=False", 48)])
def test_a_step_launches_what_it_launches_on_a_card(options, kernels):
    """The optimizers' forms: multi-tensor, fused, and one parameter after the other."""
    found = on_torch(f"{COUNTING}\nprint(json.dumps(counted(training({options}))))")
    assert kernels == found["kernel"] + found["library"]
    assert (1, 1) == (found["h2d"], found["d2d"])
    assert "sync" not in found


def test_two_processes_count_the_same():
    """Nothing about a count depends on time or addresses."""
    code = f"{COUNTING}\nprint(json.dumps([counted(training()), torch.cuda.max_memory_allocated()]))"
    assert on_torch(code) == on_torch(code)


def test_reading_a_value_waits_and_a_pinned_copy_does_not():
    """`.item()` is a copy and a wait; a pinned, non-blocking copy is one copy; a plain one waits."""
    item, pinned, plain = on_torch(
        COUNTING
        + """
there = torch.ones(8, device="cuda"); here = torch.ones(65536); held = here.pin_memory()
print(json.dumps([counted(lambda: there[0].item()), counted(lambda: held.to("cuda", non_blocking=True)), counted(lambda: here.to("cuda"))]))
"""
    )
    assert (1, 1) == (item["d2h"], item["sync"])
    assert {"h2d": 1} == {name: count for name, count in pinned.items() if name != "alloc"}
    assert (1, 1) == (plain["h2d"], plain["sync"])


def test_a_graph_is_one_launch_with_its_nodes():
    """Capture on a side stream, replay: the nodes are those of the step."""
    eager, replayed = on_torch(
        COUNTING
        + """
step = training(capturable=True); eager = counted(step); graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph): step()
print(json.dumps([eager, counted(graph.replay)]))
"""
    )
    assert 1 == replayed["graph"]
    assert (eager["kernel"], eager["library"]) == (replayed["kernel"], replayed["library"])


def test_the_profiler_sees_kernels_with_their_launches():
    """CUPTI's records: every kernel has the call that launched it, though Kineto has no name for CUDA 13's."""
    kernels, joined, operators = on_torch(
        COUNTING
        + """
step = training()
from perfsuite.devices.profiler import profile
found = profile(torch, step, [1], torch.cuda.synchronize, with_device=True)
kernels = [i for i in found if i.is_on_device and not i.name.startswith("Mem")]
launches = {i.id for i in found if i.is_call}
print(json.dumps([len(kernels), sum(i.id in launches for i in kernels), sum(i.name.startswith("aten::") and i.is_call for i in found)]))
"""
    )
    assert (24, 24, 0) == (kernels, joined, operators)


def test_the_shortest_profile_is_whole():
    """The first of a process, over before two clocks could be told apart: three times, as it depends on time."""
    code = """
import json, torch
from torch.profiler import profile
weight = torch.ones(8, device="cuda"); weight.mul(2); torch.cuda.synchronize()
with profile() as seen: weight.mul(2)
print(json.dumps(sum(e.device_type != torch.autograd.DeviceType.CPU for e in seen.events())))
"""
    assert [1, 1, 1] == [on_torch(code) for _ in range(3)]


def test_too_large_a_tensor_is_torch_s_own_error():
    """With the card's capacity in its words."""
    words = on_torch("""
import json, torch
try: torch.empty(2**36, device="cuda")
except torch.cuda.OutOfMemoryError as error: print(json.dumps(str(error)))
""")
    assert "GPU 0 has a total capacity of 22.35 GiB" in words


def test_what_is_not_there_is_an_error_and_is_named_at_the_end():
    """A Fourier transform needs cuFFT: torch's error, and the function's name when the command ends."""
    ran = emulate(sys.executable, "-c", "import torch; torch.fft.fft(torch.ones(8, device='cuda'))")
    assert 1 == ran.returncode
    assert "cuFFT error" in ran.stderr
    assert "the emulated GPU does not have, and refused: cufftCreate" in ran.stderr


@pytest.mark.slow
def test_compiled_functions_show_their_triton_kernels():
    """torch.compile generates, compiles and launches them through the driver."""
    pytest.importorskip("triton")
    ran = emulate(
        *(sys.executable, "-c"),
        "import torch\nf = torch.compile(lambda x: (x.sin() + x.cos()).sum())\nf(torch.ones(1024, device='cuda'))",
        flags=["--counts"],
    )
    assert 0 == ran.returncode, ran.stderr
    assert "triton_" in ran.stderr


@pytest.mark.slow
def test_a_custom_extension_runs_and_is_counted(tmp_path):
    """A kernel of one's own, compiled by nvcc and loaded as an extension of torch."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    (tmp_path / "own.cu").write_text("""
#include <cuda_runtime.h>
__global__ void double_them(float *values, int count) { int i = blockIdx.x * 256 + threadIdx.x; if (i < count) values[i] *= 2; }
extern "C" int run(float *values, int count) { double_them<<<(count + 255) / 256, 256>>>(values, count); return cudaGetLastError(); }
""")
    target = tmp_path / "own.so"
    command = [nvcc, "-shared", "-cudart", "shared", "-Xcompiler", "-fPIC", "-o", target, tmp_path / "own.cu"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"nvcc does not compile here: {ran.stderr[:200]}")
    code = f"""
import ctypes, torch
values = torch.ones(1000, device="cuda"); own = ctypes.CDLL({str(target)!r})
assert own.run(ctypes.c_void_p(values.data_ptr()), 1000) == 0
"""
    ran = emulate(sys.executable, "-c", code, flags=["--counts"])
    assert 0 == ran.returncode, ran.stderr
    assert "1    double_them(float*, int)" in ran.stderr


@pytest.mark.slow
def test_two_ranks_train_on_two_cards(tmp_path):
    """DistributedDataParallel over gloo, each rank on its own card with its own counts."""
    # torch's threads hold a copy of the context that a backward was called in, and need Python to let go of it: where that
    # shuts down meanwhile they abort the process, on any card. What the context holds says when the last one is gone.
    (tmp_path / "ddp.py").write_text("""
import contextvars, pathlib, threading, torch, torch.distributed as dist, weakref
from torch import nn
class Held: pass
variable, is_released = contextvars.ContextVar("held"), threading.Event()
dist.init_process_group("gloo"); rank = dist.get_rank(); torch.cuda.set_device(rank)
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda(), device_ids=[rank])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    held = Held(); weakref.finalize(held, is_released.set); variable.set(held)
    for _ in range(3):
        optimizer.zero_grad(); model(torch.randn(8, 64, device="cuda")).sum().backward(); optimizer.step()
contextvars.copy_context().run(train)
torch.cuda.synchronize(); bus = torch.cuda.get_device_properties(rank).pci_bus_id
pathlib.Path(f"rank-{rank}").write_text(f"{torch.cuda.current_device()} {bus}")
assert is_released.wait(60); dist.destroy_process_group()
""")
    # Standalone: a port of its own, so that two runs on one machine do not meet.
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", tmp_path / "ddp.py"]
    ran = emulate(sys.executable, *run, card="2xa10", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert 0 == ran.returncode, ran.stderr
    assert ["0 1", "1 2"] == [(tmp_path / f"rank-{rank}").read_text() for rank in range(2)]


def test_a_killed_process_leaves_its_exit_status_and_no_folder():
    """128 and the signal's number, as a shell says it; the run's folder goes with the command."""
    ran = emulate(
        sys.executable,
        "-c",
        "import os; print(os.environ['PERFSUITE_EMULATED_RUN'], flush=True); os.kill(os.getpid(), 9)",
    )
    assert 137 == ran.returncode
    assert not os.path.exists(ran.stdout.strip())


def test_an_unknown_card_is_named():
    """What cannot be emulated for is said before anything starts."""
    ran = emulate("true", card="nothing-like-it")
    assert 1 == ran.returncode
    assert "unknown card 'nothing-like-it'" in ran.stderr


def test_the_modelled_pool_of_large_tensors_is_torch_s():
    """Five hundred tensors made and dropped at random: as many bytes allocated after each, on both."""
    real, modelled, wanted = on_torch("""
import json, random, torch
from perfsuite.devices.model.allocator import LargePool
pool, held, real, modelled, wanted, now, choose = LargePool(), [], [], [], [], 0, random.Random(7)
for _ in range(500):
    if held and choose.random() < 0.48:
        tensor, piece = held.pop(choose.randrange(len(held)))
        now -= tensor.numel() if piece is None else piece.size
        if piece is not None: pool.give(piece)
        del tensor
    else:
        size = 512 * choose.choice([choose.randint(1, 2048), choose.randint(2049, 8192), choose.randint(8192, 60000)])
        piece = pool.take(size)
        held.append((torch.empty(size, dtype=torch.uint8, device="cuda"), piece))
        now += size if piece is None else piece.size
    real.append(torch.cuda.memory_allocated()); modelled.append(now)
    wanted.append(sum(tensor.numel() for tensor, _ in held))
print(json.dumps([real, modelled, wanted]))
""")
    assert real == modelled
    assert sum(real) > sum(wanted)  # rests that were not cut off


@pytest.mark.parametrize(("card", "is_noted"), [("t4", True), ("a10", False)])
def test_bfloat16_that_torch_emulates_is_noted(card, is_noted):
    """torch calls it supported on every card; only from capability 8 on is it faster than float16."""
    code = """
import json
from social_xlstm.train.precision import Precision
print(json.dumps(Precision.from_name("bf16-mixed", "cuda").note or ""))
"""
    note = on_torch(code, card=card, PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'src'}")
    assert is_noted is ("no bfloat16 units" in note)
