"""Remedies tried inside one run of the script, in turns with the script as it is."""
