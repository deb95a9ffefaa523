"""Starts the `iop-node` program; imports next to nothing itself, see `iop_shared.entry`."""

from iop_shared.entry import start


def main() -> None:
    """Entry point of `iop-node`."""
    start("iop_node.program")


if __name__ == "__main__":
    main()
