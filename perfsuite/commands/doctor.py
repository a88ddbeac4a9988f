"""`perfsuite doctor`: list what can and cannot be measured on this machine's GPUs, one line each."""

import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata

from perfsuite.devices.cuda.card import Card
from perfsuite.devices.cuda.device import available_count, torch_text
from perfsuite.devices.cuda.identity import list_uuids, order_text
from perfsuite.devices.cuda.nvml import Answer, Nvml, load_binding, open_nvml
from perfsuite.errors import DeviceMissing, RunInvalid
from perfsuite.processes.world import hides_others
from perfsuite.units import Unit, show

_WIDTH = 22


def diagnose() -> list[str]:
    """Return the lines for all GPUs, or raise DeviceMissing with the reason why there is none."""
    try:
        binding, why = load_binding()
        uuids = () if binding is None else list_uuids(binding)
        why = why or "NVML sees no card"
        first = (
            f"perfsuite {metadata.version('pytest-perfsuite')}, Python {platform.python_version()}, "
            f"{torch_text()}"
        )
        if not uuids and available_count():
            return [first, f"utilization, clocks, power and other processes cannot be measured: {why}"]
        if not uuids:
            raise DeviceMissing(f"no GPU can be measured here: {why}")
        system = Nvml(binding)
        lines = [
            first,
            f"driver {_system_text(system, 'nvmlSystemGetDriverVersion')}, "
            f"NVML {_system_text(system, 'nvmlSystemGetNVMLVersion')}, "
            f"nvidia-ml-py {metadata.version('nvidia-ml-py')}",
            order_text(os.environ),
        ]
        for uuid in uuids:
            lines += ["", *_card_lines(uuid, open_nvml((uuid,)))]
    except RunInvalid as error:
        raise DeviceMissing(f"no GPU can be measured here: {error}") from None
    return lines


def _card_lines(uuid: str, nvml: Nvml) -> Iterator[str]:
    yield f"{_device_text(nvml, 'nvmlDeviceGetName')} ({uuid})"
    card = Card(nvml)
    for label, describe in ABILITIES.items():
        yield f"  {label.ljust(_WIDTH)}{describe(nvml, card)}"


def _utilization(_: Nvml, card: Card) -> str:
    samples, rate = card.samples(0), card.utilization()
    if samples.value:
        return f"yes, from the driver's samples ({len(samples.value)} in its buffer)"
    if rate.why:
        return f"no: {rate.why}"
    source = "its sample buffer is empty, as on an idle card" if not samples.why else "polled twice a second"
    return f"yes, {100 * rate.value:.0f} % now ({source})"


def _activity(nvml: Nvml, _: Card) -> str:
    answer = nvml.ask("nvmlGpmQueryDeviceSupport")
    if answer.why:
        return f"no: {answer.why}"
    return "yes (GPM)" if answer.value.isSupportedDevice else "no: this device has no such counters (GPM)"


def _memory(_: Nvml, card: Card) -> str:
    memory = card.memory()
    if memory is None:
        return "no: this device does not report it"
    reserved = (
        "" if memory.reserved is None else f", {show(memory.reserved, Unit.BYTES)} reserved by the driver"
    )
    return f"yes, {show(memory.free, Unit.BYTES)} of {show(memory.total, Unit.BYTES)} free{reserved}"


def _throttling(_: Nvml, card: Card) -> str:
    counted, reasons = card.throttled_seconds(), card.reasons()
    if counted:
        return f"yes, counted by the driver ({', '.join(sorted(counted))})"
    return "no" if reasons is None else f"yes, polled twice a second (now {reasons:#x})"


def _clocks(_: Nvml, card: Card) -> str:
    now, most = card.sm_clock(), card.max_sm_clock()
    return "no" if now is None else f"yes, SM at {now:.0f} MHz" + (f" of {most:.0f} MHz" if most else "")


def _power(_: Nvml, card: Card) -> str:
    limit, energy = card.power_limit(), card.energy()
    limit_text = "limit unknown" if limit is None else f"limit {limit:.0f} W"
    return f"{limit_text}, energy {'not counted' if energy is None else 'counted'}"


def _processes(_: Nvml, card: Card) -> str:
    processes = card.processes()
    if processes is None:
        return "no: whether other processes use the card cannot be checked here"
    hidden = ", those outside of this container may be hidden" if hides_others() else ""
    return f"yes, {len(processes)} on the card now{hidden}"


def _persistence(_: Nvml, card: Card) -> str:
    is_on = card.is_persistent()
    if is_on is None:
        return "unknown"
    return "on" if is_on else "off: the driver may unload, use nvidia-smi -pm 1"


def _slices(_: Nvml, card: Card) -> str:
    is_on = card.is_sliced()
    return "none" if is_on is None else "on: no utilization of a slice" if is_on else "off"


ABILITIES: dict[str, Callable[[Nvml, Card], str]] = {
    "utilization": _utilization,
    "SM, tensor, DRAM": _activity,
    "memory": _memory,
    "throttling": _throttling,
    "clocks": _clocks,
    "power": _power,
    "other processes": _processes,
    "persistence mode": _persistence,
    "MIG": _slices,
}


def _system_text(nvml: Nvml, function: str) -> str:
    return _text(nvml.ask_system(function))


def _device_text(nvml: Nvml, function: str) -> str:
    return _text(nvml.ask(function))


def _text(answer: Answer) -> str:
    return "unknown" if answer.why else str(answer.value)
