"""Starts the `iop-edge` program; imports next to nothing itself, see `iop_shared.entry`."""

from iop_shared.entry import start


def main() -> None:
    """Entry point of `iop-edge`."""
    start("iop_edge.program")


if __name__ == "__main__":
    main()
