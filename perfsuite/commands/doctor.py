"""Say what can and cannot be measured on this machine, one line each; the lines of `perfsuite doctor`."""

import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata

from perfsuite.devices.cuda.card import Card
from perfsuite.devices.cuda.choice import list_uuids
from perfsuite.devices.cuda.device import torch_told
from perfsuite.devices.cuda.identity import order_told
from perfsuite.devices.cuda.nvml import Answer, Nvml, load_binding, open_nvml
from perfsuite.errors import DeviceMissing, RunInvalid
from perfsuite.units import Unit, show

_WIDTH = 22


def diagnose() -> list[str]:
    """Return the lines, or say in one why there is no GPU to tell of."""
    try:
        binding, why = load_binding()
        uuids = () if binding is None else list_uuids(binding)
        if not uuids:
            raise DeviceMissing(f"no GPU can be measured here: {why or 'NVML sees no card'}")
        system = Nvml(binding)
        lines = [
            f"perfsuite {metadata.version('perfsuite')}, Python {platform.python_version()}, {torch_told()}",
            f"driver {_word(system, 'nvmlSystemGetDriverVersion')}, "
            f"NVML {_word(system, 'nvmlSystemGetNVMLVersion')}, "
            f"nvidia-ml-py {metadata.version('nvidia-ml-py')}",
            order_told(os.environ),
        ]
        for uuid in uuids:
            lines += ["", *_card_lines(uuid, open_nvml((uuid,)))]
    except RunInvalid as error:
        raise DeviceMissing(f"no GPU can be measured here: {error}") from None
    return lines


def _card_lines(uuid: str, nvml: Nvml) -> Iterator[str]:
    yield f"{_answer(nvml, 'nvmlDeviceGetName')} ({uuid})"
    card = Card(nvml)
    for label, told in ABILITIES.items():
        yield f"  {label.ljust(_WIDTH)}{told(nvml, card)}"


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
        return "no: this device does not tell it"
    reserved = "" if memory.reserved is None else f", {show(memory.reserved, Unit.BYTES)} kept by the driver"
    return f"yes, {show(memory.free, Unit.BYTES)} of {show(memory.total, Unit.BYTES)} free{reserved}"


def _throttling(_: Nvml, card: Card) -> str:
    counted, reasons = card.throttled_seconds(), card.reasons()
    if counted:
        return f"yes, counted by the driver ({', '.join(sorted(counted))})"
    return "no" if reasons is None else f"yes, seen twice a second (now {reasons:#x})"


def _clocks(_: Nvml, card: Card) -> str:
    now, most = card.sm_clock(), card.max_sm_clock()
    return "no" if now is None else f"yes, SM at {now:.0f} MHz" + (f" of {most:.0f} MHz" if most else "")


def _power(_: Nvml, card: Card) -> str:
    limit, energy = card.power_limit(), card.energy()
    told = "limit unknown" if limit is None else f"limit {limit:.0f} W"
    return f"{told}, energy {'not counted' if energy is None else 'counted'}"


def _processes(_: Nvml, card: Card) -> str:
    processes = card.processes()
    if processes is None:
        return "no: whether the card is shared cannot be seen here"
    return f"yes, {len(processes)} on the card now"


def _persistence(_: Nvml, card: Card) -> str:
    on = card.is_persistent()
    return "unknown" if on is None else "on" if on else "off: the driver may unload, use nvidia-smi -pm 1"


def _slices(_: Nvml, card: Card) -> str:
    on = card.is_sliced()
    return "none" if on is None else "on: no utilization of a slice" if on else "off"


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


def _word(nvml: Nvml, function: str) -> str:
    return _text(nvml.ask_system(function))


def _answer(nvml: Nvml, function: str) -> str:
    return _text(nvml.ask(function))


def _text(answer: Answer) -> str:
    return "unknown" if answer.why else str(answer.value)
