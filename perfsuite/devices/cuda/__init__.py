"""NVIDIA GPUs: CUDA events for time, torch's allocator for memory, NVML for utilization and conditions."""
