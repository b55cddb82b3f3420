"""Links between GPUs: what they carry by their makers, which groups of ranks share them, what a collective over them costs, and
which one is slower than it should be. Pure."""
