"""Terminals and commands inside a job, and the ways to them: what holds them stays when connections, agents and servers go."""
