"""The settings of a training that flatout runs, found by measuring."""
