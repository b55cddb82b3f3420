"""Pieces of a store's objects, kept on the node for all processes of all jobs on it, under one limit of bytes."""
