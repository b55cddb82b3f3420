"""Who may have how much: the tree of queues, shares, quotas, budgets, guaranteed cells."""
