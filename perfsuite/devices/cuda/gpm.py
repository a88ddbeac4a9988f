"""SM-level counters of a window from one sample before it and one after, where the card has them."""

from collections.abc import Mapping
from typing import Any

from perfsuite.devices.cuda.nvml import Nvml

# NVML's number → name in the reading; percent of the whole device, averaged over the window.
_METRICS: Mapping[int, str] = {2: "sm_active", 3: "sm_occupancy", 5: "tensor_active", 10: "dram_active"}
_MIN_SECONDS = 0.1  # NVML refuses two samples that lie closer together


class GpmWindow:
    """The counters between start and stop; costs two calls and no polling."""

    def __init__(self, nvml: Nvml) -> None:
        self._nvml = nvml
        self._first = self._sample() if self._is_supported() else None

    def _is_supported(self) -> bool:
        # Asked and never inferred from the card's name.
        answer = self._nvml.ask("nvmlGpmQueryDeviceSupport")
        return not answer.why and bool(answer.value.isSupportedDevice)

    def _sample(self) -> Any:
        allocated = self._nvml.ask_system("nvmlGpmSampleAlloc")
        if allocated.why:
            return None
        taken = self._nvml.ask("nvmlGpmSampleGet", allocated.value)
        if taken.why:
            self._free(allocated.value)
            return None
        return allocated.value

    def _free(self, sample: Any) -> None:
        self._nvml.ask_system("nvmlGpmSampleFree", sample)

    def stop(self, seconds: float) -> Mapping[str, float]:
        """Return the shares of a window that lasted so long; what the card does not count is missing."""
        first, self._first = self._first, None
        if first is None:
            return {}
        second = self._sample() if seconds > _MIN_SECONDS else None
        shares = {} if second is None else self._shares(first, second)
        for sample in (first, second):
            if sample is not None:
                self._free(sample)
        return shares

    def _shares(self, first: Any, second: Any) -> Mapping[str, float]:
        binding = self._nvml.binding
        asked = binding.c_nvmlGpmMetricsGet_t()
        asked.version = binding.NVML_GPM_METRICS_GET_VERSION
        asked.numMetrics = len(_METRICS)
        asked.sample1, asked.sample2 = first, second
        for place, number in enumerate(_METRICS):
            asked.metrics[place].metricId = number
        answer = self._nvml.ask_system("nvmlGpmMetricsGet", asked)
        if answer.why:
            return {}
        return {
            name: asked.metrics[place].value / 100
            for place, name in enumerate(_METRICS.values())
            if asked.metrics[place].nvmlReturn == 0
        }
