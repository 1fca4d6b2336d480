"""A store that fills itself while somebody reads it: segments, their log, and the commit at the end."""
