"""Context parallelism: ranks share rows, and attend by a ring or by heads. The cut itself is pure: `fabric.context`.

In this room and not with the models: it is collectives of a gang, built over the mesh as the other axes are.
"""
