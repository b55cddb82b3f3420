"""What hardware is: device models, links and what messages over them cost; and where experts lie on it. Pure: no clock, no I/O, no
randomness. Imports core."""
