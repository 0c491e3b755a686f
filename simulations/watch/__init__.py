"""``fedpeft watch``: a live page of run and study folders.

``folders`` finds runs and studies, ``rows`` reads a line about each, ``listing`` and ``study`` keep
those lines up to date, ``source`` offers them to ``fedpeft.page``, ``serve`` serves the page, and
``child`` serves it beside a simulation.
"""
