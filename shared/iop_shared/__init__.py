"""What edge and node share: values, the link, and small asyncio pieces. Imports neither daemon."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("iop-platform")
except PackageNotFoundError:  # run from a source tree without an install
    __version__ = "0+source"
