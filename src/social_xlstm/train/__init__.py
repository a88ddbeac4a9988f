"""Training: one pure step, the loop around it, and what makes both exact, restartable and fast."""
