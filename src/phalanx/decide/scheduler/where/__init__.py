"""Where a gang fits: the fleet as columns, tiers, shares of devices, packing."""
