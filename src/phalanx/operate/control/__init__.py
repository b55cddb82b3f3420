"""The control plane: event log and store, fold, tick, HTTP API. Decides nothing itself, imports no job, no page, no torch."""
