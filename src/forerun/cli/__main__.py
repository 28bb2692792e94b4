"""`python -m forerun.cli` is `forerun`."""

from forerun.cli.main import main

main()
