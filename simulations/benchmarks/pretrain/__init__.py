"""Small language models, trained from scratch on sentences, where none can be downloaded.

They are for tests and trials of generation, and no match for the models of the papers.
"""
