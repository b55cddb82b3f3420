"""Traces and saved snapshots, decided by the real scheduler under a virtual clock: what would have happened, in numbers.

`engine` is the quick way: only `schedule` is real, gangs are events. `controlled` drives the real controller with simulated agents.
Imports decide, record.telemetry.ledger (its categories) and, for `controlled`, operate.control.
"""
