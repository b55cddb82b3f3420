"""What hardware is: device models now, links and cost models later; where experts lie on it, how ranks do, and how long rows are
shared. Pure: no clock, no I/O, no randomness. Imports core."""
