"""What hardware is: device models now, links and cost models later; where experts lie on it, and how long rows are shared. Pure: no
clock, no I/O, no randomness. Imports core."""
