"""Starts the `iop` program; imports next to nothing itself, see `iop_shared.entry`."""

from iop_shared.entry import start


def main() -> None:
    """Entry point of `iop`."""
    start("iop_shared.client.program")


if __name__ == "__main__":
    main()
