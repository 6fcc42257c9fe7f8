"""The HTML report about rollout files: one page that opens from disk without a network.

Its sections are the pages of `rlpost inspect`, with charts as SVG. The page
has its own style and script. Texts of findings and examples are part of the page as JSON, and are
inserted as text, never as HTML.
"""
