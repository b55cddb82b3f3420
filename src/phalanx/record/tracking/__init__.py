"""Runs, the model registry and lineage, written to MLflow through an outbox. Imports core, storage, fabric and telemetry.

The only room that knows MLflow, which is imported lazily, in the tracking process alone.
"""
