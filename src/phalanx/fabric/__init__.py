"""What hardware is: device models now; links and cost models later. Pure: no clock, no I/O, no randomness. Imports core."""
