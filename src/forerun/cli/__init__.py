"""The command line: one file a command. Nothing here imports torch or waits for it."""
