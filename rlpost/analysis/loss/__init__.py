"""Policy-loss diagnostics: `rlpost loss`."""
