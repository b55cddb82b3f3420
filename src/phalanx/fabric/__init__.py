"""What hardware is: device models now, links and cost models later; where experts lie on it, and how ranks do. Pure: no clock, no
I/O, no randomness. Imports core."""
