"""The command line's side of a server's HTTP."""
