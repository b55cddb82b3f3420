"""Durable training state: shards, checksums, and a manifest committed last. Imports sdk, storage and core; never data or train.

A checkpoint exists once its manifest is committed (law 5). Shards are written by torch.distributed.checkpoint, whose `.metadata`
is a pickle; so nothing of a checkpoint is loaded before every file, that one included, matched the manifest, and the pickle may
name only the classes that such an index needs.
"""
