"""A run in tasks, whoever runs them: a cluster, the shards of an array job, or one process.

1. `read`: one task a lot of files makes the first pass over it, and gives the rows of its
   responses (keys, rewards, lengths, measurements), parted into bundles of steps.
2. `settle`: one task a bundle puts the rows of its steps together, in input order, and settles on
   that table what can be settled. A group is within a step, and so are batch statistics, so a
   bundle needs no other. Where a recipe goes on from batch to batch there is one bundle.
3. `measure`: where a stage measures tokens after something was settled (whitening), one task a lot
   takes its rows' settled columns and measures; then 2 again.
4. `write`: one task a lot takes its rows' settled columns and writes its files.
   A large file is several lots: one task each encodes new columns (`encode`), and one more puts
   the file together (`join`).

Every task is a pure function of small arguments and of sheets that others gave, and uses the very
same engine, stages and sinks as a run in one process. Who drives them holds names of sheets,
counts and labels, and no responses.
"""
