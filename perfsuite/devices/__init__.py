"""Everything a step can run on: the protocol of a device, the CPU, and a folder for every other kind."""

from perfsuite.lazy import lazy_names

# The names other folders may use, imported on first access.
_HOMES = {**dict.fromkeys(("KernelKind", "Kernel"), "kernels"), "ScriptedDevice": "scripted"}
__all__ = [*_HOMES]  # noqa: PLE0604
__getattr__ = lazy_names(__name__, _HOMES)
