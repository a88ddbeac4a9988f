"""Other processes of a run: fresh processes, ranks, both sides of --against; and locks on devices."""
