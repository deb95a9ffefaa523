"""What edge and node share: values, the link, and small asyncio pieces. Imports neither daemon."""

TYPE_CHECKING = False

__version__: str

if not TYPE_CHECKING:  # for a checker, a module's __getattr__ would make every name exist

    def __getattr__(name: str) -> str:
        # Only when asked for: it takes longer than everything else that a program's first moment needs.
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version

        try:
            found = version("iop-platform")
        except PackageNotFoundError:  # run from a source tree without an install
            found = "0+source"
        globals()["__version__"] = found
        return found
