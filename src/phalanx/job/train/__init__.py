"""The built-in trainers: `python -m phalanx.job.train RECIPE`. Imports checkpoint, data, sdk, fabric, storage and core.

A step passes these rooms: data (a function of the step) -> step.py (forward, backward, clip, update) -> checkpoint -> one step
record to the agent. Nothing here waits for the platform.
"""
