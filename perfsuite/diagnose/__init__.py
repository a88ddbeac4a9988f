"""Find the causes of a reading's step time, with advice."""
