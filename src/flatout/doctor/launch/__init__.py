"""The script started as its user starts it, watched from outside."""
