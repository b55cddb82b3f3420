"""A cluster in one process, under a virtual clock: the real controller and store, simulated network, agents, shims and users.

One seed is one history: everything random comes from one `random.Random`, time only from the timeline. What the simulated parts
promise is what `operate.agent` promises; the conformance test in tests/simulation holds the two together.
"""
