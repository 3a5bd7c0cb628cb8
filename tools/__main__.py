"""`python -m tools`."""

from tools.cli.group import main

main()
