"""`python -m tools`."""

from tools.cli import main

main()
