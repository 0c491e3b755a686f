"""The page of runs and studies: reports in one file, and live views.

``render`` writes a page with its styles, scripts and data inside; ``guard`` and ``app`` serve it
with its updates. The page draws its figures from the data itself, so a report and a live view are
the same code. Where the data comes from is a ``Source``: `fedpeft watch` reads folders of runs and
studies; a deployed server or a node can offer the same page with a source of its own.
"""
