"""A modelled GPU: counts are exact, times are predicted and marked as such."""

from pathlib import Path

from perfsuite.devices.protocol import Device, DeviceKind
from perfsuite.lazy import lazy_names


def _open(card: str, root: Path | None) -> Device | None:
    from perfsuite.devices.model.device import open_model

    return open_model(card, root) if card else None


KIND = DeviceKind("model", ("model:CARD", "model:NxCARD@LINK"), _open, is_modelled=True)

# The names other folders may use, imported on first access.
_HOMES = {
    **dict.fromkeys(("Card", "find_card", "find_cards", "load_cards"), "cards"),
    **dict.fromkeys(("calibrate_cpu", "events_of"), "calibrate"),
    **dict.fromkeys(("Row", "errors", "fit_corrections"), "fitting"),
    **dict.fromkeys(("row_seconds", "seconds", "sheet_seconds"), "roofline"),
    **dict.fromkeys(
        (
            "ConvolutionRule",
            "ProductRule",
            "RecurrenceRule",
            "RowRule",
            "Rules",
            "SheetRule",
            "shipped_rules",
        ),
        "rules",
    ),
    **dict.fromkeys(("Rates", "compute_share", "has_wide_sms", "rates_of"), "sustained"),
    "product_seconds": "products",
    **dict.fromkeys(("RecurrenceSizes", "recurrence_seconds"), "recurrences"),
    **dict.fromkeys(("ConvolutionSizes", "convolution_seconds"), "convolutions"),
    "Timeline": "timeline",
    **dict.fromkeys(("combined_error", "kernel_error"), "uncertainty"),
}
__all__ = ["KIND", *_HOMES]  # noqa: PLE0604
__getattr__ = lazy_names(__name__, _HOMES)
