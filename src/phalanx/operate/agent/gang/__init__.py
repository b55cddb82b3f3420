"""In-gang recovery's coordinator, which lives in the shim of node 0. Standard library only; imported by gangs that have one."""
