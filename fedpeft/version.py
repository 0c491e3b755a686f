"""The version of fedpeft, as pyproject.toml states it; a node with another version is refused."""

from importlib.metadata import version

__version__ = version("fedpeft")
