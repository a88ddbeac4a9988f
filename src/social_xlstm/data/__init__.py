"""Traffic sets: files in; windows and batches, split by time, out."""
