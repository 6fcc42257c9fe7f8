"""A run in tasks, on a Ray cluster.

1. `read`: one task for each partition of the input (files, or row groups of a file) makes the first
   pass over it and returns the rows of its responses (keys, rewards, lengths, mapped numbers),
   divided into buckets of steps.
2. `reduce`: one task for each bucket builds the table of its responses, in input order, and reduces
   it. A group is within a step, and so are batch statistics, so a bucket needs no other. A recipe
   that carries state from batch to batch has one bucket.
3. `map_tokens`: if a stage maps tokens after something was reduced (whitening), one task for each
   partition does so with the reduced columns of its rows; then 2 again.
4. `write`: one task for each partition writes its files, from the reduced columns of its rows.
   A large file has several partitions: one task each encodes new columns (`encode`), and one more
   writes the file (`join`).

Tasks are pure functions of small arguments and of blocks that other tasks returned. They use the
engine, stages and sinks of a run in one process. The driver, which calls them, has references to
blocks, counts and labels, and no responses.
"""
