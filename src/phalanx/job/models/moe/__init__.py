"""The feed-forward of a block as a mixture of experts: each token is computed by the few that its router chooses, none is dropped.

Shapes end names: t tokens, k experts of a token, n = t x k rows, e experts, d width, f inner width of an expert.
"""
