"""python -m fieldwise."""

from fieldwise.cli import main

main()
