"""Job traces of real clusters, as jobs that a simulation submits: one reader a format, all of them strict. Imports core."""
