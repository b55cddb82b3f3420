"""Prints which version of the package this job has, and where it found it.

phalanx submit examples/own-environment/old.yaml
phalanx submit examples/own-environment/new.yaml    # side by side, on one machine
"""

import os

import tiny_greeting

print(f"rank {os.environ['RANK']}: tiny_greeting {tiny_greeting.VERSION} of {os.environ['VIRTUAL_ENV']}", flush=True)
