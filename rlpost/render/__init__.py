"""Results of runs, conversions and verifications, for terminals, pipes and notebooks."""
