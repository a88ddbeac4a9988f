"""A modelled GPU: counts are exact, times are predicted and marked as such."""
