"""The commands of `python -m perfsuite`."""

from perfsuite.lazy import lazy_names

# The names that other folders may import from here; each is loaded when it is first used.
_HOMES = {
    **dict.fromkeys(("Workload", "busy_core", "record_pairs", "record_sessions"), "selftest"),
    **dict.fromkeys(("Gate", "against_rates", "stored_rates"), "trials"),
}
__all__ = [*_HOMES]  # noqa: PLE0604
__getattr__ = lazy_names(__name__, _HOMES)
