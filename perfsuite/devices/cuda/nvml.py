"""NVIDIA's management library: a call returns a value or why it is absent, or raises RunInvalid."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from perfsuite.errors import RunInvalid


class Meaning(NamedTuple):
    """How one of NVML's return codes is interpreted."""

    name: str
    words: str
    is_invalid: bool = False  # device lost or driver mismatch: nothing measured here counts


FUNCTION_NOT_FOUND = 13
NOT_FOUND = 6
MEANINGS: Mapping[int, Meaning] = {
    1: Meaning("UNINITIALIZED", "NVML was not initialised"),
    2: Meaning("INVALID_ARGUMENT", "NVML rejects the arguments"),
    3: Meaning("NOT_SUPPORTED", "this device does not report it"),
    4: Meaning("NO_PERMISSION", "this user may not read it"),
    6: Meaning("NOT_FOUND", "NVML finds no such entry"),
    7: Meaning("INSUFFICIENT_SIZE", "the answer did not fit into the buffer"),
    9: Meaning("DRIVER_NOT_LOADED", "the NVIDIA driver is not loaded"),
    12: Meaning("LIBRARY_NOT_FOUND", "there is no NVIDIA library (libnvidia-ml.so.1)"),
    13: Meaning("FUNCTION_NOT_FOUND", "this driver is too old for it"),
    15: Meaning("GPU_IS_LOST", "the GPU is lost: it has fallen off the bus or needs a reset", True),
    16: Meaning("RESET_REQUIRED", "the GPU needs a reset", True),
    17: Meaning("OPERATING_SYSTEM", "the operating system or its cgroup blocks the device"),
    18: Meaning(
        "LIB_RM_VERSION_MISMATCH",
        "driver and NVIDIA library have different versions: the driver was changed without a reboot",
        True,
    ),
    25: Meaning("ARGUMENT_VERSION_MISMATCH", "the driver does not know this version of the request"),
    27: Meaning("NOT_READY", "the device is not ready to answer"),
    28: Meaning("GPU_NOT_FOUND", "no GPU was found"),
    999: Meaning("UNKNOWN", "the driver reports an unknown error"),
}


class Answer(NamedTuple):
    """A value, or None with the reason and NVML's return code."""

    value: Any = None
    why: str = ""
    code: int = 0


class Nvml:
    """One device, queried through the binding, or the reason why there is none."""

    def __init__(self, binding: Any = None, handle: Any = None, absent: str = "", invalid: str = "") -> None:
        self.binding = binding
        self.handle = handle
        self.absent = absent or invalid
        self.invalid = invalid  # why nothing measured here counts

    def ask(self, function: str, *arguments: Any) -> Answer:
        """Call a function on this device."""
        return self.ask_system(function, self.handle, *arguments)

    def ask_system(self, function: str, *arguments: Any) -> Answer:
        """Call a function without passing the device; raise RunInvalid where nothing measured here counts."""
        if self.invalid:
            raise RunInvalid(self.invalid)
        if self.binding is None:
            return Answer(why=self.absent)
        return call(self.binding, function, *arguments)


def call(binding: Any, function: str, *arguments: Any) -> Answer:
    """Call a function of the binding and describe its failure."""
    query = getattr(binding, function, None)
    if query is None:
        return Answer(why=f"{function}: this nvidia-ml-py does not have it", code=FUNCTION_NOT_FOUND)
    try:
        return Answer(query(*arguments))
    except binding.NVMLError as error:
        code = int(error.value)
    meaning = MEANINGS.get(code, MEANINGS[999])
    if meaning.is_invalid:
        raise RunInvalid(f"{meaning.words} ({function}: {meaning.name})")
    return Answer(why=f"{meaning.words} ({function}: {meaning.name})", code=code)


def load_binding() -> tuple[Any, str]:
    """Return the initialised binding, or None and the reason; raise RunInvalid as every call does."""
    try:
        import pynvml
    except ModuleNotFoundError:
        return None, "nvidia-ml-py is not installed"
    answer = call(pynvml, "nvmlInit")
    return (None, answer.why) if answer.why else (pynvml, "")


def open_nvml(uuids: tuple[str, ...]) -> Nvml:
    """Return the device with the first of these UUIDs that NVML knows; an index is never used.

    NVML numbers cards in PCI order and CUDA by default from the fastest: an index can mean two cards.
    """
    try:
        binding, why = load_binding()
        if binding is None:
            return Nvml(absent=why)
        for uuid in uuids:
            handle, why, _ = call(binding, "nvmlDeviceGetHandleByUUID", uuid)
            if handle is not None:
                return Nvml(binding, handle)
    except RunInvalid as error:
        return Nvml(invalid=str(error))
    return Nvml(absent=f"NVML does not know {' nor '.join(uuids)}: {why}" if uuids else "no device was named")
