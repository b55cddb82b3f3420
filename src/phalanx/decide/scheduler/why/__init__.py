"""Why not now, what would change it, and when it starts."""
