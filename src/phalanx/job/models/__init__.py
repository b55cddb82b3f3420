"""Architectures: what is trained, and later sampled, served and evaluated. Knows neither the trainer nor the checkpoint."""
