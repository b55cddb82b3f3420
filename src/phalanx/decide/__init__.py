"""Pure deciders: no clock, no I/O, no randomness."""
