"""The server's HTTP: one folder a dialect, over one way to answer."""
