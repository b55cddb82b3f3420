"""Frozen nouns that every room shares: ids, specs, states, events, messages, errors, units. Imports no other room."""
