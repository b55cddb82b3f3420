"""Phalanx: a GPU fabric and ML training platform. Import `phalanx.client` for the Python SDK."""
