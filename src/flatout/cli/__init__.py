"""Parse, call, print: the only package that prints."""
