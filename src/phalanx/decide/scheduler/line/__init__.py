"""Who comes first: the fair order, and those that share devices in time."""
