"""What a record says: one rule per disease, each with its evidence, remedy and gain."""
