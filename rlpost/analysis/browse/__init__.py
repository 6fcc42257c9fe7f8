"""Looking at responses one by one: an index of them all, their tokens on demand, a browser."""
