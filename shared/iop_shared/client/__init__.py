"""The `iop` command. Talks HTTP to an edge and starts daemons as programs; imports neither of them."""
