"""What hardware is: device models now, links and cost models later; and where experts lie on it. Pure: no clock, no I/O, no
randomness. Imports core."""
