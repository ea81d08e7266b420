"""`python -m txlayer` is the command line."""

from txlayer.cli import run

run()
