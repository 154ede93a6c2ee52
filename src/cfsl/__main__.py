"""Run the command line as ``python -m cfsl``."""

from cfsl.cli import main

main()
