"""One per node: holds the attempts placed there, ships their logs and records, talks to the control plane.

Ranks are children of `shim.py`, one detached process per attempt, so the agent may die or be upgraded without their noticing.
Imports core and storage; never job (they meet at the rank's socket), the control plane or torch.
"""
