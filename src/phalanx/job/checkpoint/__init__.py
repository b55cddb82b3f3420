"""Durable training state: shards, checksums, and a manifest committed last. Imports sdk, storage and core; never data or train.

A checkpoint exists once its manifest is committed (law 5). Nothing of it is a pickle: shards are safetensors files, indexes and
manifest are JSON, and every byte is covered by a hash that the manifest leads to. Without torch: folder (a disk's
or an object store's), shard_file, fence, manifest, whole, commit, retention, listing; with it: state, owners, reader, restore, rng,
save, digest, together.
"""
