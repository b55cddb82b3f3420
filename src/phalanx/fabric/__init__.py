"""What hardware is: device models, links and what messages over them cost; where experts lie on it, how ranks do, and how long rows
are shared. Pure: no clock, no I/O, no randomness. Imports core."""
