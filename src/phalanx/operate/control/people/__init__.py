"""Accounts: the organisation's teams and users, their tokens, and who changed what. Knows the store; no route, no controller."""
