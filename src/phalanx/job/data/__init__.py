"""Text to token shards, and shards to batches in an order that is a function. Imports sdk, fabric, storage, core; no torch."""
