"""The fast cells on the CPU, in C: built once per machine, called as operators of torch."""
