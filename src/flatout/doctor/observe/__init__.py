"""A script in, a record of what it does with its time out."""
