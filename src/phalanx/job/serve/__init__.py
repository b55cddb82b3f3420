"""Using a saved model: `python -m phalanx.job.serve.sample`. Loads safetensors and JSON, nothing that can run code."""
