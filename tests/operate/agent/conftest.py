"""The `cell` fixture for every test of the agent."""

from tests.operate.agent.agent_cell import cell

__all__ = ["cell"]
