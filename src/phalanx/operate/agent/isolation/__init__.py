"""Each attempt as a user of its own, in namespaces of its own. What the shim imports is of the standard library only."""
