"""The CUDA device on a recording torch: which calls it makes, in which order, and when the host waits."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from perfsuite.collect.limits import expect
from perfsuite.devices.cuda import device as cuda
from perfsuite.devices.cuda import identity
from perfsuite.devices.cuda.device import CudaDevice
from perfsuite.devices.cuda.nvml import Nvml
from perfsuite.devices.cuda.sampler import Sampled
from perfsuite.devices.cuda.series import Piece, Series
from perfsuite.devices.cuda.window_checks import WindowSummary
from perfsuite.errors import DeviceMissing
from perfsuite.host import cpu_name
from perfsuite.measure.step import Plan, measure_step
from perfsuite.records import Baseline, Match, Settings, StoredReading

SECOND = 10**9  # of nanoseconds
UUID = "12345678-1234-1234-1234-123456789abc"


class Event:
    """An event that has completed when the fake device has caught up with it."""

    def __init__(self, torch):
        self.torch = torch

    def record(self):
        self.torch.calls.append("record")
        self.at = self.torch.clock

    def query(self):
        return self.at <= self.torch.done

    def elapsed_time(self, later):
        return 1e3 * (later.at - self.at)


class ScriptedProfile:
    """A profiler that records a kernel for half of three steps, all slowed down by it."""

    def __init__(self, calls):
        calls.append("profile")
        self.calls = calls
        self.profiler = SimpleNamespace(kineto_results=self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def step(self):
        self.calls.append("profile step")

    def trace_start_ns(self):
        return 10**18

    def events(self):
        return [
            kineto_event("perfsuite inspection", 0, 3 * SECOND, "cpu", 1, "user_annotation"),
            kineto_event("perfsuite inspection", 1_000, SECOND, "cuda", 1, "gpu_user_annotation"),
            kineto_event("INVALID", 0, 1_000, "cpu", 7, "cuda_runtime"),
            kineto_event("gemm", 0, 0.75 * SECOND, "cuda", 7, "kernel"),
            kineto_event("cudaDeviceSynchronize", 2_000, 2 * SECOND, "cpu", 8, "cuda_runtime"),
        ]


def scripted_profiler(calls):
    """Return the part of torch.profiler that is used."""

    class Profile(ScriptedProfile):
        def __init__(self, activities, schedule):
            assert schedule["warmup"] > 0
            super().__init__(calls)

    return SimpleNamespace(
        ProfilerActivity=SimpleNamespace(CPU="cpu", CUDA="cuda"),
        ProfilerAction=SimpleNamespace(WARMUP="warm-up"),
        schedule=dict,
        profile=Profile,
        record_function=nullcontext,
    )


def kineto_event(name, start, end, device_type, number, kind):
    """Return an event with the methods of Kineto's."""
    answers = {
        "name": name,
        "start_ns": 10**18 + start,
        "end_ns": 10**18 + end,
        "device_type": device_type,
        "correlation_id": number,
        "activity_type": kind,
        "is_user_annotation": kind.endswith("user_annotation"),
    }
    return SimpleNamespace(**{method: lambda value=value: value for method, value in answers.items()})


class Weight:
    """A tensor that cuBLAS is used on."""

    def __matmul__(self, other):
        return self

    def __getitem__(self, row):
        return self

    def register_hook(self, hook):
        pass

    def sum(self):
        return self

    def backward(self):
        pass


class RecordingTorch:
    """The part of torch that the CUDA device uses, with a scripted device clock."""

    __version__ = "2.13.0+cu128"

    def __init__(self, available=True, built_for="12.8", count=2, hip=None):
        self.calls, self.clock, self.done = [], 0.0, 0.0
        self.allocations, self.retries, self.held = 5, 0, 0
        self.split = {"inactive_split_bytes.all.peak": 2**20}
        self.version = SimpleNamespace(cuda=built_for, hip=hip)
        self.autograd = SimpleNamespace(
            DeviceType=SimpleNamespace(CPU="cpu"),
            _profiler_enabled=lambda: False,
            profiler=SimpleNamespace(_prepare_profiler=None, _enable_profiler=None),
        )
        self.profiler = scripted_profiler(self.calls)
        self._C = SimpleNamespace(_cuda_clearCublasWorkspaces=lambda: self.calls.append("clear"))
        self.enable_grad = nullcontext
        self.zeros = lambda *shape, **options: Weight()
        self.addmm = lambda bias, one, other: Weight()
        self.cuda = SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: count,
            current_device=lambda: 0,
            set_device=lambda index: self.calls.append(f"set_device {index}"),
            synchronize=self.synchronize,
            empty_cache=lambda: self.calls.append("empty_cache"),
            reset_peak_memory_stats=lambda index: self.calls.append("reset_peak"),
            max_memory_allocated=lambda index: 3 * 2**30,
            max_memory_reserved=lambda index: 4 * 2**30,
            memory_reserved=lambda index: 4 * 2**30,
            memory_allocated=lambda index: self.held,
            get_sync_debug_mode=lambda: 0,
            set_sync_debug_mode=lambda mode: self.calls.append(f"sync_debug {mode}"),
            memory_stats=lambda index: self.counters(),
            memory_stats_as_nested_dict=lambda index: self.counters(),
            get_device_properties=lambda index: SimpleNamespace(
                name="NVIDIA A10", uuid=UUID, total_memory=24 * 10**9
            ),
            Event=lambda enable_timing: Event(self),
        )

    def counters(self):
        return {"num_device_alloc": self.allocations, "num_alloc_retries": self.retries, **self.split}

    def synchronize(self, index):
        self.calls.append("synchronize")
        self.done = self.clock


@pytest.fixture
def torch():
    return RecordingTorch()


def device(torch):
    return CudaDevice(torch, 0, Nvml(absent="NVML: Driver Not Loaded"))


def test_one_event_per_step_and_one_wait_at_the_end(torch):
    """Between start and stop the host never waits, and the peak is reset after the queue is empty."""
    window = device(torch).start()
    torch.calls.clear()
    for _ in range(3):
        torch.clock += 0.01
        window.mark()
    window.stop()
    assert ["record", "record", "record", "synchronize"] == torch.calls


def test_the_window_opens_on_an_empty_queue_with_fresh_peaks(torch):
    """Work of the warm-up belongs neither to the first step nor to the peak."""
    subject = device(torch)
    torch.calls.clear()
    subject.start()
    assert ["synchronize", "reset_peak", "record"] == torch.calls


def test_known_steps_are_those_that_completed(torch):
    """The stop rule queries completed events and never waits for the others."""
    window = device(torch).start()
    for _ in range(4):
        torch.clock += 0.02
        window.mark()
    torch.done = 0.045
    assert [0.02, 0.02] == pytest.approx(list(window.known()))
    assert "synchronize" not in torch.calls[torch.calls.index("record") :]


def test_an_allocator_that_does_not_count_its_pieces_reports_none(torch):
    """Such as cudaMallocAsync's: absent, not 0."""
    torch.split = {}
    window = device(torch).start()
    torch.clock += 0.02
    window.mark()
    reported = window.stop().reported
    assert "fragmented_bytes" not in reported
    assert 4 * 2**30 == reported["reserved_memory_bytes"]


def test_a_look_into_the_window_reads_few_events(torch):
    """Thousands of completed events would hold the next step up; the end of the window reads the rest."""
    window = device(torch).start()
    for _ in range(1000):
        torch.clock += 0.01
        window.mark()
    torch.done = torch.clock
    assert [64, 128] == [len(window.known()), len(window.known())]
    assert 1000 == len(window.stop().step_seconds)


def test_the_reading_carries_allocated_memory_and_reports_the_rest(torch):
    """Allocated memory is gated; reserved memory and retries are reported; utilization gives its reason."""
    subject = device(torch)

    def step():
        torch.clock += 0.5

    subject.now = lambda: torch.clock
    reading = measure_step(step, subject, Plan(1.0, 20.0), 8)
    assert 0.5 == pytest.approx(reading.step_seconds)
    assert 3 * 2**30 == reading.peak_memory_bytes
    assert 4 * 2**30 == reading.reported["reserved_memory_bytes"]
    assert 2**30 == reading.reported["unallocated_reserved_bytes"]
    assert 2**20 == reading.reported["fragmented_bytes"]
    assert 0 == reading.reported["alloc_retries"]
    assert reading.utilization is None
    assert "utilization: NVML: Driver Not Loaded" in reading.notes
    assert (0.5, 0.5) == (reading.kernel_busy, reading.reported["kernel_busy"])
    assert (1 / 3, 0) == (reading.figures["kernels"], reading.figures["syncs"])


def test_the_inspection_comes_after_the_window_and_puts_the_detector_back(torch):
    """Profiled steps are never timed steps: the last of these come first, and no event is recorded after."""
    subject = device(torch)
    subject.now = lambda: torch.clock

    def step():
        torch.clock += 0.5
        torch.calls.append("step")

    reading = measure_step(step, subject, Plan(1.0, 20.0), 8)
    last_record = len(torch.calls) - 1 - torch.calls[::-1].index("record")
    steps = torch.calls[:last_record].count("step")
    assert reading.warmup_steps + reading.steps == steps
    assert (
        [
            "synchronize",  # the window's only wait
            "synchronize",
            "sync_debug warn",
            "step",
            "sync_debug 0",
            "synchronize",
            "step",  # the lines of its operators
            "profile",
            "step",
            "synchronize",
            "profile step",
            "step",
            "step",
            "step",
            "synchronize",
        ]
        == torch.calls[last_record + 1 :]
    )


@pytest.mark.parametrize(
    ("seconds", "operators", "steps", "note"),
    [
        (0.5, 10, 6, ""),
        (0.5, 60_000, 4, ""),  # one profiled step instead of three
        (5.0, 10, 3, ""),  # no warm-up either
        (5.0, 600_000, 2, "inspection: left out, a step has 600,000 operators"),
        (60.0, 10, 0, "inspection: left out, a step takes 60 s"),
    ],
)
def test_an_inspection_costs_few_steps_however_long_one_is(
    torch, monkeypatch, seconds, operators, steps, note
):
    """Neither a step of a minute nor one of 100,000 kernels is profiled again and again."""
    ran = []

    def lines(step, _root):
        step()
        return operators, {}

    monkeypatch.setattr("perfsuite.devices.operator_times.operator_lines", lines)
    found = device(torch).inspect(lambda: ran.append(None), seconds)
    assert steps == len(ran)
    assert ((note,) if note else ()) == found.notes
    assert bool(note) != ("kernels" in found.figures)


def test_a_baseline_allows_what_a_profile_of_three_steps_cannot_know():
    """Another choice of cuDNN's, and a wait in one of three steps; a wait in every step is found."""
    stored = StoredReading(values={"kernels": 100.0, "syncs": 0.0, "blocking_copies": 1.0})
    baseline = Baseline(Match.EXACT, readings={"": stored})
    limits = expect((), Settings(), baseline, CudaDevice.tolerances).by_reading[""]
    assert {"kernels": 105.0, "syncs": 0.5, "blocking_copies": 1.5} == {
        limit.metric.name: limit.bound for limit in limits
    }


@pytest.mark.parametrize(("steps", "counts"), [(19, False), (20, True)])
@pytest.mark.parametrize(("name", "words"), [("retries", "retried 1 time"), ("allocations", "driver 1 time")])
def test_allocations_may_cost_one_step_in_twenty(torch, name, words, steps, counts):
    """One request of 20 steps is a note, one of 19 does not count."""
    window = device(torch).start()
    for _ in range(steps):
        torch.clock += 0.01
        window.mark()
    setattr(torch, name, getattr(torch, name) + 1)
    timing = window.stop()
    told = timing.notes if counts else timing.invalid
    assert [True] == [words in text for text in told if "allocator" in text]
    assert counts is (timing.invalid == ())


def test_compiling_in_the_window_does_not_count(torch, monkeypatch):
    """A new shape compiled during the measured steps makes them invalid."""
    states = iter([(3, 4), (4, 5)])
    monkeypatch.setattr(cuda, "compile_state", lambda: next(states))
    assert ("something was compiled in the measured part (2 graphs and frames)",) == (
        device(torch).start().stop().invalid
    )


def test_a_driver_mismatch_is_reported_by_every_window(torch):
    """The device opens, since torch may still work; nothing measured on it counts."""
    subject = CudaDevice(torch, 0, Nvml(invalid="driver and library differ"))
    assert subject.facts().driver is None
    assert ("driver and library differ",) == subject.start().stop().invalid


def test_a_short_window_names_the_option_that_makes_it_longer(torch, monkeypatch):
    """Too short to judge is a separate result, with the remedy in the message."""
    short = Series((Piece(0, 4, 0.9),), 1.0, 4)
    monkeypatch.setattr(cuda.Sampler, "stop", lambda self: Sampled(short))
    timing = device(torch).start().stop()
    assert {"peak_memory"} == set(timing.figures)
    assert timing.notes[0].startswith("utilization: 4.0 s are too short to judge")
    assert "(--perf-min-time=10s)" in timing.notes[0]


def test_what_the_sampler_saw_is_in_the_reading(torch, monkeypatch):
    """Series, figures, conditions and reasons are passed on unchanged."""
    wave = Series(tuple(Piece(i, i + 1, share) for i, share in enumerate([0.1, 0.9] * 20)), 1.0, 40)
    summary = WindowSummary({"temperature_max": 70.0}, {"sm_clock_mhz": 1400.0}, ("noted",), ("throttled",))
    monkeypatch.setattr(cuda.Sampler, "stop", lambda self: Sampled(wave, summary))
    timing = device(torch).start().stop()
    assert (0.5, 0.8, 0.0) == pytest.approx(
        [timing.figures[name] for name in ("utilization", "utilization_swing", "idle_stretch")]
    )
    assert 2.0 == pytest.approx(timing.reported["utilization_period_seconds"], abs=0.1)
    assert (70.0, {"sm_clock_mhz": 1400.0}) == (timing.reported["temperature_max"], timing.conditions)
    assert ("throttled",) == timing.invalid
    assert "noted" in timing.notes


def test_an_environment_that_names_another_card_is_noted(torch, monkeypatch):
    """torch's card counts; the contradiction is a note."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-ffff")
    assert any("CUDA_VISIBLE_DEVICES names GPU-ffff" in note for note in device(torch).start().stop().notes)


def test_events_that_do_not_explain_the_wall_time_are_noted(torch):
    """Other streams, or a host clock that ran on, show as a note."""
    window = device(torch).start()
    torch.clock += 100.0
    window.mark()
    assert any("other streams" in note for note in window.stop().notes)


def test_memory_of_earlier_tests_and_of_cublas_is_not_a_test_s_own(torch, monkeypatch):
    """The peak is counted from what remains when the test begins, with cuBLAS's workspaces in place."""
    left, workspaces = 2**20, 17 * 2**20
    torch.held = left

    def multiply(_torch, _index):
        torch.held += workspaces

    monkeypatch.setattr(cuda, "_multiply_once", multiply)
    subject = device(torch)
    torch.calls.clear()
    subject.begin_test()
    assert ["synchronize", "clear", "empty_cache"] == torch.calls
    timing = subject.start().stop()
    assert 3 * 2**30 - left - workspaces == timing.figures["peak_memory"]
    assert workspaces == timing.reported["cublas_workspace_bytes"]
    assert 0.0 == timing.reported["reserved_memory_bytes"]


def test_a_test_that_frees_what_was_there_before_has_no_negative_peak():
    """A fixture of an earlier test may die in the middle of this one."""
    assert 0.0 == cuda.MemoryBase.above(100, 200)


def test_growing_pools_and_compiling_are_still_warm_up(torch):
    """The state changes with every allocation of device memory."""
    subject = device(torch)
    before = subject.state()
    torch.allocations += 1
    assert before != subject.state()


def test_a_cards_identity_has_its_uuid_with_prefix(torch):
    """The baseline stores which card it was."""
    facts = device(torch).facts()
    assert ("cuda", "NVIDIA A10", f"GPU-{UUID}", "12.8") == (facts.kind, facts.name, facts.uuid, facts.cuda)
    assert cpu_name() == facts.host


HIP = "6.2.41134-65d174c3e"


def test_a_build_for_rocm_is_measured_without_nvml(monkeypatch):
    """Its cards answer to the name cuda; NVIDIA's library is not even tried, and its figures say why."""
    torch = RecordingTorch(built_for=None, hip=HIP)
    monkeypatch.setattr(cuda, "load_torch", lambda: torch)
    monkeypatch.setattr(identity, "open_nvml", lambda uuids: pytest.fail("NVML was opened"))
    subject = cuda.open_cuda(0)
    facts = subject.facts()
    assert ("cuda:0", "rocm6.2", "HIP events", None) == (subject.name, facts.kind, facts.clock, facts.cuda)
    subject.now = lambda: torch.clock

    def step():
        torch.clock += 0.5

    reading = measure_step(step, subject, Plan(1.0, 20.0), 8)
    assert (0.5, 0.5) == (pytest.approx(reading.step_seconds), reading.kernel_busy)
    assert reading.utilization is None
    assert f"utilization: NVML is NVIDIA's, and torch is built for ROCm {HIP}" in reading.notes
    assert f"for ROCm {HIP}, sees 2 of the cards" in cuda.torch_text()


def test_a_build_for_rocm_that_knows_no_uuid_has_a_lock_for_each_card(monkeypatch):
    """By name and number."""
    torch = RecordingTorch(built_for=None, hip=HIP)
    torch.cuda.get_device_properties = lambda index: SimpleNamespace(name="MI300X", total_memory=1)
    subject = CudaDevice(torch, 0)
    assert 2 == len(set(subject.lock_names(needs_all=True)))


@pytest.mark.parametrize(
    ("torch", "index", "expected"),
    [
        (
            RecordingTorch(built_for=None, hip=HIP, available=False),
            None,
            "for ROCm 6.2.41134-65d174c3e sees none; check rocm-smi",
        ),
        (RecordingTorch(built_for=None), None, "a build without CUDA"),
        (RecordingTorch(available=False), None, "sees none; check nvidia-smi"),
        (RecordingTorch(), 7, "torch sees 2: cuda:0 to cuda:1"),
        (None, 0, "torch is not installed"),
    ],
)
def test_a_missing_device_is_refused_with_the_reason(monkeypatch, torch, index, expected):
    """Each reason why a GPU is missing has its own remedy."""
    monkeypatch.setattr(cuda, "load_torch", lambda: torch)
    with pytest.raises(DeviceMissing) as refused:
        cuda.open_cuda(index)
    assert expected in str(refused.value)


def test_a_step_that_raises_ends_the_sampler_without_touching_the_device(torch):
    """After a failed kernel a wait would hide the step's error."""
    subject = device(torch)
    count = iter(range(100))
    subject.now = lambda: torch.clock

    def step():
        torch.clock += 0.01
        if next(count) == 12:
            torch.calls.clear()
            raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal memory access"):
        measure_step(step, subject, Plan(1.0, 10.0), 1)
    assert [] == torch.calls
