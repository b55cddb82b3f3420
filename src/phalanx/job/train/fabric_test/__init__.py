"""The test of a fabric as its ranks run it: collectives on each tier, pairs, and each GPU alone. Started as a job by
`phalanx fabric test`, or on this machine alone by `here`, which needs no torch."""
