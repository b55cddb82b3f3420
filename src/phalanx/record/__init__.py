"""What is remembered: measurements, the ledger, runs and models."""
