"""The verbs of the command line, thin: parse, call, print."""
