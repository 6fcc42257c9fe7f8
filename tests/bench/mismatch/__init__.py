"""A bench of `inspect --about mismatch`: planted causes, and which of them are named."""
