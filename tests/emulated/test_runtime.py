"""The emulated runtime by itself, through ctypes: clocks, streams, copies, memory, graphs, counts, refusals."""

import itertools

import pytest

from tests.emulated.runs import LONG, on_bare

NOT_READY = 600  # cudaErrorNotReady
CLOSE = 1e-3  # the scripted clock moves a little with each look at it


WAITING = """
learn("long", LONG)
first = event(); began = time.monotonic(); launch(kernel("long")); last = event()
launched = cuda.cudaEventQuery(last); cuda.cudaDeviceSynchronize(); waited = time.monotonic() - began
print(json.dumps([launched, waited, elapsed(first, last)]))
"""


def test_a_kernel_lasts_what_was_learned_and_the_host_does_not_wait_for_it():
    """Launching returns while it runs; synchronizing waits until the virtual clock is reached."""
    launched, waited, device = on_bare(WAITING)
    assert NOT_READY == launched
    assert waited == pytest.approx(LONG, rel=CLOSE)
    assert device == pytest.approx(LONG, rel=CLOSE)


def test_the_host_s_time_is_real():
    """By the machine's own clock it waits at least as long; how much longer is the machine's affair."""
    _, waited, device = on_bare(WAITING, is_clock_scripted=False)
    assert waited >= LONG
    assert device >= LONG


def test_a_kernel_that_nothing_explains_takes_the_least():
    """The card's kernel_seconds, 3 µs on an A10."""
    took = on_bare("""
launch(kernel("warm")); cuda.cudaDeviceSynchronize(); learn("first", LONG)
launch(kernel("first")); first = event()
for _ in range(10): launch(kernel("unknown"))
last = event(); cuda.cudaDeviceSynchronize(); print(json.dumps(elapsed(first, last)))
""")
    assert took == pytest.approx(30e-6, rel=0.05)


def test_streams_run_side_by_side_and_an_event_makes_one_wait():
    """Two small kernels overlap on two streams, until one stream waits for the other's event."""
    apart, ordered = on_bare("""
learn("long", LONG)
def both(is_ordered):
    one, other = (made(cuda.cudaStreamCreateWithFlags, 1) for _ in range(2))
    first = event(one); launch(kernel("long"), one)
    if is_ordered: cuda.cudaStreamWaitEvent(other, event(one), 0)
    launch(kernel("long"), other); last = event(other)
    cuda.cudaDeviceSynchronize(); return elapsed(first, last)
print(json.dumps([both(False), both(True)]))
""")
    assert apart == pytest.approx(LONG, rel=CLOSE)
    assert ordered == pytest.approx(2 * LONG, rel=CLOSE)


def test_kernels_that_fill_the_card_do_not_overlap():
    """Two grids of as many blocks as there are multiprocessors take turns."""
    took = on_bare("""
learn("long", LONG, grid=72)
one, other = (made(cuda.cudaStreamCreateWithFlags, 1) for _ in range(2))
first = event(one); launch(kernel("long"), one, 72); launch(kernel("long"), other, 72); last = event(other)
cuda.cudaDeviceSynchronize(); print(json.dumps(elapsed(first, last)))
""")
    assert took == pytest.approx(2 * LONG, rel=CLOSE)


@pytest.mark.parametrize(("flags", "seconds"), [(0, 2 * LONG), (1, LONG)], ids=["blocking", "non-blocking"])
def test_the_default_stream_waits_for_streams_that_do_not_opt_out(flags, seconds):
    """As CUDA's legacy default stream does."""
    took = on_bare(f"""
learn("long", LONG)
stream = made(cuda.cudaStreamCreateWithFlags, {flags})
first = event(stream); launch(kernel("long"), stream); launch(kernel("long")); last = event()
cuda.cudaDeviceSynchronize(); print(json.dumps(elapsed(first, last)))
""")
    assert took == pytest.approx(seconds, rel=CLOSE)


def test_the_queue_holds_1024_launches():
    """The 1,025th launch waits until the first kernel is done."""
    within, beyond = on_bare("""
learn("long", LONG)
launch(kernel("long")); first = event(); short = kernel("short")
for _ in range(1023): launch(short)
within = cuda.cudaEventQuery(first); launch(short); print(json.dumps([within, cuda.cudaEventQuery(first)]))
""")
    assert (NOT_READY, 0) == (within, beyond)


def test_copies_copy_and_tell_pinned_from_pageable():
    """Bytes go to the card and back; where they come from is known by their address."""
    same, counts, kinds = on_bare("""
size = 4096; there = made(cuda.cudaMalloc, ctypes.c_size_t(size)); pinned = made(cuda.cudaHostAlloc, ctypes.c_size_t(size), 0)
ctypes.memset(pinned, 7, size); pageable = ctypes.create_string_buffer(size)
cuda.cudaMemcpyAsync(there, pinned, ctypes.c_size_t(size), 1, None)
cuda.cudaMemcpyAsync(pageable, there, ctypes.c_size_t(size), 2, None)
import tempfile; path = tempfile.mkdtemp() + "/counts"; cuda.perfsuite_emulated_write(path.encode())
names = sorted(line.rsplit("\\t", 1)[1] for line in open(path).read().splitlines() if "Memcpy " in line); os.unlink(path); os.rmdir(path[:-7])
print(json.dumps([pageable.raw == bytes([7]) * size, totals(), names]))
""")
    assert same
    assert {"alloc": 1, "host_alloc": 1, "h2d": 1, "d2h": 1, "sync": 1} == counts
    assert ["Memcpy DtoH (Device -> Pageable), blocking", "Memcpy HtoD (Pinned -> Device)"] == kinds


def test_a_copy_takes_what_the_bus_gives():
    """A mebibyte over 31.5 GB/s at the pinned share takes 39 µs and its start."""
    took = on_bare("""
size = ctypes.c_size_t(1 << 20); there = made(cuda.cudaMalloc, size); pinned = made(cuda.cudaHostAlloc, size, 0)
learn("long", LONG); launch(kernel("long")); first = event()
cuda.cudaMemcpyAsync(there, pinned, size, 1, None); last = event(); cuda.cudaDeviceSynchronize()
print(json.dumps(elapsed(first, last)))
""")
    assert took == pytest.approx(10e-6 + 2**20 / (31.5e9 * 0.85), rel=0.02)


def test_single_numbers_read_as_zero_once_something_was_launched():
    """What a kernel would have written is not known, and left-over bytes must not decide shapes."""
    before, after = on_bare("""
there = made(cuda.cudaMalloc, ctypes.c_size_t(8)); number = ctypes.c_uint64(42)
def read():
    found = ctypes.c_uint64(1); cuda.cudaMemcpy(ctypes.byref(found), there, ctypes.c_size_t(8), 2); return found.value
cuda.cudaMemcpy(there, ctypes.byref(number), ctypes.c_size_t(8), 1); before = read()
launch(kernel("any")); print(json.dumps([before, read()]))
""")
    assert (42, 0) == (before, after)


def test_memory_ends_where_the_card_s_does():
    """Out of memory is CUDA's own error, and freeing gives the room back."""
    codes, free = on_bare("""
big = ctypes.c_size_t(20 << 30); one, other = ctypes.c_void_p(), ctypes.c_void_p()
codes = [cuda.cudaMalloc(ctypes.byref(one), big), cuda.cudaMalloc(ctypes.byref(other), big)]
cuda.cudaFree(one); codes += [cuda.cudaMalloc(ctypes.byref(other), big), cuda.cudaGetLastError(), cuda.cudaGetLastError()]
free, total = ctypes.c_size_t(), ctypes.c_size_t(); cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
print(json.dumps([codes, total.value - free.value]))
""")
    assert [0, 2, 0, 2, 0] == codes
    assert 20 << 30 == free


def test_the_cards_memory_lies_at_growing_addresses():
    """Also after a free: where it lies decides what torch's allocator takes, and must not be the host's choice."""
    addresses = on_bare("""
found = []
for size in (20 << 20, 2 << 20, 100, 64 << 20, 2 << 20):
    address = ctypes.c_void_p()
    assert cuda.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(size)) == 0
    ctypes.memset(address.value, 1, size)
    found.append(address.value)
    if size == 100: assert cuda.cudaFree(ctypes.c_void_p(found[0])) == 0
print(json.dumps(found))
""")
    assert sorted(addresses) == addresses
    assert [20 << 20, 2 << 20, 2 << 20, 64 << 20] == [b - a for a, b in itertools.pairwise(addresses)]


def test_a_graph_launches_its_nodes_and_branches_overlap():
    """Two branches of a capture run side by side; the launch is one call with three nodes."""
    counts, took = on_bare("""
learn("long", LONG)
one, other = (made(cuda.cudaStreamCreateWithFlags, 1) for _ in range(2))
assert cuda.cudaStreamBeginCapture(one, 0) == 0
launch(kernel("short"), one); cuda.cudaStreamWaitEvent(other, event(one), 0)
launch(kernel("long"), one); launch(kernel("long"), other); cuda.cudaStreamWaitEvent(one, event(other), 0)
graph, exec_ = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cudaStreamEndCapture(one, ctypes.byref(graph)) == 0
assert not totals().get("kernel")
assert cuda.cudaGraphInstantiateWithFlags(ctypes.byref(exec_), graph, ctypes.c_ulonglong(0)) == 0
first = event(one); assert cuda.cudaGraphLaunch(exec_, one) == 0; last = event(one)
cuda.cudaDeviceSynchronize(); print(json.dumps([totals(), elapsed(first, last)]))
""")
    assert {"kernel": 3, "graph": 1, "sync": 1} == counts
    assert took == pytest.approx(LONG, rel=CLOSE)


def test_waiting_inside_a_capture_is_refused_and_breaks_it():
    """As CUDA refuses it: 900, and the capture ends in 901."""
    codes = on_bare("""
stream = made(cuda.cudaStreamCreateWithFlags, 1); cuda.cudaStreamBeginCapture(stream, 0); graph = ctypes.c_void_p()
print(json.dumps([cuda.cudaStreamSynchronize(stream), cuda.cudaStreamEndCapture(stream, ctypes.byref(graph))]))
""")
    assert [900, 901] == codes


def test_nvml_sees_how_busy_the_card_was():
    """A kernel of a second fills the periods it covers, and all shares together make that second."""
    shares = on_bare("""
nvml = ctypes.CDLL("libnvidia-ml.so.1"); assert nvml.nvmlInit_v2() == 0
learn("second", 1.0); device = ctypes.c_void_p(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))
class Sample(ctypes.Structure): _fields_ = [("stamp", ctypes.c_ulonglong), ("value", ctypes.c_uint), ("pad", ctypes.c_uint)]
start = int(time.monotonic() * 1e6); launch(kernel("second")); cuda.cudaDeviceSynchronize(); time.sleep(0.2)
count, kind = ctypes.c_uint(120), ctypes.c_int(); samples = (Sample * 120)()
assert nvml.nvmlDeviceGetSamples(device, 1, ctypes.c_ulonglong(start), ctypes.byref(kind), ctypes.byref(count), samples) == 0
print(json.dumps([samples[i].value for i in range(count.value)]))
""")
    assert shares.count(100) >= 4
    assert sum(shares) / 100 / 6 == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", [1, [2]]), ("1,0", [2, [2, 1]]), ("", [0, []]), ("0,0", [0, []]), ("7", [0, []])],
)
def test_visible_devices_are_read_as_cuda_reads_them(visible, expected):
    """By their order, up to the first unknown one, and none at all where one occurs twice."""
    found = on_bare(
        """
count = ctypes.c_int(); cuda.cudaGetDeviceCount(ctypes.byref(count)); buses = []
for i in range(count.value):
    bus = ctypes.c_int(); cuda.cudaDeviceGetAttribute(ctypes.byref(bus), 33, i); buses.append(bus.value)
print(json.dumps([count.value, buses]))
""",
        card="2xa10",
        CUDA_VISIBLE_DEVICES=visible,
    )
    assert expected == found


def test_what_is_missing_refuses_and_is_counted():
    """Not supported, 801, and words where words are asked for; never a crash."""
    code, counts, words = on_bare("""
cuda.ncclGetErrorString.restype = ctypes.c_char_p
print(json.dumps([cuda.cudaGraphAddNode(None, None, None, None, 0, None), totals(), cuda.ncclGetErrorString(1).decode()]))
""")
    assert (801, {"refused": 1}) == (code, counts)
    assert "does not have it" in words


def test_what_is_looked_up_by_name_and_missing_refuses_by_that_name():
    """As torch looks up the driver's functions: called it is not supported, and the list at the end can name it."""
    codes, refused = on_bare("""
def found(name):
    address = ctypes.c_void_p(); assert cuda.cuGetProcAddress_v2(name, ctypes.byref(address), 13000, ctypes.c_uint64(0), None) == 0
    return ctypes.CFUNCTYPE(ctypes.c_int)(address.value)
codes = [found(name)() for name in (b"cuNoSuchThing", b"cuMemNoneEither", b"cuNoSuchThing")]
codes += {found(f"cuMissing{i}".encode())() for i in range(100)}  # more than there are names for
import tempfile; path = tempfile.mkdtemp() + "/counts"; cuda.perfsuite_emulated_write(path.encode())
lines = [line.split("\\t") for line in open(path).read().splitlines()]; os.unlink(path); os.rmdir(path[:-7])
print(json.dumps([codes, {line[-1]: int(line[1]) for line in lines if line[0] == "refused"}]))
""")
    assert [801] * 4 == codes
    assert (2, 1) == (refused["cuNoSuchThing"], refused["cuMemNoneEither"])
    assert 103 == sum(refused.values())


def test_a_process_without_a_run_sees_no_card():
    """The libraries alone are no card: who is not started on one has none."""
    assert [100, 0] == on_bare(
        "count = ctypes.c_int(); print(json.dumps([cuda.cudaGetDeviceCount(ctypes.byref(count)), count.value]))",
        PERFSUITE_EMULATED_RUN="",
    )
