"""Traces of chosen steps, and what they say in numbers: of scripts that ask for them, and of recipes whose job does."""
