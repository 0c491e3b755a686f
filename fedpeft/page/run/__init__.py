"""A run as its page shows it: JSON values that grow with the files of the run's folder.

``rounds`` follows rounds.jsonl, ``state`` tells what became of the run, and ``run`` joins both with
the settings, the privacy statement and how to use the result.
"""
