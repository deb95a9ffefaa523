"""What the edge decides, as pure values and functions: no sockets, tasks, HTTP or databases in here."""
