"""Looking at rollouts before they train anything: facts, findings and single responses.

`facts.inspect` gives the facts as a tree of plain dataclasses (`model`), findings among them.
Files are streamed: a few numbers per response are held, no tokens. Nothing here imports torch.
"""
