"""What crosses between server, runner and importer: requests, events, status, codec."""
