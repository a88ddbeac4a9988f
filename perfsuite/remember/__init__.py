"""Store baselines and histories, and read them back."""
