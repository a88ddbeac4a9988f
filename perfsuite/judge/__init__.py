"""Compare a reading with its limits."""
