"""A process beside each rank that holds its snapshots and writes them to durable storage. It outlives the rank; no torch.

`memory` is the rank's side. Why a process: docs/adr/0023.
"""
