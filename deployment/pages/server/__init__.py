"""The live page of a deployed server, at its operations endpoint.

``overview`` collects what the first page shows, ``log`` its part of the log, ``control``
starts, stops and resumes runs, and ``source`` offers all of it to ``fedpeft.page``.
"""
