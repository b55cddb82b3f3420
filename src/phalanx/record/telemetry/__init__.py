"""Measurements: the server's copy of logs and records, the series of steps, the ledger. Imports core, storage and fabric only;
knows neither the job, the control plane nor the tracker. The ledger is pure: no clock, no I/O.
"""
