"""Performance regressions of GPU trainings, caught by pytest."""
