"""The version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("outrider")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
